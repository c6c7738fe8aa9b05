"""The store of a home folder: created when something is written, not when something is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.settings import HOME
from duetune.store.store import open_store

if TYPE_CHECKING:
    from duetune.settings import Settings
    from duetune.store.store import Store


def opened_store(settings: Settings) -> Store:
    """Return the store of the home; creates both if they do not exist."""
    made_home(settings)
    return open_store(settings.database)


def existing_store(settings: Settings) -> Store | None:
    """Return the store of the home; None if there is none. Called by commands that only read."""
    if "://" not in settings.database and not Path(settings.database).is_file():
        return None
    return opened_store(settings)


def made_home(settings: Settings) -> None:
    """Create the home folder if it does not exist; only its owner may read it."""
    try:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInput(
            HOME, str(settings.home), f"a folder that can be created ({reason})"
        ) from None

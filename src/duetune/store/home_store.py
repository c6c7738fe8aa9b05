"""The home and its store: made when something is written, looked for when something is asked."""

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
    """Return the store of the home; both are made if they are not there."""
    made_home(settings)
    return open_store(settings.database)


def existing_store(settings: Settings) -> Store | None:
    """Return the store of the home if it is there: to ask a question makes nothing."""
    if "://" not in settings.database and not Path(settings.database).is_file():
        return None
    return opened_store(settings)


def made_home(settings: Settings) -> None:
    """Make the folder of the home, for its owner alone, if it is not there."""
    try:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInput(
            HOME, str(settings.home), f"a folder that can be made ({reason})"
        ) from None

"""JSON and YAML documents of other tools."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path


def read_document(path: Path) -> dict[str, object]:
    try:
        if path.suffix == ".json":
            return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
        return msgspec.yaml.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        raise InvalidInput("history", path.name, f"a readable file ({error.strerror})") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InvalidInput("history", path.name, f"a document of settings ({reason})") from None


def moment_of(text: object) -> float:
    """Seconds since 1970; 0 if it is not a moment: a run is no worse for that."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

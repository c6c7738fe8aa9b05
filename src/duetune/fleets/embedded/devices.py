"""Which of the machine's GPUs a node sees, where the machine has any."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_devices(environ: Mapping[str, str], place: Path = Path("/dev")) -> list[str]:
    """As the environment says, else all there are."""
    if VISIBLE in environ:
        return [name.strip() for name in environ[VISIBLE].split(",") if name.strip()]
    names = [file.name.removeprefix("nvidia") for file in place.glob("nvidia[0-9]*")]
    return sorted((name for name in names if name.isdigit()), key=int)


class Devices:
    """One for each node. More nodes than GPUs share them as evenly as can be."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._taken: dict[tuple[str, str], str] = {}

    def take(self, key: tuple[str, str]) -> str | None:
        """None: the machine has none."""
        if not self._names:
            return None
        users = list(self._taken.values())
        self._taken[key] = min(self._names, key=users.count)
        return self._taken[key]

    def give_back(self, key: tuple[str, str]) -> None:
        self._taken.pop(key, None)

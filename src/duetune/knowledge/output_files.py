"""Where a command may write what it was asked to."""

from __future__ import annotations

from pathlib import Path

from duetune.errors import InvalidInput


def output_file(field: str, place: Path | str) -> Path:
    """The file that ``place`` names, or that a link of this name leads to. What is there and is no
    file (a folder, a device, a pipe) would be lost by writing: it is refused, as is a folder that
    is not there.
    """
    if not str(place):
        raise InvalidInput(field, "", "the name of a file")
    try:
        target = Path(place).resolve()
        usual = target.is_file() or not target.exists()
        folder = target.parent.is_dir()
    except (OSError, RuntimeError, ValueError):  # A link to itself, a name that is too long.
        usual = folder = False
    if not usual:
        raise InvalidInput(field, str(place), "a file to write; this is something else")
    if not folder:
        raise InvalidInput(field, str(place), "a file to write, in a folder that is there")
    return target

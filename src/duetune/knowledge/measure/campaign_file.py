"""The file of a campaign: one observation a line, added to and never changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.files import output_file
from duetune.knowledge.observation import Observation

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_decoder = msgspec.json.Decoder(Observation)


class CampaignFile:
    """What was written stays, whatever ends the process. A last line that was cut off by a crash is
    dropped when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        path = output_file("out", path)
        self._path = path
        try:
            self.observations = _repaired(path) if path.exists() else []
            self._file = path.open("ab")
        except OSError as error:
            reason = error.strerror or "cannot be written"
            raise InvalidInput("out", str(path), f"a file that can be written ({reason})") from None

    def append(self, observations: Iterable[Observation]) -> None:
        added = list(observations)
        if not added:
            return
        self._file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in added))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.observations.extend(added)

    def close(self) -> None:
        self._file.close()


def read_observations(path: Path) -> list[Observation]:
    """Of a campaign's file; a torn last line is left out."""
    try:
        return _read(path)[0]
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise InvalidInput("history", str(path), f"a readable file ({reason})") from None


def _repaired(path: Path) -> list[Observation]:
    found, good = _read(path)
    if good < path.stat().st_size:
        with path.open("r+b") as file:
            file.truncate(good)
            os.fsync(file.fileno())
    return found


def _read(path: Path) -> tuple[list[Observation], int]:
    """The observations, and how many bytes they take up."""
    found: list[Observation] = []
    good = 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                found.append(_decoder.decode(line))
        except (msgspec.MsgspecError, InvalidInput) as error:
            if number == len(lines) and not line.endswith(b"\n"):
                break
            raise InvalidInput(
                f"{path.name}, line {number}", line[:40].decode(errors="replace"), str(error)
            ) from None
        if not line.endswith(b"\n"):
            # Whole, but not ended: the next one must not be glued to it.
            found.pop()
            break
        good += len(line)
    return found, good

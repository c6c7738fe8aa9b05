"""The file of a campaign: one observation per line, appended and never changed."""

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
    """An open campaign file. What was written stays, however the process ends.

    A last line that a crash cut off is removed when the file is opened.
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
        """Write observations to disk before returning."""
        added = list(observations)
        if not added:
            return
        self._file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in added))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.observations.extend(added)

    def close(self) -> None:
        """Close the file; the campaign calls this at its end."""
        self._file.close()


def read_observations(path: Path) -> list[Observation]:
    """Return the observations of a campaign file, without a last line that was cut off."""
    try:
        return _read(path)[0]
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise InvalidInput("history", str(path), f"a readable file ({reason})") from None


def _repaired(path: Path) -> list[Observation]:
    """Return the observations, and remove a last line that was cut off."""
    found, good = _read(path)
    if good < path.stat().st_size:
        with path.open("r+b") as file:
            file.truncate(good)
            os.fsync(file.fileno())
    return found


def _read(path: Path) -> tuple[list[Observation], int]:
    """Return the observations, and how many bytes of the file they fill."""
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
            # The line is complete but has no line end; the next one must not be appended to it.
            found.pop()
            break
        good += len(line)
    return found, good

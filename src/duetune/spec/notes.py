"""What is not the same on both sides, when a job goes from one tool to another."""

from __future__ import annotations

import msgspec

# Our own exports begin their command with the environment that duetune gives by itself; between
# these lines, so that it can be taken off again.
OWN_LINES = ("# duetune: begin", "# duetune: end")


class Note(msgspec.Struct, frozen=True):
    """What became of a field that could not be taken over as it is."""

    field: str
    says: str

    def __str__(self) -> str:
        return f"{self.field}: {self.says}"

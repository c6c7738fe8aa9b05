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
        return one_line(f"{self.field}: {self.says}")


def one_line(text: str) -> str:
    """As a comment, whatever it is: no line breaks, and nothing that YAML would not read."""
    words = " ".join(text.split())
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in words)

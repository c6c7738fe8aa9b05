"""Notes about fields that differ when a job is converted from or to another tool."""

from __future__ import annotations

import msgspec

# Exports put duetune's own environment variables between these two lines, so that an import can
# remove them again.
OWN_LINES = ("# duetune: begin", "# duetune: end")


class Note(msgspec.Struct, frozen=True):
    """What happened to a field that could not be converted as it is."""

    field: str
    says: str

    def __str__(self) -> str:
        return one_line(f"{self.field}: {self.says}")


def one_line(text: str) -> str:
    """Return ``text`` on one line and printable, so that it can stand in a comment or message."""
    words = " ".join(text.split())
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in words)

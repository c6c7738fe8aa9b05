"""Names of streams: a stream is the story of one job, and bears its id."""

from __future__ import annotations

from duetune.errors import InvalidInput

LONGEST = 200


def check_stream(stream: str) -> None:
    """A name is a key on every database, and stands in messages and paths."""
    if not stream or len(stream) > LONGEST or not stream.isprintable():
        raise InvalidInput("job id", stream, f"1 to {LONGEST} printable characters")

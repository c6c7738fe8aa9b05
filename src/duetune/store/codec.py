"""Events and user requests as JSON text, and the names of streams.

A stream holds the events of one job and has the job's id as its name.
"""

from __future__ import annotations

import msgspec

from duetune.core.events import SCHEMA, Event, UserRequest
from duetune.errors import Bug, InvalidInput

_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_requests: msgspec.json.Decoder[UserRequest] = msgspec.json.Decoder(UserRequest)

LONGEST = 200
"""The longest name of a stream, in characters."""


class JournalLine(msgspec.Struct, frozen=True):
    """One encoded event: JSON ``body``, tag and schema number.

    ``event`` is what a reader of ``body`` gets.
    """

    event: Event
    tag: str
    body: str
    schema: int = SCHEMA


def encode_event(event: Event) -> JournalLine:
    """Return ``event`` encoded; called before every append.

    The text is decoded at once, so an event that cannot be read is never written. NaN and infinity
    become null where the field allows it.
    """
    try:
        body = msgspec.json.encode(event)
        return JournalLine(_events.decode(body), _tag_of(event), body.decode())
    except (msgspec.MsgspecError, UnicodeError, OverflowError, TypeError) as failure:
        raise Bug(f"event {_tag_of(event)} cannot be encoded: {failure}") from failure


def decode_event(body: str, *, schema: int, stream: str, position: int) -> Event:
    """Return an event of the journal; unknown fields are ignored."""
    where = f"event {position} of {stream!r} in the journal"
    if not 1 <= schema <= SCHEMA:
        raise InvalidInput(
            where, f"schema {schema}", f"schema {SCHEMA} or older; upgrade duetune to read it"
        )
    try:
        return _events.decode(body)
    except msgspec.MsgspecError as failure:
        raise InvalidInput(where, body, f"an event of schema {schema}: {failure}") from failure


def encode_request(request: UserRequest) -> str:
    """Return a user request as JSON text."""
    return msgspec.json.encode(request).decode()


def decode_request(body: str) -> UserRequest:
    """Return the user request in a JSON text."""
    return _requests.decode(body)


def _tag_of(event: Event) -> str:
    """Return the tag that marks the kind of an event in its JSON form."""
    return str(event.__struct_config__.tag)


def check_stream(stream: str) -> None:
    """Raise ``InvalidInput`` if ``stream`` cannot be a key in a database and stand in messages."""
    if not stream or len(stream) > LONGEST or not stream.isprintable():
        raise InvalidInput("job id", stream, f"1 to {LONGEST} printable characters")

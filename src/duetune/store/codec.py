"""Events as the journal keeps them: JSON text with its schema number and tag beside it."""

from __future__ import annotations

import msgspec

from duetune.core.events import SCHEMA, Event, UserRequest
from duetune.errors import Bug, InvalidInput

_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_wishes: msgspec.json.Decoder[UserRequest] = msgspec.json.Decoder(UserRequest)


class JournalLine(msgspec.Struct, frozen=True):
    """One event in writing. ``event`` is what a reader of ``body`` will get."""

    event: Event
    tag: str
    body: str
    schema: int = SCHEMA


def encode_event(event: Event) -> JournalLine:
    """``event`` in writing, read back at once: what cannot be read must never be written.

    Numbers that JSON does not have (nan, inf) become null where that is allowed.
    """
    try:
        body = msgspec.json.encode(event)
        return JournalLine(_events.decode(body), tag_of(event), body.decode())
    except (msgspec.MsgspecError, UnicodeError, OverflowError, TypeError) as failure:
        raise Bug(f"event {tag_of(event)} cannot be written down: {failure}") from failure


def decode_event(body: str, *, schema: int, stream: str, position: int) -> Event:
    """An event from the journal. Fields this code does not know are passed over."""
    where = f"event {position} of {stream!r} in the journal"
    if not 1 <= schema <= SCHEMA:
        raise InvalidInput(
            where, f"schema {schema}", f"schema {SCHEMA} or older; upgrade duetune to read it"
        )
    try:
        return _events.decode(body)
    except msgspec.MsgspecError as failure:
        raise InvalidInput(where, body, f"an event of schema {schema}: {failure}") from failure


def encode_wish(wish: UserRequest) -> str:
    return msgspec.json.encode(wish).decode()


def decode_wish(body: str) -> UserRequest:
    return _wishes.decode(body)


def tag_of(event: Event) -> str:
    return str(event.__struct_config__.tag)

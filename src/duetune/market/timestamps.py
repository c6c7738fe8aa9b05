"""Conversion of times: ISO-8601 text with a zone outside, whole microseconds since 1970 inside."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from duetune.errors import InvalidInput

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECONDS_PER_HOUR = 3_600_000_000
_MICROSECOND = timedelta(microseconds=1)


def checked_slot_hours(slot_hours: float) -> float:
    """Return the slot length, or refuse it if it is not a positive number of hours."""
    if not (math.isfinite(slot_hours) and slot_hours > 0):
        raise InvalidInput("slot_hours", slot_hours, "a positive number of hours")
    return slot_hours


def microseconds(moment: datetime) -> int:
    """Return microseconds since 1970, exactly; ``moment.timestamp()`` is a float."""
    return (moment - EPOCH) // _MICROSECOND


def moment_at(since_epoch: float) -> datetime:
    """Return the UTC time of so many microseconds since 1970."""
    return EPOCH + timedelta(microseconds=round(since_epoch))


def written(since_epoch: float) -> str:
    """Return the ISO-8601 text, ending in Z, of so many microseconds since 1970."""
    return moment_at(since_epoch).isoformat().replace("+00:00", "Z")


def parse_moment(text: object, where: str) -> int:
    """Return an ISO-8601 text as microseconds since 1970; errors name ``where``."""
    try:
        moment = datetime.fromisoformat(str(text).strip())
        if moment.tzinfo is None:
            raise InvalidInput(where, text, "a time with a zone, such as 2025-01-31T12:00:00Z")
        return microseconds(moment)
    except (ValueError, OverflowError):
        raise InvalidInput(where, text, "an ISO-8601 time with a zone") from None


def aware_microseconds(moment: datetime, where: str) -> int:
    """Return microseconds since 1970, or refuse a time without a time zone."""
    if moment.tzinfo is None:
        raise InvalidInput(where, moment.isoformat(), "a time with a time zone")
    return microseconds(moment)

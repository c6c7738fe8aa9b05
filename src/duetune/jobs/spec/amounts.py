"""Dollars as people write them."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import PlainValidator, WithJsonSchema

from duetune.jobs.spec.meaning import refusal

_DOLLARS = re.compile(
    r"\$ *([0-9]{1,12}|[0-9]{1,3}(?:,[0-9]{3}){1,3})(\.[0-9]{1,9})?|([0-9]{1,12}(?:\.[0-9]{1,9})?)"
)
_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "examples": ["$20"]}]}
)
MOST = 1e12


def _read(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value) if abs(value) <= MOST else None
    found = _DOLLARS.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    return float(found[3] or (found[1].replace(",", "") + (found[2] or "")))


def _some(value: object) -> float:
    amount = _read(value)
    if amount is None or not (math.isfinite(amount) and amount > 0):
        raise refusal("dollars above zero, such as 20 or $20")
    return amount


def _none_or_some(value: object) -> float:
    amount = _read(value)
    if amount is None or not (math.isfinite(amount) and amount >= 0):
        raise refusal("dollars, zero or more, such as 20 or $20")
    return amount


PositiveDollars = Annotated[float, PlainValidator(_some), _SCHEMA]
Dollars = Annotated[float, PlainValidator(_none_or_some), _SCHEMA]

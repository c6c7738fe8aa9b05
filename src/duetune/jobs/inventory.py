"""Amounts, GPU inventories and prices as people type them in options."""

from __future__ import annotations

import math
import re

from duetune.errors import InvalidInput
from duetune.jobs.question import USUAL_GPUS
from duetune.jobs.trainer_facts import NODE
from duetune.knowledge.advice import asked_gpu

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?) *([kmbt]?)", re.IGNORECASE)
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def parsed_amount(field: str, text: str) -> float:
    """Return the number in ``2e8``, ``200M`` or ``1.5B``; ``field`` names the option in errors."""
    found = _AMOUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    number = float(found[1]) * _UNITS[found[2].casefold()] if found else 0.0
    if not 0 < number < 1e18:
        raise InvalidInput(field, text, "a number above 0, such as 2e8, 200M or 1.5B")
    return number


def parsed_inventory(text: str) -> dict[str, int]:
    """Return GPUs and counts of ``A100-80GB:8,L40S:4``; without a count there are eight."""
    found: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, count = part.partition(":")
        if count and not (count.isdecimal() and 1 <= int(count) <= 4096):
            raise InvalidInput("gpus", part, "a GPU and how many, such as A100-80GB:8")
        found[asked_gpu(name.strip(), "gpus")] = int(count or USUAL_GPUS)
    if not found:
        raise InvalidInput("gpus", text, "GPUs and how many of each: A100-80GB:8,L40S:4")
    return found


def parsed_prices(text: str | None) -> dict[str, float]:
    """Return the prices of ``A100-80GB=1.2,L40S=0.8`` in dollars per GPU and hour."""
    found: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in (text or "").split(","))):
        name, _, amount = part.partition("=")
        try:
            price = float(amount.strip().removeprefix("$"))
        except ValueError:
            price = math.nan
        if not 0 < price < 1e6:
            raise InvalidInput("price", part, "dollars per GPU and hour, such as A100-80GB=1.2")
        found[asked_gpu(name.strip(), "price")] = price
    return found


def gpu_counts(most: int) -> list[int]:
    """Return the GPU counts to try up to ``most``: powers of two in a node, then whole nodes."""
    inside = min(most, NODE)
    counts = {2**power for power in range(inside.bit_length()) if 2**power <= inside} | {inside}
    nodes = 2
    while nodes * NODE <= most:
        counts.add(nodes * NODE)
        nodes *= 2
    return sorted(counts)

"""The cost report: charges added up by job, day, kind or tag."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, assert_never

from duetune.store.rows import CostBy, CostLine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from duetune.store.rows import Charge

_DAY_S = 86_400
_HOUR_S = 3_600


class _Share(NamedTuple):
    """The part of a charge that belongs under a key."""

    key: str
    dollars: float
    seconds: float


def cost_lines(
    charges: Iterable[Charge], by: CostBy, tags: Mapping[str, tuple[str, ...]]
) -> list[CostLine]:
    """One line per key, in the order of the keys. ``tags`` are by job."""
    shares: dict[str, list[_Share]] = {}
    for charge in charges:
        for share in _shares(charge, by, tags):
            shares.setdefault(share.key, []).append(share)
    return [
        CostLine(
            key=key,
            dollars=math.fsum(share.dollars for share in found),
            gpu_hours=math.fsum(share.seconds for share in found) / _HOUR_S,
            nodes=len(found),
        )
        for key, found in sorted(shares.items())
    ]


def _shares(charge: Charge, by: CostBy, tags: Mapping[str, tuple[str, ...]]) -> Iterator[_Share]:
    seconds = max(0.0, charge.to_at - charge.from_at)
    match by:
        case CostBy.JOB:
            yield _Share(charge.job, charge.dollars, seconds)
        case CostBy.KIND:
            yield _Share(charge.kind.value, charge.dollars, seconds)
        case CostBy.TAG:
            for tag in sorted(set(tags.get(charge.job, ()))) or [""]:
                yield _Share(tag, charge.dollars, seconds)
        case CostBy.DAY:
            yield from _days(charge, seconds)
        case _:
            assert_never(by)


def _days(charge: Charge, seconds: float) -> Iterator[_Share]:
    """By the time it ran on each day: what it cost from hour to hour is not in the bill."""
    first = math.floor(charge.from_at / _DAY_S)
    last = max(first, math.ceil(charge.to_at / _DAY_S) - 1)
    if first == last:
        yield _Share(_day(first), charge.dollars, seconds)
        return
    for day in range(first, last + 1):
        begun = max(charge.from_at, day * _DAY_S)
        ended = min(charge.to_at, (day + 1) * _DAY_S)
        yield _Share(_day(day), charge.dollars * (ended - begun) / seconds, ended - begun)


def _day(number: int) -> str:
    return datetime.fromtimestamp(number * _DAY_S, UTC).date().isoformat()

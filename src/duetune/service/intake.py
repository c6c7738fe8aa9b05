"""Measurements of others, and of campaigns, taken into the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.knowledge.history import History
from duetune.knowledge.quality import noted
from duetune.knowledge.tables import Imported
from duetune.profiling.journal import read_observations
from duetune.service.histories import import_measurements

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duetune.store.store import Store

FIRST_REASONS = 5


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Of what was read, ``new`` rows were not known; ``quarantined`` are kept but not learnt from,
    ``left_out`` could not be understood: how many, and the first reasons.
    """

    place: str
    read: int
    new: int
    quarantined: int
    quarantine_reasons: dict[str, int]
    left_out: int
    left_out_reasons: tuple[str, ...]


def read_measurements(place: str, given: Mapping[str, str] | None = None) -> Imported:
    """All that is imported, and what ``duetune profile`` writes."""
    if Path(place).suffix.casefold() not in {".jsonl", ".ndjson"}:
        return import_measurements(place, given)
    return Imported(History(noted(read_observations(Path(place)))), ())


def read_places(
    places: Sequence[str], given: Mapping[str, str] | None = None
) -> tuple[tuple[str, Imported], ...]:
    return tuple((place, read_measurements(place, given)) for place in places)


def take_in(store: Store, read: Sequence[tuple[str, Imported]]) -> tuple[Taken, ...]:
    """All is written, or nothing."""
    known = set(store.observations.history().keys)
    told = []
    new = []
    for place, (history, left_out) in read:
        fresh = [each for each in history if each.key not in known]
        fresh = list({each.key: each for each in fresh}.values())
        known |= {each.key for each in fresh}
        new += fresh
        odd = history.quarantined
        reasons: dict[str, int] = {}
        for each in odd:
            reason = each.reason.split(":")[0]
            reasons[reason] = reasons.get(reason, 0) + 1
        told.append(
            Taken(
                place=place,
                read=len(history),
                new=len(fresh),
                quarantined=len(odd),
                quarantine_reasons=reasons,
                left_out=len(left_out),
                left_out_reasons=tuple(
                    f"row {each.row}: {each.reason}" for each in left_out[:FIRST_REASONS]
                ),
            )
        )
    store.observations.record_all(new)
    return tuple(told)

"""Measurements of others, and of campaigns, taken into the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.interop.history_files_in import import_measurements
from duetune.interop.import_runs.recognise import no_given
from duetune.knowledge.history import History
from duetune.knowledge.measure.campaign_file import read_observations
from duetune.knowledge.model.quality import noted
from duetune.knowledge.text_tables import ImportedRuns, given_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.observation import Observation
    from duetune.store.store import Store

FIRST_REASONS = 5
CONTRADICTION = 3.0


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Of what was read, ``new`` rows were not known; ``quarantined`` are kept but not learnt from,
    ``left_out`` could not be understood: how many, and the first reasons. ``contradicting`` are
    configurations of which some run was several times as fast as another.
    """

    place: str
    read: int
    new: int
    contradicting: int
    quarantined: int
    quarantine_reasons: dict[str, int]
    left_out: int
    left_out_reasons: tuple[str, ...]


def read_measurements(place: str, given: Mapping[str, str] | None = None) -> ImportedRuns:
    """All that is imported, and what ``duetune profile`` writes."""
    given_fields(given or {})
    if Path(place).suffix.casefold() not in {".jsonl", ".ndjson"}:
        return import_measurements(place, given)
    no_given(Path(place), given)
    return ImportedRuns(History(noted(read_observations(Path(place)))), ())


def read_places(
    places: Sequence[str], given: Mapping[str, str] | None = None
) -> tuple[tuple[str, ImportedRuns], ...]:
    return tuple((place, read_measurements(place, given)) for place in places)


def take_in(store: Store, read: Sequence[tuple[str, ImportedRuns]]) -> tuple[Taken, ...]:
    """All is written, or nothing."""
    before = store.observations.history()
    known = set(before.keys)
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
                contradicting=_contradicting(history.plausible, History((*before, *new)).plausible),
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


def _contradicting(read: History, known: Iterable[Observation]) -> int:
    """How many configurations of what was read have paces too far apart to be both true."""
    paces: dict[Configuration, list[float]] = {each.configuration: [] for each in read}
    for each in (*read, *known):
        if each.tokens_per_s is not None and each.configuration in paces:
            paces[each.configuration].append(each.tokens_per_s)
    return sum(max(each) > CONTRADICTION * min(each) for each in paces.values() if each)

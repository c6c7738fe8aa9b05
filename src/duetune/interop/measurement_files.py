"""Files of measurements for the command line: read, take into the store, and export.

Besides what ``import_runs`` reads, these may be Parquet files and what ``duetune profile`` writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput, MissingExtra
from duetune.files import output_file, whole_file
from duetune.interop.import_runs.recognise import import_history, imported_table, no_given
from duetune.knowledge.history import History
from duetune.knowledge.history_files import COLUMNS, write_history
from duetune.knowledge.measure.campaign_file import read_observations
from duetune.knowledge.model.quality import noted
from duetune.knowledge.text_tables import ImportedRuns, Table, given_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.observation import Observation
    from duetune.store.store import Store


PARQUET = ".parquet"


def import_measurements(place: Path | str, given: Mapping[str, str] | None = None) -> ImportedRuns:
    """Return the measurements of a file, as ``import_history``; tables may also be Parquet."""
    path = Path(place)
    if path.suffix.casefold() != PARQUET or not path.is_file():
        return import_history(path, given)
    no_given(path, given)
    try:
        import polars as pl  # noqa: PLC0415 - an optional part, and slow to import
    except ImportError:
        raise MissingExtra("reading Parquet files", "parquet") from None
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InvalidInput("history", str(path), f"a readable Parquet file ({reason})") from None
    lines = tuple(tuple(_text(cell) for cell in row) for row in frame.iter_rows())
    return imported_table(Table(path.name, tuple(frame.columns), lines))


def export_measurements(path: Path | str, history: History) -> None:
    """Write a history to a file; as Parquet if its name ends so."""
    target = output_file("history", path)
    if Path(path).suffix.casefold() != PARQUET:
        write_history(path, history)
        return
    try:
        import polars as pl  # noqa: PLC0415 - an optional part, and slow to import
    except ImportError:
        raise MissingExtra("writing Parquet files", "parquet") from None
    rows = []
    for each in history:
        values = msgspec.to_builtins(each)
        values |= values.pop("configuration")
        rows.append({**values, "flags": ";".join(values["flags"])})
    columns = {column: [row[column] for row in rows] for column in COLUMNS}
    with whole_file(target, "history") as draft:
        pl.DataFrame(columns, strict=False).write_parquet(draft)


def _text(cell: object) -> str:
    """Return a cell of a Parquet table as text."""
    if cell is None:
        return ""
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


FIRST_REASONS = 5
CONTRADICTION = 3.0


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken from one file or folder.

    - ``new`` of the ``read`` rows were not in the store before.
    - ``quarantined`` rows are stored but not learnt from; ``quarantine_reasons`` counts them by
      reason.
    - ``left_out`` rows could not be understood; the first reasons are given.
    - ``contradicting`` counts configurations whose fastest run is several times as fast as the
      slowest.
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
    """Return the measurements of any file or folder that duetune can read."""
    given_fields(given or {})
    if Path(place).suffix.casefold() not in {".jsonl", ".ndjson"}:
        return import_measurements(place, given)
    no_given(Path(place), given)
    return ImportedRuns(History(noted(read_observations(Path(place)))), ())


def read_places(
    places: Sequence[str], given: Mapping[str, str] | None = None
) -> tuple[tuple[str, ImportedRuns], ...]:
    """Return the measurements of each place, before anything is stored."""
    return tuple((place, read_measurements(place, given)) for place in places)


def take_in(store: Store, read: Sequence[tuple[str, ImportedRuns]]) -> tuple[Taken, ...]:
    """Store all new measurements, or none, and return what was taken from each place."""
    before = store.observations.history()
    known = set(before.keys)
    taken = []
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
        taken.append(
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
    return tuple(taken)


def _contradicting(read: History, known: Iterable[Observation]) -> int:
    """Return how many read configurations have throughputs too far apart to be both true."""
    paces: dict[Configuration, list[float]] = {each.configuration: [] for each in read}
    for each in (*read, *known):
        if each.tokens_per_s is not None and each.configuration in paces:
            paces[each.configuration].append(each.tokens_per_s)
    return sum(max(each) > CONTRADICTION * min(each) for each in paces.values() if each)

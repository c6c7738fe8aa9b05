"""A world from a table of paces that a user has: published workloads with their profiles.

A CSV file with a header, or a JSON list of objects with the same names. Every row has an
``application`` and is one of three kinds:

- a pace, with ``gpu_model``, ``num_gpus``, ``batch_size`` and ``pace`` (work per second; 0 if it
  runs out of memory); optional are ``num_nodes`` and ``memory_gb`` (needed on each GPU);
- an efficiency, with ``batch_size`` and ``efficiency`` (the share of the pace that counts), which
  holds from ``progress`` on (the share of the work that is done; 0 if empty);
- the application itself, with ``restart_s`` (seconds of a start or a move), ``work``, or both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configuration, Method, Sharding
from duetune.knowledge.facts.gpus import GPUS, gpu_name
from duetune.knowledge.history import History
from duetune.knowledge.listed_space import Listing
from duetune.knowledge.observation import Observation, Origin, RunOutcome
from duetune.knowledge.sources.estimating import known_model
from duetune.knowledge.sources.past_runs import OracleSource
from duetune.knowledge.text_tables import Table, read_table
from duetune.simulate.cluster.cluster_world import ClusterWorld
from duetune.simulate.cluster.efficiency import EfficiencyTable
from duetune.simulate.cluster.workload import WorkloadKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from duetune.core.planning import DeclaredGpu, Stock
    from duetune.knowledge.text_tables import TableRow

Key = TypeVar("Key")
Item = TypeVar("Item")

HOW = "pace table"
COLUMNS = (
    *("application", "gpu_model", "num_gpus", "num_nodes", "batch_size", "pace", "memory_gb"),
    *("progress", "efficiency", "restart_s", "work"),
)
_OF_PACES = ("num_gpus", "num_nodes", "pace", "memory_gb")


class PaceRow(msgspec.Struct, frozen=True, kw_only=True):
    """The pace of an application; ``num_nodes`` 0 means any number, ``row`` is that of the file."""

    row: int
    application: str
    gpu_model: str
    num_gpus: int
    num_nodes: int
    batch_size: int
    pace: float
    memory_gb: float


class PaceTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that was read. ``restart_s`` and ``work`` are by application, where given."""

    file: str
    paces: tuple[PaceRow, ...]
    efficiency: EfficiencyTable
    restart_s: dict[str, float]
    work: dict[str, float]


def read_paces(path: Path) -> PaceTable:
    """Return the table of a CSV or JSON file; raise ``InvalidInput`` with row and column."""
    table = _json_table(path) if path.suffix.casefold() == ".json" else read_table(path, "paces")
    unknown = [each for each in table.header if each not in COLUMNS]
    if unknown:
        raise InvalidInput(f"columns of {table.file}", unknown, f"only {', '.join(COLUMNS)}")
    paces: dict[tuple[object, ...], PaceRow] = {}
    steps: dict[tuple[str, int], dict[float, float]] = {}
    facts: dict[str, dict[str, float]] = {"restart_s": {}, "work": {}}

    def take(row: TableRow) -> None:
        application = known_model(row.needed("application"))
        if row.has("gpu_model"):
            found = _pace(row, application)
            key = (application, found.gpu_model, found.num_gpus, found.num_nodes, found.batch_size)
            _once(paces, key, found, "batch_size", found.batch_size)
            return
        for column in _OF_PACES:
            if row.has(column):
                raise InvalidInput("gpu_model", "", f"a GPU, since the row has a {column}")
        if row.has("efficiency"):
            progress = _between(row, "progress", 0.0, "a share of the work, 0 or more, below 1")
            efficiency = _between(row, "efficiency", None, "a share, above 0, at most 1")
            known = steps.setdefault((application, _count(row, "batch_size")), {})
            _once(known, progress, efficiency, "progress", progress)
            return
        given = [column for column in facts if row.has(column)]
        if not given:
            raise InvalidInput("pace", "", "a pace, an efficiency, a restart_s or a work")
        for column in given:
            number = row.number_of(column) or 0.0
            if number < 0 or (column == "work" and number == 0):
                least = "above 0" if column == "work" else "0 or more"
                raise InvalidInput(column, row.raw(column), f"a number, {least}")
            _once(facts[column], application, number, column, application)

    table.read(take)
    if not paces:
        raise InvalidInput("paces", table.file, "at least one row with a gpu_model and a pace")
    efficiency = {key: tuple(sorted(known.items())) for key, known in steps.items()}
    return PaceTable(
        file=table.file,
        paces=tuple(paces.values()),
        efficiency=EfficiencyTable(efficiency),
        **facts,
    )


def world_of_paces(
    table: PaceTable,
    stock: Stock,
    declared: Mapping[str, DeclaredGpu] | None = None,
    *,
    seed: int = 0,
) -> ClusterWorld:
    """Return the world of a table on this stock. Sources start with a random half of its rows."""
    declared = declared or {}
    runs = [
        Observation(
            configuration=configuration,
            outcome=RunOutcome.VALID if pace > 0 else RunOutcome.OOM,
            tokens_per_s=pace if pace > 0 else None,
            origin=Origin.CAMPAIGN,
            provenance=f"{table.file}:{row}",
        )
        for configuration, pace, row in _configurations(table, stock, declared)
    ]
    gpus = " or ".join(dict.fromkeys(each.gpu_model for each in stock.partitions))
    if not any(run.outcome is RunOutcome.VALID for run in runs):
        raise InvalidInput("paces", table.file, f"paces on shapes of this cluster: {gpus}")
    history = History(runs)
    if history.quarantined:
        odd = history.quarantined[0]
        where = f"pace in row {odd.observation.provenance.rpartition(':')[2]} of {table.file}"
        raise InvalidInput(where, odd.observation.tokens_per_s, f"a believable pace: {odd.reason}")
    drawn = np.random.default_rng(seed).permutation(len(runs))[: (len(runs) + 1) // 2]
    return ClusterWorld(
        HOW,
        OracleSource(history),
        Listing.of(each.configuration for each in runs),
        History(runs[int(row)] for row in np.sort(drawn)),
        _kinds(table, runs),
        table.efficiency if table.efficiency.steps else None,
    )


def _kinds(table: PaceTable, runs: list[Observation]) -> tuple[WorkloadKind, ...]:
    """Return each application that runs on this cluster as a kind of job."""
    paces: dict[str, list[tuple[int, float]]] = {}
    for run in runs:
        if run.tokens_per_s is not None:
            goodput = run.tokens_per_s * table.efficiency.mean(run.configuration)
            paces.setdefault(run.configuration.model, []).append(
                (run.configuration.num_gpus, goodput)
            )
    return tuple(
        WorkloadKind(
            {"model": application},
            float(np.median([pace for _, pace in known])),
            tuple(sorted({gpus for gpus, _ in known})),
            restart_s=table.restart_s.get(application),
            work=table.work.get(application),
        )
        for application, known in paces.items()
    )


def _configurations(
    table: PaceTable, stock: Stock, declared: Mapping[str, DeclaredGpu]
) -> Iterator[tuple[Configuration, float, int]]:
    """Yield each configuration with a shape on this stock, its pace and its row of the file."""
    with_rows = {each.gpu_model for each in table.paces}
    for gpu in dict.fromkeys(each.gpu_model for each in stock.partitions):
        mine = declared.get(gpu)
        like = gpu_name(mine.like) or mine.like if mine is not None else ""
        copied = gpu not in with_rows and like != ""
        speed = mine.speed if mine is not None and copied else 1.0
        memory = mine.memory_gb if mine is not None else GPUS[gpu].memory_gb
        rows = [each for each in table.paces if each.gpu_model == (like if copied else gpu)]
        exact = {(e.application, e.num_gpus, e.num_nodes, e.batch_size) for e in rows}
        for each in rows:
            for _, gpus, nodes in (key for key in stock.alike if key[0] == gpu):
                stated = (each.application, gpus, nodes, each.batch_size) in exact
                if gpus != each.num_gpus or each.num_nodes not in {0, nodes}:
                    continue
                if each.num_nodes == 0 and stated:
                    continue  # The row that names the number of nodes counts.
                fits = memory is None or each.memory_gb <= memory
                yield _configuration(each, gpu, nodes), speed * each.pace * fits, each.row


def _configuration(row: PaceRow, gpu: str, nodes: int) -> Configuration:
    return Configuration(
        model=row.application,
        method=Method.FULL,
        gpu_model=gpu,
        num_gpus=row.num_gpus,
        num_nodes=nodes,
        batch_size=row.batch_size,
        tokens_per_sample=1,
        sharding=Sharding.NONE if row.num_gpus == 1 else Sharding.DDP,
    )


def _pace(row: TableRow, application: str) -> PaceRow:
    for column in ("progress", "efficiency"):
        if row.has(column):
            raise InvalidInput(column, row.raw(column), "no value in a row with a gpu_model")
    gpus, batch = _count(row, "num_gpus"), _count(row, "batch_size")
    nodes = _count(row, "num_nodes") if row.has("num_nodes") else 0
    if batch % gpus:
        raise InvalidInput("batch_size", batch, f"a multiple of num_gpus, {gpus}")
    pace, memory = row.number_of("pace"), row.number_of("memory_gb") or 0.0
    if pace is None or pace < 0:
        raise InvalidInput("pace", row.raw("pace"), "work per second, 0 or more")
    if memory < 0:
        raise InvalidInput("memory_gb", row.raw("memory_gb"), "GB, 0 or more")
    gpu = row.needed("gpu_model")
    return PaceRow(
        row=row.number,
        application=application,
        gpu_model=gpu_name(gpu) or gpu,
        num_gpus=gpus,
        num_nodes=nodes,
        batch_size=batch,
        pace=pace,
        memory_gb=memory,
    )


def _count(row: TableRow, column: str) -> int:
    number = row.whole(column)
    if number < 1:
        raise InvalidInput(column, number, "a whole number, 1 or more")
    return number


def _between(row: TableRow, column: str, otherwise: float | None, allowed: str) -> float:
    """Return a share; ``progress`` may be 0 and not 1, an efficiency 1 and not 0."""
    number = row.number_of(column)
    if number is None and otherwise is not None:
        return otherwise
    inside = number is not None and 0 <= number <= 1
    if number is None or not inside or number == (1 if column == "progress" else 0):
        raise InvalidInput(column, row.raw(column), allowed)
    return number


def _once(known: dict[Key, Item], key: Key, item: Item, column: str, value: object) -> None:
    if key in known:
        raise InvalidInput(column, value, "what no other row states")
    known[key] = item


def _json_table(path: Path) -> Table:
    """Return a JSON list of objects as a table of texts, so that errors read as those of CSV."""
    try:
        rows = msgspec.json.decode(
            path.read_bytes(), type=list[dict[str, str | int | float | None]]
        )
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        allowed = f"a readable JSON file with a list of objects ({reason})"
        raise InvalidInput("paces", str(path), allowed) from None
    header = tuple(dict.fromkeys(name for row in rows for name in row))
    lines = tuple(
        tuple("" if row.get(name) is None else str(row[name]) for name in header) for row in rows
    )
    return Table(path.name, header, lines)

"""E4, E5 and the stream: how the error falls as more is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from duetune.knowledge.history import History
from duetune.knowledge.measure.active import information, positions, spread_out
from duetune.knowledge.observation import Origin
from duetune.registry.sources import source_named
from knowledge_baselines import OURS, SUBJECTS
from knowledge_data import groups, table
from knowledge_scoring import latin_rows, pace_error, random_splits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from knowledge_trials import Workers

    Index = NDArray[np.int64]

BATCH = 25
START_UP_S, MEASURE_S = 60.0, 120.0
"""What one measurement costs on each of its GPUs."""

STRATEGIES = ("random", "Latin hypercube", "active")
TARGETS = (0.11, 0.09, 0.07)
PROBES = (0, 5, 10, 20)


class CurvePoint(msgspec.Struct, frozen=True):
    """Mean errors over the repeats; ``gpu_s`` is the cost of the training rows."""

    table: str
    subject: str
    strategy: str
    samples: int
    mape: float
    mdape: float
    gpu_s: float
    repeats: int


class CurveTask(NamedTuple):
    """What one process runs of E4."""

    table: str
    rows: Index
    subject: str
    strategy: str
    seed: int
    sizes: tuple[int, ...]


class _Point(NamedTuple):
    samples: int
    mape: float
    mdape: float
    gpu_s: float


def run_curve(task: CurveTask) -> list[_Point]:
    """Run one seed of E4; the same 15% are held out for every strategy and size."""
    history = table(task.table)
    split = random_splits(task.rows, 0.15, range(task.seed, task.seed + 1))[0]
    random = np.random.default_rng([task.seed, 7])
    pool = split.train
    sizes = [size for size in task.sizes if size <= len(pool)]
    if task.strategy == "random":
        order = random.permutation(pool)
        chosen = [order[:size] for size in sizes]
    elif task.strategy == "Latin hypercube":
        chosen = [latin_rows(history, pool, size, random) for size in sizes]
    else:
        return _active(task, pool, split.test, sizes, random)
    return [_judged(task.subject, history, rows, split.test)[0] for rows in chosen]


def _active(
    task: CurveTask, pool: Index, test: Index, sizes: list[int], random: np.random.Generator
) -> list[_Point]:
    """Choose rows like a profiling campaign: what would teach most and is unlike the rest.

    The score is divided by the root of the cost, so that it does not choose only runs on one GPU.
    """
    history = table(task.table)
    chosen = latin_rows(history, pool, min(BATCH, len(pool)), random)
    points = []
    while True:
        point, estimate = _judged(task.subject, history, chosen, test)
        if len(chosen) in sizes:
            points.append(point)
        if len(chosen) >= max(sizes):
            return points
        free = np.setdiff1d(pool, chosen)
        asked = history.take(free).configurations
        taught = information(asked, estimate(asked), list(history.take(chosen)))
        worth = taught / np.sqrt(_cost(history, free))
        picked = spread_out(
            _places(history, free),
            worth,
            min(BATCH, max(sizes) - len(chosen)),
            _places(history, chosen),
        )
        chosen = np.sort(np.concatenate([chosen, free[picked]]))


def _places(history: History, rows: Index) -> NDArray[np.float64]:
    """Return the rows as a campaign on one GPU sees them, with GPU type and number."""
    them = history.configurations.take(rows)
    gpus = [np.sqrt(0.5) * them.is_("gpu_model", word) for word in them.labels["gpu_model"]]
    return np.column_stack([positions(them, them.labels), np.log2(them.number("num_gpus")), *gpus])


def _cost(history: History, rows: Index) -> NDArray[np.float64]:
    """Return GPU-seconds: as measured by a campaign, else three minutes per GPU."""
    seconds = [
        each.runtime_s
        if each.origin is Origin.CAMPAIGN and each.runtime_s
        else START_UP_S + MEASURE_S
        for each in history.take(rows)
    ]
    return history.configurations.number("num_gpus")[rows] * np.array(seconds)


def _judged(subject: str, history: History, rows: Index, test: Index) -> tuple[_Point, object]:
    estimate = SUBJECTS[subject](history.take(rows))
    held = history.take(test)
    error = pace_error(held.tokens_per_s, estimate(held.configurations).tokens_per_s[:, 1])
    cost = float(_cost(history, rows).sum())
    return _Point(len(rows), error.mape, error.mdape, cost), estimate


def learning_curves(
    name: str,
    rows: Index,
    label: str,
    plans: list[tuple[str, str]],
    workers: Workers,
    *,
    repeats: int,
    sizes: tuple[int, ...],
) -> list[CurvePoint]:
    """Run E4; ``plans`` are pairs of subject and strategy."""
    tasks = [
        CurveTask(name, rows, subject, strategy, seed, sizes)
        for subject, strategy in plans
        for seed in range(repeats)
    ]
    done = workers.map(run_curve, tasks, f"learning curve: {label}")
    found = []
    for subject, strategy in plans:
        mine = [
            points
            for task, points in zip(tasks, done, strict=True)
            if (task.subject, task.strategy) == (subject, strategy)
        ]
        for at in zip(*mine, strict=True):
            found.append(  # noqa: PERF401 - a comprehension of three loops reads worse
                CurvePoint(
                    table=label,
                    subject=subject,
                    strategy=strategy,
                    samples=at[0].samples,
                    mape=float(np.mean([point.mape for point in at])),
                    mdape=float(np.mean([point.mdape for point in at])),
                    gpu_s=float(np.mean([point.gpu_s for point in at])),
                    repeats=len(at),
                )
            )
    return found


def samples_to_target(
    points: list[CurvePoint],
    table_label: str,
    strategy: str,
    target: float,
    subject: str = OURS,
) -> tuple[int | None, float | None]:
    """Return the smallest size with at most this mean error, and its cost in GPU-seconds,
    interpolated between two sizes.
    """
    mine = sorted(
        (
            point
            for point in points
            if (point.table, point.strategy, point.subject) == (table_label, strategy, subject)
        ),
        key=lambda point: point.samples,
    )
    for place, point in enumerate(mine):
        if point.mape <= target:
            if place == 0:
                return point.samples, point.gpu_s
            before = mine[place - 1]
            share = (before.mape - target) / (before.mape - point.mape)
            return point.samples, before.gpu_s + share * (point.gpu_s - before.gpu_s)
    return None, None


# Leave one out


class Transfer(msgspec.Struct, frozen=True):
    """Mean absolute percentage error by number of probes of what was left out."""

    table: str
    field: str
    value: str
    subject: str
    rows: int
    mape: dict[int, float]


class TransferTask(NamedTuple):
    """What one process runs of E5."""

    table: str
    rows: Index
    field: str
    value: str
    subject: str
    seed: int


def run_transfer(task: TransferTask) -> dict[int, float]:
    """Run one seed of E5, judged on rows that are never a probe."""
    history = table(task.table)
    mine = groups(history, task.field)[task.rows] == task.value
    held = np.random.default_rng([task.seed, 3]).permutation(task.rows[mine])
    most = max((k for k in PROBES if k <= len(held) // 2), default=0)
    test = held[most:]
    found = {}
    for probes in PROBES:
        if probes <= most:
            rows = np.sort(np.concatenate([task.rows[~mine], held[:probes]]))
            found[probes] = _judged(task.subject, history, rows, test)[0].mape
    return found


def transfers(
    name: str,
    rows: Index,
    label: str,
    fields: tuple[str, ...],
    subjects: tuple[str, ...],
    workers: Workers,
    *,
    repeats: int,
) -> list[Transfer]:
    """Run E5 for each value of each field."""
    history = table(name)
    tasks = []
    for field in fields:
        values, counts = np.unique(groups(history, field)[rows], return_counts=True)
        if len(values) < 2:
            continue
        tasks += [
            TransferTask(name, rows, field, str(value), subject, seed)
            for value, count in zip(values, counts, strict=True)
            if count >= 10
            for subject in subjects
            for seed in range(repeats)
        ]
    done = workers.map(run_transfer, tasks, f"left out: {label}")
    kept: dict[tuple[str, str, str], list[dict[int, float]]] = {}
    for task, result in zip(tasks, done, strict=True):
        kept.setdefault((task.field, task.value, task.subject), []).append(result)
    return [
        Transfer(
            table=label,
            field=field,
            value=value,
            subject=subject,
            rows=int((groups(history, field)[rows] == value).sum()),
            mape={k: float(np.mean([each[k] for each in results])) for k in results[0]},
        )
        for (field, value, subject), results in kept.items()
    ]


# Stream


class StreamPoint(msgspec.Struct, frozen=True):
    """Errors on the next 25 runs after ``seen`` runs were written back.

    ``validity`` is an error rate, NaN where all runs were valid.
    """

    table: str
    seen: int
    mape: float
    mdape: float
    validity: float


class StreamTask(NamedTuple):
    """What one process runs of the stream."""

    table: str
    rows: Index
    seed: int
    most: int


def run_stream(task: StreamTask) -> list[tuple[int, float, float, float]]:
    """Predict, run and write back (``observe``) batches of runs in random order."""
    history = table(task.table)
    order = np.random.default_rng([task.seed, 11]).permutation(task.rows)[: task.most + BATCH]
    source = source_named("hybrid", History.empty())
    points = []
    for start in range(0, len(order) - BATCH + 1, BATCH):
        batch = history.take(order[start : start + BATCH])
        found = source.query(batch.configurations)
        known = np.isfinite(batch.tokens_per_s)
        error = pace_error(batch.tokens_per_s[known], found.tokens_per_s[known, 1])
        wrong = float(np.mean((found.p_valid >= 0.5) != (batch.outcome == "valid")))
        points.append((start, error.mape, error.mdape, wrong))
        for each in batch:
            source.observe(each)
    return points


def stream(
    name: str, rows: Index, label: str, workers: Workers, *, repeats: int, most: int = 400
) -> list[StreamPoint]:
    """Run the stream and return mean errors by the number of runs seen."""
    tasks = [StreamTask(name, rows, seed, most) for seed in range(repeats)]
    done = workers.map(run_stream, tasks, f"stream: {label}")
    return [
        StreamPoint(
            table=label,
            seen=at[0][0],
            mape=float(np.nanmean([each[1] for each in at])),
            mdape=float(np.nanmean([each[2] for each in at])),
            validity=float(np.nanmean([each[3] for each in at])),
        )
        for at in zip(*done, strict=True)
    ]

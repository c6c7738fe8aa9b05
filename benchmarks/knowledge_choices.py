"""E6 and speed: what a source chooses among measured configurations, and how fast it answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.configurations.space_files import read_space
from duetune.knowledge.model.learned_model import KnowledgeModel
from duetune.knowledge.observation import RunOutcome
from duetune.knowledge.sources.knowledge_source import Limits, Objective
from duetune.knowledge.sources.learned import HybridSource
from duetune.registry.sources import source_named
from knowledge_data import groups, labelled_rows, peer_row, plausible_rows, table
from knowledge_peers import COASTLINE, KAVIER, Unavailable, ask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.history import History
    from knowledge_errors import PeerNotes
    from knowledge_trials import Workers

    Index = NDArray[np.int64]

SOURCES = ("hybrid", "regression", "analytic", "nearest", "default", "random")
FEWEST = 8
CELL = ("model", "method", "tokens_per_sample")
TIMED_POINTS = 1000


class Choice(NamedTuple):
    """One choice; ``regret`` is 1 - chosen / best, NaN if the chosen one does not fit."""

    source: str
    candidates: str
    regret: float
    outcome: str


class ChoiceLine(msgspec.Struct, frozen=True):
    """The choices of one source on one table."""

    table: str
    source: str
    candidates: str
    cells: int
    choices: int
    median_regret: float
    mean_regret: float
    invalid: float
    undecided: float


class ChoiceTask(NamedTuple):
    """What one process runs: a source, a table and a seed."""

    table: str
    source: str
    seed: int


def run_choices(task: ChoiceTask) -> list[Choice]:
    """Let a source learn from a random half of the rows and complete one job per cell.

    It chooses among all measured configurations of the cell, and among those it has not seen.
    """

    history = table(task.table)
    rows = np.intersect1d(labelled_rows(history), _believable(history))
    order = np.random.default_rng([task.seed, 5]).permutation(rows)
    half = np.sort(order[: len(order) // 2])
    source = source_named(task.source, history.take(half), seed=task.seed)
    cell = groups(history, *CELL)
    found = []
    for name in np.unique(cell[rows]):
        mine = rows[cell[rows] == name]
        if len(mine) < FEWEST:
            continue
        unseen = np.setdiff1d(mine, half)
        for candidates, chosen_from in (("all measured", mine), ("unseen only", unseen)):
            best = _best(history, chosen_from)
            if len(chosen_from) >= FEWEST // 2 and best is not None:
                found.append(_choice(task, history, source, chosen_from, best, candidates))
    return found


def _believable(history: History) -> Index:
    """Return rows without those that imply too much arithmetic: each would be the best."""
    failed = np.flatnonzero(history.outcome != RunOutcome.VALID)
    return np.union1d(plausible_rows(history), failed)


def _best(history: History, rows: Index) -> float | None:
    pace = history.tokens_per_s[rows][history.outcome[rows] == RunOutcome.VALID]
    pace = pace[np.isfinite(pace)]
    return float(pace.max()) if len(pace) else None


class MeasuredSpace:
    """The part of a ``Space`` that ``complete`` uses, with measured configurations only."""

    def __init__(self, configurations: list[Configuration]) -> None:
        self._points = Configurations.of(configurations)

    def given(self, _partial: dict[str, object]) -> MeasuredSpace:
        return self

    def enumerate(self) -> list[Configurations]:
        return [self._points]


def _choice(
    task: ChoiceTask, history: History, source: object, rows: Index, best: float, candidates: str
) -> Choice:
    measured = {history[row].configuration: row for row in rows.tolist()}
    first = next(iter(measured))
    given = {field: getattr(first, field) for field in CELL}
    space = MeasuredSpace(list(measured))
    ranking = source.complete(given, space, Objective.FASTEST, Limits(top=1))
    if not ranking.candidates:
        return Choice(task.source, candidates, float("nan"), "undecided")
    row = measured[ranking.candidates[0].configuration]
    outcome = str(history.outcome[row])
    valid = outcome == RunOutcome.VALID
    regret = 1.0 - float(history.tokens_per_s[row]) / best if valid else float("nan")
    return Choice(task.source, candidates, regret, outcome)


def choices(name: str, label: str, workers: Workers, *, repeats: int) -> list[ChoiceLine]:
    """Run E6 on one table and return one line per source."""
    tasks = [ChoiceTask(name, source, seed) for source in SOURCES for seed in range(repeats)]
    done = workers.map(run_choices, tasks, f"choices: {label}")
    flat = [each for part in done for each in part]
    lines = []
    for candidates in ("all measured", "unseen only"):
        for source in SOURCES:
            mine = [each for each in flat if (each.source, each.candidates) == (source, candidates)]
            if not mine:
                continue
            decided = [each for each in mine if each.outcome != "undecided"]
            regrets = [each.regret for each in decided if np.isfinite(each.regret)]
            lines.append(
                ChoiceLine(
                    table=label,
                    source=source,
                    candidates=candidates,
                    cells=len(mine) // repeats,
                    choices=len(decided),
                    median_regret=float(np.median(regrets)) if regrets else float("nan"),
                    mean_regret=float(np.mean(regrets)) if regrets else float("nan"),
                    invalid=_share([each.outcome != RunOutcome.VALID for each in decided]),
                    undecided=1.0 - len(decided) / len(mine),
                )
            )
    return lines


def _share(flags: list[bool]) -> float:
    return float(np.mean(flags)) if flags else float("nan")


# Speed


class Speed(msgspec.Struct, frozen=True):
    """Seconds on one core: to load, for all ``points`` with the model alone, with the hybrid
    source, with ``complete`` and its ranking, and for 1,000 points with the hybrid source.
    """

    points: int
    load: float
    model: float
    query: float
    complete: float
    thousand: float
    peers: dict[str, float]
    """Seconds for each point, of the peers and on the same points."""


def speed(name: str, notes: PeerNotes, *, install: bool, peers: bool) -> Speed:
    """Time the poster's space with a fitted model that a new process loads."""

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model.npz"
        KnowledgeModel.fit(table(name)).save(place)
        done = subprocess.run(
            [sys.executable, __file__, name, place],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
        )
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    per_point: dict[str, float] = {}
    if peers:
        points = read_space("poster").points()
        chosen = np.random.default_rng(0).choice(len(points), TIMED_POINTS, replace=False)
        rows = [peer_row(each) for each in points.take(np.sort(chosen))]
        for peer, asked in (
            (KAVIER, {"rows": rows, "repeat": 3}),
            (COASTLINE, {"rows": rows, "models": ["intelligent", "xgboost", "catboost"]}),
        ):
            try:
                answer = ask(peer, asked, install=install, keep=False)
                per_point |= answer.seconds_per_point
            except Unavailable as reason:
                notes.unavailable[peer.name] = str(reason)
    return Speed(peers=per_point, **figures)


def _measure(name: str, place: Path) -> dict[str, float]:
    """Time queries after loading, with compiled code and history ready."""

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    space = read_space("poster")
    points = space.points()
    few = points.take(np.arange(0, len(points), max(1, len(points) // TIMED_POINTS))[:TIMED_POINTS])
    history = table(name)
    began = time.perf_counter()
    model = KnowledgeModel.load(place)
    source = HybridSource(history, model=model)
    source.query(few)
    load = time.perf_counter() - began
    return {
        "points": len(points),
        "load": load,
        "model": _quickest(lambda: model.estimate(points), 5),
        "query": _quickest(lambda: source.query(points), 5),
        "complete": _quickest(lambda: source.complete({}, space, Objective.FASTEST, Limits()), 5),
        "thousand": _quickest(lambda: source.query(few), 20),
    }


def _quickest(work: object, times: int) -> float:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], Path(sys.argv[2]))))

"""One simulation of the cluster benchmark, many of them on two processes, and their statistics.

Trials of one seed have the same jobs for every planner and source, so differences are taken seed by
seed. Intervals are from a bootstrap over seeds.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress

from cluster_worlds import MARKETS, Prepared, half_stock, spot_markets, spot_stock
from duetune.registry.planners import planner_named
from duetune.simulate.cluster.cluster_outcome import Figures
from duetune.simulate.cluster.cluster_world import usual_stock
from duetune.simulate.cluster.trial import Cluster, interval, redrawn
from duetune.simulate.cluster.workload import poisson_arrivals, workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from duetune.knowledge.sources.knowledge_source import KnowledgeSource
    from duetune.simulate.cluster.cluster_outcome import ClusterOutcome

PROCESSES = 2


class Trial(msgspec.Struct, frozen=True):
    """What one simulation runs.

    ``supply``: "usual" GPUs, the "fixed" half of them, or that half with a "real" or "synthetic"
    spot market. ``slack`` bounds deadlines, if there are any; ``burst`` jobs arrive at once.
    """

    world: str
    planner: str
    source: str
    load: float
    seed: int
    supply: str = "usual"
    slack: tuple[float, float] | None = None
    burst: float = 1.0


class Middle(NamedTuple):
    """A mean with its 95% interval."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.0%} ({self.low:.0%} to {self.high:.0%})"


PREPARED: dict[str, Prepared] = {}
"""Filled before processes are started, which then share it."""


def outcome_of(
    trial: Trial,
    *,
    jobs: int | None = None,
    source: KnowledgeSource | None = None,
    learning: bool = False,
) -> ClusterOutcome:
    """Simulate a trial; ``source`` replaces the one that the trial names, and may learn."""
    prepared = PREPARED[trial.world]
    world, setting = prepared.world(trial.seed), prepared.setting
    random = np.random.default_rng(trial.seed)
    arrivals = poisson_arrivals(jobs or setting.jobs, trial.load, random, burst=trial.burst)
    submitted = workload(world.kinds, arrivals, random, slack=trial.slack)
    if trial.supply in MARKETS:
        stock, markets = spot_stock(), spot_markets(trial.seed, trial.supply)
    else:
        stock, markets = half_stock() if trial.supply == "fixed" else usual_stock(), {}
    return Cluster(stock, world, markets, setting.delays).simulate(
        submitted,
        planner_named(trial.planner),
        source or prepared.source(trial.source, trial.seed),
        learning=learning,
        truth=prepared.truth(trial.seed),
    )


class Result(msgspec.Struct, frozen=True):
    """The figures of a trial; ``late`` are the jobs that missed their deadline."""

    trial: Trial
    figures: Figures
    late: tuple[str, ...] = ()


def result_of(trial: Trial) -> Result:
    """Simulate a trial and return its figures."""
    outcome = outcome_of(trial)
    return Result(trial, outcome.figures(), tuple(each.name for each in outcome.jobs if each.late))


def kept(path: Path | None) -> dict[Trial, Result]:
    """Return the results that an earlier run left in a file.

    A line that is cut off, or has a figure that is not a number, counts as not done.
    """
    found = {}
    for line in path.read_bytes().splitlines() if path is not None and path.is_file() else ():
        with suppress(msgspec.DecodeError):
            result = msgspec.json.decode(line, type=Result)
            found[result.trial] = result
    return found


def run_trials(trials: Iterable[Trial], label: str, keep: Path | None) -> dict[Trial, Result]:
    """Run trials, the longest first: those without knowledge. Each result is written as soon as it
    is there.
    """
    results = kept(keep)
    wanted = sorted((each for each in dict.fromkeys(trials) if each not in results), key=_cheap)
    with (
        nullcontext() if keep is None else keep.open("ab", buffering=0) as file,
        Progress(console=Console(stderr=True), transient=True) as progress,
        ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("fork")) as pool,
    ):
        task = progress.add_task(label, total=len(wanted))
        for result in pool.map(result_of, wanted, chunksize=1):
            results[result.trial] = result
            if file is not None:
                file.write(msgspec.json.encode(result) + b"\n")
            progress.advance(task)
    return results


def _cheap(trial: Trial) -> tuple[bool, bool, float]:
    return (
        trial.planner.startswith("fifo"),
        trial.source not in {"random", "default"},
        -trial.load,
    )


def over_seeds(
    results: Mapping[Trial, Result], trial: Trial, seeds: Sequence[int], field: str = "mean_jct_h"
) -> NDArray[np.float64]:
    """Return a figure of a trial for each seed."""
    found = (results[msgspec.structs.replace(trial, seed=seed)].figures for seed in seeds)
    return np.array([getattr(each, field) for each in found], np.float64)


def reduction(baseline: NDArray[np.float64], other: NDArray[np.float64]) -> Middle:
    """Return by how much the mean of ``other`` is below that of the baseline."""
    drawn = redrawn(len(baseline))
    within = interval(1 - other[drawn].mean(axis=1) / baseline[drawn].mean(axis=1))
    return Middle(within.low, float(1 - other.mean() / baseline.mean()), within.high)


def mean_of(values: NDArray[np.float64]) -> Middle:
    """Return the mean with its interval."""
    within = interval(values[redrawn(len(values))].mean(axis=1))
    return Middle(within.low, float(values.mean()), within.high)

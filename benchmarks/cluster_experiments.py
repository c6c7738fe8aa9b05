"""Which simulations each experiment needs, and the figures computed from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from cluster_trials import (
    PREPARED,
    Middle,
    Result,
    Trial,
    mean_of,
    outcome_of,
    over_seeds,
    reduction,
)
from cluster_worlds import EMULATED, MARKETS, REPLAY, REPLAY_ALL
from duetune.knowledge.history import History
from duetune.knowledge.sources.learned import HybridSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Results = dict[Trial, Result]

WORLDS = (REPLAY, EMULATED)
LOADS = (12, 24, 60, 120)
FIFO, SIA, OURS = "fifo", "sia", "tutti"
PLANNERS = (FIFO, "fifo:backfill", "srt", "edf", SIA, OURS)
UNWEIGHED = "tutti:20:0"
"""Our planner if GPU-hours count nothing beyond their price."""

JUDGED = (FIFO, SIA, OURS)
"""Planners that are compared with themselves, were they to know the truth."""

PREDICTED, ORACLE = "hybrid", "oracle"
SOURCES = ("random", "default", "analytic", "proportional", PREDICTED, ORACLE)
NOISES = ("0.1", "0.25", "0.5", "1")
WORSE = (
    *(f"noisy:{mape}" for mape in NOISES),
    *("biased:1", "share:0.25", "nothing", "partial:validity"),
)
BASELINES = ("random", "default")
UNUSUAL = ("slow", "slower", "large", "large-slower")
SLACK = (1.0, 4.0)
MARKET_LOAD = 24
BURST = 8.0
SUPPLIES = (
    *((planner, "fixed") for planner in (FIFO, SIA, "edf", OURS)),
    *((planner, kind) for kind in MARKETS for planner in (FIFO, SIA, "edf", OURS)),
)


class Plan(msgspec.Struct, frozen=True):
    """How many seeds, loads, settings and sources are run: full, or ``--quick``."""

    seeds: tuple[int, ...]
    few: tuple[int, ...]
    loads: tuple[int, ...]
    unusual: tuple[str, ...]
    worse: tuple[str, ...]


def of_sources(planner: str, plan: Plan) -> Iterator[Trial]:
    """Yield the trials of E7 and E8: a planner with every source at every load."""
    for world in WORLDS:
        for load in plan.loads:
            for source in sources_at(load):
                for seed in plan.seeds:
                    yield Trial(world, planner, source, load, seed)


def of_both_tables(plan: Plan) -> Iterator[Trial]:
    """Yield trials of a replay with a kind of job that needs half of the fastest GPUs."""
    for load in plan.loads:
        for source in (*BASELINES, PREDICTED):
            for seed in plan.seeds:
                yield Trial(REPLAY_ALL, FIFO, source, load, seed)


def sources_at(load: int) -> tuple[str, ...]:
    """Return the sources at a load; those with partial knowledge are run at the usual load only."""
    if load == MARKET_LOAD:
        return SOURCES
    return (*BASELINES, PREDICTED, ORACLE)


def of_worse_knowledge(plan: Plan) -> Iterator[Trial]:
    """Yield the trials of E9: knowledge that is wrong, stale or partial."""
    for world in WORLDS:
        for planner in (FIFO, SIA, OURS):
            for source in ("random", PREDICTED, *plan.worse):
                for seed in plan.few:
                    yield Trial(world, planner, source, MARKET_LOAD, seed)


def of_planners(plan: Plan) -> Iterator[Trial]:
    """Yield the trials of E10: every planner with predicted knowledge."""
    for world in WORLDS:
        for planner in (*PLANNERS, UNWEIGHED):
            for load in plan.loads:
                for source in (PREDICTED, ORACLE) if planner in JUDGED else (PREDICTED,):
                    for seed in plan.seeds:
                        yield Trial(world, planner, source, load, seed)


def of_bursts(plan: Plan) -> Iterator[Trial]:
    """Yield the trials of E10 in which many jobs arrive at once."""
    for world in WORLDS:
        for planner in JUDGED:
            for source in ("random", PREDICTED, ORACLE):
                for seed in plan.seeds:
                    yield burst_trial(world, planner, source, seed)


def burst_trial(world: str, planner: str, source: str, seed: int) -> Trial:
    """Return the trial in which jobs arrive in bursts."""
    return Trial(world, planner, source, MARKET_LOAD, seed, burst=BURST)


def of_settings(plan: Plan) -> Iterator[Trial]:
    """Yield the trials of Sia with slow starts and large models."""
    for world in plan.unusual:
        for source in (*BASELINES, PREDICTED, ORACLE):
            for seed in plan.few:
                yield Trial(world, SIA, source, plan.loads[0], seed)


def of_markets(plan: Plan, kinds: Sequence[str]) -> Iterator[Trial]:
    """Yield the trials with deadlines, on owned GPUs and with spot markets."""
    for planner, supply in SUPPLIES:
        if supply in {"fixed", *kinds}:
            for seed in plan.seeds:
                yield market_trial(planner, supply, seed)


def market_trial(planner: str, supply: str, seed: int) -> Trial:
    """Return the trial of a planner with deadlines and a supply of GPUs."""
    return Trial(REPLAY, planner, PREDICTED, MARKET_LOAD, seed, supply, SLACK)


def met_alone(results: Results, one: Trial, seed: int) -> float:
    """Return the share of jobs in time with this planner and late with FIFO and Sia."""

    def late(planner: str) -> set[str]:
        return set(results[msgspec.structs.replace(one, planner=planner, seed=seed)].late)

    others = [late(each) for each in (FIFO, SIA) if each != one.planner]
    jobs = results[msgspec.structs.replace(one, seed=seed)].figures.jobs
    return len(set.intersection(*others) - late(one.planner)) / jobs


def reduced(
    results: Results, one: Trial, baseline: str, seeds: Sequence[int], source: str = PREDICTED
) -> Middle:
    """Return by how much the mean JCT with ``source`` is below that with the baseline."""
    base = over_seeds(results, msgspec.structs.replace(one, source=baseline), seeds)
    return reduction(base, over_seeds(results, msgspec.structs.replace(one, source=source), seeds))


def oracle_ratios(results: Results, plan: Plan) -> dict[str, float]:
    """Return mean JCT with prediction over that with the oracle, by setting where both were run."""
    found = {}
    for world in (*WORLDS, *plan.unusual):
        seeds = plan.seeds if world in WORLDS else plan.few
        for planner in PLANNERS:
            asked = {
                f"{load} jobs/h": Trial(world, planner, PREDICTED, load, seeds[0])
                for load in plan.loads
            }
            asked["in bursts"] = burst_trial(world, planner, PREDICTED, seeds[0])
            for words, one in asked.items():
                other = msgspec.structs.replace(one, source=ORACLE)
                if one in results and other in results:
                    ratio = over_seeds(results, one, seeds).mean()
                    ratio /= over_seeds(results, other, seeds).mean()
                    found[f"{world} {planner} {words}"] = float(ratio)
    return found


class Learning(msgspec.Struct, frozen=True):
    """Mean JCT (h), GPU-hours and failed starts per job in each third of a long sequence."""

    name: str
    jct_h: tuple[Middle, ...]
    failures: tuple[float, ...]
    gpu_hours: tuple[float, ...]


LEARNING_JOBS = 240


def learning_trial(task: tuple[str, int]) -> list[tuple[float, float, float]]:
    """Run a long sequence by FIFO with a source that starts empty and learns, one that starts empty
    and does not learn, or the oracle.
    """
    name, seed = task
    trial = Trial(EMULATED, FIFO, ORACLE, MARKET_LOAD, seed)
    source = PREPARED[EMULATED].world(seed).truth
    if name != ORACLE:
        source = HybridSource(History.empty())
    outcome = outcome_of(trial, jobs=LEARNING_JOBS, source=source, learning=name == "learning")
    jobs = sorted(outcome.jobs, key=lambda each: each.submitted_s)
    third = len(jobs) // 3
    parts = [jobs[k * third : (k + 1) * third] for k in range(3)]
    return [
        (
            float(np.mean([(each.jct_s or np.nan) / 3600 for each in part])),
            float(np.mean([each.failures for each in part])),
            float(np.mean([each.gpu_hours for each in part])),
        )
        for part in parts
    ]


LEARNERS = ("learning", "frozen", ORACLE)


def learning_of(
    answers: Mapping[tuple[str, int], list[tuple[float, float, float]]],
) -> list[Learning]:
    """Return the figures of the learning experiment, by source."""
    found = []
    for name in LEARNERS:
        rows = np.array([answer for (each, _), answer in answers.items() if each == name])
        found.append(
            Learning(
                name,
                tuple(mean_of(rows[:, third, 0]) for third in range(3)),
                *(tuple(float(rows[:, third, k].mean()) for third in range(3)) for k in (1, 2)),
            )
        )
    return found

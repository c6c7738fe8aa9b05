"""Which single measurement would improve the decision most.

The belief about each candidate is a log-normal throughput and a probability to fit, independent of
the other candidates. A run reveals one of them, and the best candidate is chosen again. The run to
make is the one after which the choice is best on average (the knowledge gradient).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.knowledge.advice import Lesson
from duetune.knowledge.configurations.configuration import Sharding
from duetune.knowledge.estimate import DEVIATIONS
from duetune.knowledge.sources.knowledge_source import Objective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.sources.knowledge_source import Candidate, Limits

    Column = NDArray[np.float64]

RUN_S = 120.0
"""Seconds of one run: start, load the model and take some steps."""

DRAWS = 8192
_BINS = 32
_MISFIT = math.log(2.0)  # a start that fails costs about as much as the work itself
_LATE = math.log(10.0)
_ONE_GPU = 0.5  # share of the variance that a run on one GPU explains: it shows no communication
_NOISE = 0.02


class _Drawn(NamedTuple):
    """Possible values of the candidates: one row per draw, one column per candidate.

    - ``value``: logarithm of the objective; higher is better.
    - ``shown``: what a run of the candidate would show.
    """

    value: Column
    shown: Column


def best_lesson(
    candidates: Sequence[Candidate], objective: Objective, limits: Limits, seed: int = 0
) -> tuple[float | None, Lesson | None]:
    """Return the probability that the first candidate is the best, and the run that teaches most.

    Both are None if a candidate's throughput is unknown. The advisor calls this for each
    recommendation.
    """
    if not candidates or any(_deviation(each) is None for each in candidates):
        return None, None
    drawn = _drawn(candidates, objective, limits, np.random.default_rng(seed))
    best = np.argmax(drawn.value, axis=1)
    sure = float(np.mean(best == 0))
    means = drawn.value.mean(axis=0)
    if len(candidates) == 1:
        return sure, None
    lessons = []
    for column, candidate in enumerate(candidates):
        after, gain = _after(drawn, best, means, column)
        run = one_gpu(candidate.configuration)
        price = limits.price.get(run.gpu_model)
        hours = RUN_S / 3600.0 * run.num_gpus
        lessons.append(
            Lesson(
                about=column,
                run=run,
                sure=sure,
                sure_after=max(sure, after),
                gain=math.expm1(max(0.0, gain)),
                seconds=RUN_S,
                cost=None if price is None else price * hours,
            )
        )
    return sure, max(lessons, key=lambda each: (round(each.gain, 6), each.sure_after, -each.about))


def one_gpu(configuration: Configuration) -> Configuration:
    """Return the share of one GPU, which can be measured on a single one.

    Such a run shows the computation but not the communication. Sharded configurations are returned
    whole, because one GPU alone could not hold their state.
    """
    if configuration.num_gpus == 1:
        return configuration.replace(grad_accum=1)
    if configuration.sharding not in {Sharding.DDP, Sharding.NONE}:
        return configuration.replace(
            grad_accum=1
        )  # a single GPU would have to hold all of the state
    return configuration.replace(
        num_gpus=1,
        num_nodes=1,
        batch_size=max(1, configuration.batch_size // configuration.num_gpus),
        sharding=Sharding.NONE,
        grad_accum=1,
    )


def _deviation(candidate: Candidate) -> float | None:
    """Return the standard deviation of the log throughput, or None if the throughput is unknown."""
    pace = candidate.estimate.tokens_per_s
    if not (pace.low > 0 and math.isfinite(pace.high)):
        return None
    return math.log(pace.high / pace.low) / (2.0 * DEVIATIONS)


def _drawn(
    candidates: Sequence[Candidate], objective: Objective, limits: Limits, rng: np.random.Generator
) -> _Drawn:
    """Draw possible values of all candidates, and what a run of each would show."""
    values, shown = [], []
    for each in candidates:
        deviation = _deviation(each) or 0.0
        gpus = each.configuration.num_gpus
        partly = one_gpu(each.configuration).num_gpus != gpus
        seen, unseen = rng.standard_normal((2, DRAWS))
        share = _ONE_GPU if partly else 1.0
        pace = math.log(each.estimate.tokens_per_s.middle) + deviation * (
            math.sqrt(share) * seen + math.sqrt(1.0 - share) * unseen
        )
        fits = rng.random(DRAWS) < each.estimate.p_valid
        value = _worth(pace, gpus, each.configuration.gpu_model, objective, limits)
        values.append(value - np.where(fits, 0.0, _MISFIT))
        observed = deviation * math.sqrt(share) * seen + _NOISE * rng.standard_normal(DRAWS)
        # A run that does not fit shows no throughput. Fitting on one GPU says little about several.
        shown.append(observed if partly else np.where(fits, observed, -1e9))
    return _Drawn(np.stack(values, axis=1), np.stack(shown, axis=1))


def _worth(pace: Column, gpus: int, gpu: str, objective: Objective, limits: Limits) -> Column:
    """Return the logarithm of the objective for drawn throughputs; higher is better."""
    if objective is Objective.FASTEST:
        return pace
    hourly = math.log(gpus)
    if objective is Objective.BALANCED:
        return pace - 0.7 * hourly
    if objective is Objective.DEADLINE and limits.price.get(gpu):
        hourly += math.log(limits.price[gpu])
    if limits.tokens is None:
        return pace - hourly
    seconds = limits.start_up_s + limits.tokens / np.exp(pace)
    worth: Column = -np.log(seconds) - hourly
    if objective is Objective.DEADLINE and limits.deadline_s is not None:
        worth = worth - np.where(seconds > limits.deadline_s, _LATE, 0.0)
    return worth


def _after(
    drawn: _Drawn, best: NDArray[np.int64], means: Column, column: int
) -> tuple[float, float]:
    """Return how often the choice would be right after a run of ``column``, and the average
    gain.
    """
    order = np.argsort(drawn.shown[:, column], kind="stable")
    right = worth = 0.0
    for part in np.array_split(order, _BINS):
        believed = means.copy()
        believed[column] = drawn.value[part, column].mean()
        choice = int(np.argmax(believed))
        right += float(np.sum(best[part] == choice))
        worth += float(believed[choice]) * len(part)
    return right / len(order), worth / len(order) - float(means.max())

"""The best of many configurations, given a source's estimates.

A run that does not fit must be started again in another way. So the cost of a configuration is
divided by the probability that it fits, and its throughput is multiplied by it. The probability to
be on time is that of fitting and being fast enough, without a second try.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.estimate import DEVIATIONS, Interval
from duetune.knowledge.estimate import RULE as BREAKS_RULE
from duetune.knowledge.facts.gpus import gpu_name
from duetune.knowledge.sources.knowledge_source import Candidate, Limits, Objective, Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.estimate import Estimates

    Column = NDArray[np.float64]

SURE_ENOUGH = 0.9
"""Configurations at least this likely to be on time are ranked by cost."""

BALANCE = 0.7
_HOUR_S = 3600.0

RULE = "break a rule"
NO_GPUS = "need GPUs that are not there"
NO_PRICE = "have GPUs without a price"
RAN_OUT = "need as much memory as one that ran out of it"
UNLIKELY = "are not likely enough to fit"
UNKNOWN = "have an unknown pace"

_SAME = (
    *("model", "method", "gpu_model", "num_gpus", "precision", "sharding", "optimiser"),
    *("attention", "lora_rank", "lora_targets", "fast_moe"),
)


def unavailable(configurations: Configurations, limits: Limits) -> dict[str, NDArray[np.bool_]]:
    """Return masks of the configurations that cannot be used whatever their estimate, by reason."""
    found: dict[str, NDArray[np.bool_]] = {}
    if limits.inventory:
        there = _by_gpu(configurations, limits.inventory, 0.0)
        found[NO_GPUS] = configurations.number("num_gpus") > there
    if limits.price:
        found[NO_PRICE] = np.isnan(_by_gpu(configurations, limits.price, math.nan))
    if limits.ran_out:
        found[RAN_OUT] = exceeding(configurations, limits.ran_out)
    return found


def exceeding(
    configurations: Configurations, ran_out: tuple[Configuration, ...]
) -> NDArray[np.bool_]:
    """Return a mask of the configurations that need at least the memory that one of ``ran_out``
    lacked.
    """
    worse = np.zeros(len(configurations), np.bool_)
    cap = _cap(configurations.number("memory_cap_gb"))
    for each in ran_out:
        one = Configurations.of([each])
        mine = (configurations.per_gpu_tokens >= one.per_gpu_tokens[0]) & (
            cap <= _cap(one.number("memory_cap_gb"))[0]
        )
        # Without these two, a run needs more memory, so they may also be switched off.
        mine &= configurations.number("grad_checkpoint") <= each.grad_checkpoint
        mine &= configurations.number("fast_kernels") <= each.fast_kernels
        for field in _SAME:
            value = getattr(each, field)
            mine &= (
                configurations.is_(field, value)
                if isinstance(value, str)
                else configurations.number(field) == value
            )
        worse |= mine
    return worse


def _cap(gigabytes: Column) -> Column:
    return np.where(gigabytes > 0, gigabytes, np.inf)


def _by_gpu(configurations: Configurations, table: Mapping[str, float], otherwise: float) -> Column:
    known = {gpu_name(name) or name: float(value) for name, value in table.items()}
    return configurations.gather(
        "gpu_model", lambda word: known.get(gpu_name(word) or word, otherwise)
    )


def on_time(tokens_per_s: Column, least: float) -> Column:
    """Return the probability of at least the throughput ``least``, for rows of low, middle and
    high.

    The distribution is log-normal on either side of the middle, each side as wide as its quantile
    says.
    """
    if not math.isfinite(least):
        return np.zeros(len(tokens_per_s))
    if least <= 0:
        return np.ones(len(tokens_per_s))
    with np.errstate(all="ignore"):
        low, middle, high = np.log(tokens_per_s).T
        above = middle - math.log(least)
        width = np.where(above > 0, middle - low, high - middle) / DEVIATIONS
        deviations = np.where(width > 0, above / width, np.where(above >= 0, np.inf, -np.inf))
    halves = np.fromiter(map(math.erf, deviations / math.sqrt(2.0)), np.float64, len(deviations))
    return 0.5 * (1.0 + halves)


class _Figures(NamedTuple):
    """Columns of a ranked table; intervals have a row of low, middle and high per configuration."""

    score: Column
    runtime_s: Column | None
    gpu_hours: Column | None
    cost: Column | None
    on_time: Column | None


def _figures(
    configurations: Configurations, estimates: Estimates, objective: Objective, limits: Limits
) -> _Figures:
    """Return score, runtime, GPU-hours, cost and probability to be on time for each
    configuration.
    """
    gpus = configurations.number("num_gpus")
    pace = estimates.tokens_per_s
    likely = np.maximum(estimates.p_valid, 1e-9)
    runtime = hours = cost = probability = None
    price = _by_gpu(configurations, limits.price, math.nan) if limits.price else None
    # Cost of the middle estimate: GPU-hours, or dollars if there are prices; per token if the
    # work is unknown.
    spent = gpus / pace[:, 1] * (1.0 if price is None else price)
    if limits.tokens is not None:
        runtime = limits.start_up_s + limits.tokens / pace[:, ::-1]
        hours = runtime * gpus[:, None] / _HOUR_S
        cost = None if price is None else hours * price[:, None]
        spent = (hours if cost is None else cost)[:, 1]
        if limits.deadline_s is not None:
            left = limits.deadline_s - limits.start_up_s
            least = limits.tokens / left if left > 0 else math.inf
            probability = estimates.p_valid * on_time(pace, least)
    if objective is Objective.FASTEST:
        score = likely * pace[:, 1]
    elif objective is Objective.BALANCED:
        score = likely * pace[:, 1] / gpus**BALANCE
    elif objective is Objective.GPU_HOURS:
        score = likely * pace[:, 1] / gpus if hours is None else -hours[:, 1] / likely
    else:
        # Every configuration that is on time ranks above every other; among them cost decides.
        thrift = 1.0 + 1.0 / (1.0 + spent / likely)
        score = thrift
        if probability is not None:
            # If none has a chance, the fastest comes first.
            hopeful = probability + 1e-6 * pace[:, 1] / (pace[:, 1] + 1e6)
            score = np.where(probability < SURE_ENOUGH, hopeful, thrift)
    return _Figures(score, runtime, hours, cost, probability)


class Ranker:
    """Takes configurations in parts and keeps the best, so that a space of any size can be
    ranked.
    """

    def __init__(self, objective: Objective, limits: Limits) -> None:
        self._objective = objective
        self._limits = limits
        self._best: list[tuple[tuple[float, ...], Candidate]] = []
        self._considered = 0
        self._left_out: dict[str, int] = {}
        self._likeliest: tuple[float, Configuration] | None = None

    def add(self, configurations: Configurations, estimates: Estimates) -> None:
        """Score a part of the space and keep its best configurations."""
        open_ = np.ones(len(configurations), np.bool_)
        rule = estimates.cause == BREAKS_RULE
        unlikely = ~(estimates.p_valid >= self._limits.min_p_valid)
        reasons = {RULE: rule, **unavailable(configurations, self._limits)}
        for reason, mask in reasons.items():
            open_ = self._leave_out(reason, open_, mask)
        self._remember_likeliest(configurations, estimates, open_)
        open_ = self._leave_out(UNLIKELY, open_, unlikely)
        open_ = self._leave_out(UNKNOWN, open_, ~(estimates.tokens_per_s[:, 1] > 0))
        index = np.flatnonzero(open_)
        self._keep(configurations.take(index), estimates.take(index), self._considered + index)
        self._considered += len(configurations)

    def ranking(self) -> Ranking:
        """Return the best configurations so far, the counts of those left out, and a note."""
        return Ranking(
            candidates=tuple(candidate for _, candidate in self._best),
            considered=self._considered,
            left_out=dict(self._left_out),
            note=self._note(),
        )

    def _leave_out(
        self, reason: str, open_: NDArray[np.bool_], mask: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Count the rows that are dropped for this reason, and return the rows that remain."""
        count = int(np.sum(open_ & mask))
        if count:
            self._left_out[reason] = self._left_out.get(reason, 0) + count
        return open_ & ~mask

    def _remember_likeliest(
        self, configurations: Configurations, estimates: Estimates, open_: NDArray[np.bool_]
    ) -> None:
        """Remember the configuration that is most likely to fit, to name it if nothing
        qualifies.
        """
        if not open_.any():
            return
        row = int(np.argmax(np.where(open_, estimates.p_valid, -1.0)))
        chance = float(estimates.p_valid[row])
        if self._likeliest is None or chance > self._likeliest[0]:
            self._likeliest = (chance, configurations[row])

    def _keep(
        self, configurations: Configurations, estimates: Estimates, arrival: NDArray[np.int64]
    ) -> None:
        """Merge the best rows of a part into the best so far."""
        figures = _figures(configurations, estimates, self._objective, self._limits)
        score, top = figures.score, self._limits.top
        rows = np.arange(len(score))
        if len(score) > top:
            rows = np.flatnonzero(score >= np.partition(score, -top)[-top]) if top else rows[:0]
        ties = [configurations.number(field)[rows] for field in _SMALLEST]
        order = rows[np.lexsort((*reversed(ties), -score[rows]))][:top]
        for row in order.tolist():
            first = (
                -float(score[row]),
                *(float(configurations.columns[f][row]) for f in _SMALLEST),
            )
            candidate = Candidate(
                configuration=configurations[row],
                estimate=estimates[row],
                score=float(score[row]),
                runtime_s=_interval(figures.runtime_s, row),
                gpu_hours=_interval(figures.gpu_hours, row),
                cost=_interval(figures.cost, row),
                on_time=None if figures.on_time is None else float(figures.on_time[row]),
            )
            self._best.append(((*first, float(arrival[row])), candidate))
        self._best.sort(key=lambda each: each[0])
        del self._best[top:]

    def _note(self) -> str:
        """Return what the ranking assumes, in words, or why nothing qualifies."""
        notes = []
        if not self._best:
            return self._nothing()
        limits = self._limits
        if self._objective is Objective.DEADLINE:
            if limits.tokens is None:
                notes.append("the number of tokens is unknown: ranked by cost per token")
            elif limits.deadline_s is None:
                notes.append("no deadline given: ranked by cost")
            elif (self._best[0][1].on_time or 0.0) < SURE_ENOUGH:
                notes.append(
                    f"no configuration meets the deadline with {SURE_ENOUGH:.0%} certainty: "
                    "ranked by the probability to finish in time"
                )
            if not limits.price:
                notes.append("no prices given: GPU-hours are used as cost")
        return "; ".join(notes)

    def _nothing(self) -> str:
        if not self._considered:
            return "the space contains no configuration"
        counts = ", ".join(f"{count} {reason}" for reason, count in self._left_out.items())
        text = f"no configuration qualifies: of {self._considered} configurations, {counts}"
        if self._likeliest is None:
            return text
        chance, configuration = self._likeliest
        return f"{text}; the most likely to fit ({chance:.0%}) is {shortly(configuration)}"


_SMALLEST = ("num_gpus", "batch_size", "tokens_per_sample", "grad_accum", "lora_rank")
"""Fields that decide between equal scores, before the order of arrival."""


def rank(
    configurations: Configurations, estimates: Estimates, objective: Objective, limits: Limits
) -> Ranking:
    """Return the ranking of one table of configurations."""
    ranker = Ranker(objective, limits)
    ranker.add(configurations, estimates)
    return ranker.ranking()


def shortly(configuration: Configuration) -> str:
    """Return a configuration in one line, for messages."""
    each = configuration
    nodes = f" in {each.num_nodes} nodes" if each.num_nodes > 1 else ""
    sharding = "" if each.num_gpus == 1 else f", {each.sharding}"
    checkpoint = ", checkpointing" if each.grad_checkpoint else ""
    return (
        f"{each.model} {each.method} on {each.num_gpus} x {each.gpu_model}{nodes}, "
        f"batch {each.batch_size} x {each.tokens_per_sample} tokens{sharding}{checkpoint}"
    )


def _interval(column: Column | None, row: int) -> Interval | None:
    return None if column is None else Interval(*(float(each) for each in column[row]))

"""The advisor: completes a configuration that a job leaves open, and gives a reason for each field.

Ranking is in ``ranking``, the fit of one configuration in ``verdict``, and the choice of the next
measurement in ``next_measurement``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.advice import GIVEN, Advice, Choice
from duetune.knowledge.configurations.configuration import Configurations, Method
from duetune.knowledge.configurations.space import Role
from duetune.knowledge.estimate import FITS, RULE
from duetune.knowledge.next_measurement import best_lesson
from duetune.knowledge.ranking import SURE_ENOUGH, rank, unavailable
from duetune.knowledge.sources.knowledge_source import Objective
from duetune.knowledge.verdict import Fitting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.knowledge.advice import Fit, Request
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.estimate import Estimates
    from duetune.knowledge.history import History
    from duetune.knowledge.sources.knowledge_source import Candidate, KnowledgeSource

RANKED = 256
RIVALS = 8
HOPELESS = 0.01
"""If no candidate has a higher probability to finish in time, the deadline is ignored."""

MOST_POINTS = 500_000
"""In spaces with more points than this, single fields are not compared."""

_MORE, _LESS = "more GPU-hours", "fewer GPU-hours"
_BETTER = ("cheaper", "faster", "as fast", _LESS)
_ADAPTERS = ("lora_rank", "lora_targets")
_UNUSUAL = (
    "tokens_per_microbatch",
    "longest_sample",
    "num_nodes",
    "grad_accum",
    "fast_kernels",
    "fast_moe",
    "memory_cap_gb",
    "interconnect",
)


class Advisor:
    """Answers users' questions from one source of knowledge.

    ``history`` is the data that the source rests on; it is shown as evidence.
    """

    def __init__(self, source: KnowledgeSource, history: History) -> None:
        self.source = source
        self.history = history
        self._fitting = Fitting(source, history)

    def fit(self, configuration: Configuration) -> Fit:
        """Return whether a configuration fits, why, and what would change that."""
        return self._fitting.fit(configuration)

    def fits(self, configuration: Configuration) -> bool:
        """Return whether a configuration fits with enough probability to be used; planning calls
        this.
        """
        return bool(self.source.query(Configurations.of([configuration])).p_valid[0] >= FITS)

    def recommend(self, request: Request) -> Advice:
        """Return the best configurations for a request, with reasons; ``duetune recommend`` calls
        this.

        If no candidate can meet the deadline, the candidates are ranked by speed instead. If
        nothing fits, the advice contains the nearest miss.
        """
        limits = request.limits
        wide = msgspec.structs.replace(limits, top=max(RANKED, limits.top))
        ranking = self.source.complete(request.given, request.space, request.objective, wide)
        first = next((each.on_time for each in ranking.candidates), None)
        if request.objective is Objective.DEADLINE and first is not None and first < HOPELESS:
            # If all probabilities are close to 0, their order means nothing.
            request = msgspec.structs.replace(request, objective=Objective.FASTEST)
            fastest = self.source.complete(request.given, request.space, Objective.FASTEST, wide)
            ranking = msgspec.structs.replace(
                fastest, note="no configuration finishes by the deadline: ranked by speed"
            )
        advice = Advice(
            objective=request.objective,
            limits=limits,
            candidates=_varied(ranking.candidates, limits.top),
            considered=ranking.considered,
            left_out=ranking.left_out,
            note=ranking.note,
            assumptions=request.assumptions,
        )
        space = request.space.given(request.given)
        points = space.points() if space.combinations <= MOST_POINTS else None
        estimates = None if points is None else self.source.query(points)
        if advice.chosen is None:
            if points is None or estimates is None:
                return advice
            return self._with_nearest_miss(advice, points, estimates)
        chosen = advice.chosen
        rivals = list(dict.fromkeys((*advice.candidates[:RIVALS], *ranking.candidates[:RIVALS])))
        sure, lesson = best_lesson(rivals[:RIVALS], request.objective, limits)
        if lesson is not None:
            about = rivals[lesson.about]
            shown = {*advice.candidates, about}
            kept = tuple(each for each in ranking.candidates if each in shown)
            advice = msgspec.structs.replace(advice, candidates=kept)
            lesson = msgspec.structs.replace(lesson, about=kept.index(about))
        explained = self.source.explain(chosen.configuration)
        fit = self.fit(chosen.configuration)
        return msgspec.structs.replace(
            advice,
            choices=self._choices(request, chosen, points, estimates),
            fit=fit,
            time=explained.time,
            sure=sure,
            lesson=lesson,
            assumptions=tuple(dict.fromkeys((*advice.assumptions, *fit.assumptions))),
        )

    def _with_nearest_miss(
        self, advice: Advice, points: Configurations, estimates: Estimates
    ) -> Advice:
        """Add the fit of the most likely configuration; ties go to the one that needs the least
        memory.
        """
        open_ = estimates.cause != RULE
        for mask in unavailable(points, advice.limits).values():
            open_ &= ~mask
        if not open_.any():
            return advice
        rows = np.flatnonzero(open_)
        order = np.lexsort((estimates.memory_gb[rows, 1], -np.round(estimates.p_valid[rows], 3)))
        fit = self.fit(points[int(rows[order[0]])])
        assumptions = tuple(dict.fromkeys((*advice.assumptions, *fit.assumptions)))
        return msgspec.structs.replace(advice, fit=fit, assumptions=assumptions)

    def _choices(
        self,
        request: Request,
        chosen: Candidate,
        points: Configurations | None,
        estimates: Estimates | None,
    ) -> tuple[Choice, ...]:
        """Return the reason for each field of the chosen configuration that is worth showing."""
        found = []
        configuration = chosen.configuration
        for field in configuration.__struct_fields__:
            value = getattr(configuration, field)
            reason = request.reasons.get(field)
            domain = request.space.domains.get(field)
            varies = field not in request.given and domain is not None and len(domain.values) > 1
            if reason is None and field in request.given:
                reason = GIVEN
            elif reason is None and varies and domain is not None and domain.role is Role.FREE:
                reason = "not compared"
                if points is not None and estimates is not None:
                    reason = _compared(field, request, chosen, points, estimates)
            elif reason is None:
                reason = "set by the other fields" if varies else "the default"
            if _worth_showing(field, configuration, reason):
                found.append(
                    Choice(
                        field=field,
                        value=str(value) if isinstance(value, str) else value,
                        reason=reason,
                    )
                )
        return tuple(found)


def _worth_showing(field: str, configuration: Configuration, reason: str) -> bool:
    """Return whether a reader needs this field: fields at their default are left out."""
    if reason == GIVEN:
        return True
    if field == "software":
        return False
    if field in _ADAPTERS and configuration.method not in {
        *(Method.LORA, Method.QLORA, Method.GPTQ_LORA)
    }:
        return False
    if field == "sharding":
        return configuration.num_gpus > 1
    usual = {"num_nodes": 1, "grad_accum": 1, "interconnect": "auto"}
    return field not in _UNUSUAL or getattr(configuration, field) != usual.get(field, 0)


def _varied(candidates: Sequence[Candidate], top: int) -> tuple[Candidate, ...]:
    """Return ``top`` candidates that differ, in the order of their rank.

    The best candidate for each kind and number of GPUs comes first, so that the alternatives are
    not all the same GPU with small differences. The rest is filled with the next best.
    """
    kept: list[int] = []
    seen = set()
    for place, each in enumerate(candidates):
        cell = (each.configuration.gpu_model, each.configuration.num_gpus)
        if cell not in seen and len(kept) < top:
            seen.add(cell)
            kept.append(place)
    rest = [place for place in range(len(candidates)) if place not in kept]
    kept += rest[: max(0, top - len(kept))]
    return tuple(candidates[place] for place in sorted(kept))


def _compared(
    field: str,
    request: Request,
    chosen: Candidate,
    points: Configurations,
    estimates: Estimates,
) -> str:
    """Return how the chosen value compares with the best candidate that has another value of the
    field.
    """
    value = getattr(chosen.configuration, field)
    column = points.columns[field]
    mine = points.is_(field, str(value)) if field in points.labels else column == float(value)
    others = np.flatnonzero(~mine)
    limits = msgspec.structs.replace(request.limits, top=1)
    ranking = rank(points.take(others), estimates.take(others), request.objective, limits)
    if not ranking.candidates:
        reasons = ranking.left_out
        why = max(reasons, key=lambda each: reasons[each]) if reasons else "are not allowed"
        return f"the only value that works: most others {why}"
    other = ranking.candidates[0]
    value = getattr(other.configuration, field)
    words = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    difference = _difference(chosen, other, request.objective)
    if difference.endswith(_BETTER) and other.estimate.p_valid < chosen.estimate.p_valid:
        difference += f", but fits with a probability of only {other.estimate.p_valid:.0%}"
    return f"best; {words} would be {difference}"


def _difference(chosen: Candidate, other: Candidate, objective: Objective) -> str:
    """Return how much slower or more expensive another candidate is, in words."""
    chance, mine = other.on_time, chosen.on_time
    dated = objective is Objective.DEADLINE
    if dated and chance is not None and mine is not None and chance < min(SURE_ENOUGH, mine):
        return f"on time with a probability of at most {max(chance, 0.01):.0%}"
    pace = other.estimate.tokens_per_s.middle / chosen.estimate.tokens_per_s.middle
    if objective in {Objective.FASTEST, Objective.BALANCED}:
        return _pace_words(pace)
    if objective is Objective.DEADLINE and chosen.cost is not None and other.cost is not None:
        return _words(other.cost.middle / chosen.cost.middle, "more expensive", "cheaper")
    if chosen.gpu_hours is not None and other.gpu_hours is not None:
        ratio = other.gpu_hours.middle / chosen.gpu_hours.middle
    else:
        ratio = other.configuration.num_gpus / chosen.configuration.num_gpus / pace
    return _words(ratio, _MORE, _LESS)


def _words(ratio: float, more: str, less: str) -> str:
    """Return the time or cost of another candidate relative to the chosen one, in words."""
    if 0.995 < ratio < 1.005:
        return "about the same"
    if ratio >= 2.0:
        return f"{ratio:.1f} times {_TIMES[more]}"
    return f"{ratio - 1:.0%} {more}" if ratio > 1 else f"{1 - ratio:.0%} {less}"


_TIMES = {"more expensive": "the cost", _MORE: "the GPU-hours"}


def _pace_words(pace: float) -> str:
    """Return the throughput of another candidate relative to the chosen one: half of it is 50%
    slower.
    """
    if 0.995 < pace < 1.005:
        return "about the same"
    if pace >= 2.0:
        return f"{pace:.1f} times as fast"
    return f"{min(0.99, 1 - pace):.0%} slower" if pace < 1 else f"{pace - 1:.0%} faster"

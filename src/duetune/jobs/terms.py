"""The terms of a job: its spec and training plan as work, slots and dollars."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duetune.core.job import MAX_SLOTS, Job, Reconfiguration, ReconfigurationKey
from duetune.errors import InvalidInput
from duetune.jobs.spec.sections import AUTO, Spot
from duetune.jobs.spec.values import written_deadline, written_duration
from duetune.jobs.step_time import Basis
from duetune.wall_clock import wall_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.fleet import MarketReport
    from duetune.jobs.configure import TrainingPlan
    from duetune.jobs.site import Site
    from duetune.jobs.spec.job_spec import JobSpec

MARGIN = 1.02
"""Work per step, above 1 because evaluation and saving take time as well."""

HARD_DEADLINE_FACTOR = 1.5
VALUE_FACTOR = 3.0
"""Default value of a job, as a multiple of its cost on demand only."""

GUESS_SLOWDOWN = 4.0
"""A speed by rule of thumb, or an assumed one, may be this many times too fast."""

ON_DEMAND = "on_demand"
SPOT_ONLY = "spot_only"
_LONGEST = math.floor(MAX_SLOTS / HARD_DEADLINE_FACTOR)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the simulator and the policies see it, and the moments behind its slots.

    - ``job`` counts work in optimiser steps and time in slots of ``slot_s`` market seconds. The
      first slot began at ``origin``.
    - ``deadline_at`` is the moment the user asked for. The job's own deadline is the end of the
      last slot before it and before ``stop_at``, when the job ends in any case.
    - ``late_s`` is how much later than its slots say the job finishes, because part of the first
      slot has passed.
    - ``max_price`` is in dollars per GPU and hour.
    - ``policy`` is set if the spec's other fields allow only one policy; ``policy_reason`` says
      why.
    - ``gpus_per_member`` is the number of GPUs that the job buys together. All counts and prices in
      ``job`` are of such members.
    - ``soft`` says that the job goes on after its deadline, at the least cost.
    - ``pace`` is between which multiples of its throughput the job trains with 90% probability;
      None if the throughput is only a guess.
    - ``notes`` are remarks for the reader of the quote.
    """

    job: Job
    origin: float
    slot_s: float
    deadline_at: float
    late_s: float = 0.0
    stop_at: float | None = None
    max_price: float | None = None
    gpus_per_member: int = 1
    policy: str | None = None
    policy_reason: str = ""
    soft: bool = False
    pace: tuple[float, float] | None = (1.0, 1.0)
    notes: tuple[str, ...] = ()

    @property
    def slowdown(self) -> float:
        """Return how many times slower than estimated the job may be; 1 if it was measured."""
        return GUESS_SLOWDOWN if self.pace is None else 1 / self.pace[0]

    def moment(self, slot: float) -> float:
        """Return the moment at which slot ``slot`` ends."""
        return self.origin + slot * self.slot_s


def job_terms(
    spec: JobSpec, plan: TrainingPlan, site: Site, market: MarketReport, now: float
) -> Terms:
    """Return the terms of a job that is submitted at ``now``.

    Refuses a deadline that cannot be met even with all GPUs on demand from now on, at the expected
    speed. A note says so if only the slowest likely speed is too slow. The present slot of the
    market is slot 1, although part of it has passed. If the deadline, cut to whole slots, leaves
    less room than that part, the difference is added to the work. A hard deadline leaves none.
    ``market`` is in members of the plan's ``gpus_per_member``.
    """
    slot_s = market.slot_s
    policy, policy_reason = _policy(spec, market, plan.gpus_per_member)
    rule = _reconfiguration(site, slot_s)
    curve = throughput(plan.step_s, site, slot_s)
    deadline_at = spec.deadline_at(now)
    stop_at = None if spec.max_duration_s is None else now + spec.max_duration_s
    due_at = deadline_at if stop_at is None else min(deadline_at, stop_at)
    limit = _TimeLimit(spec, "deadline" if due_at == deadline_at else "max_duration", now)
    length = (due_at - market.slot_began) / slot_s
    slots = math.floor(length + 1e-9)
    if slots < 1:
        raise limit.too_soon(market.slot_began + slot_s, f"one slot takes {written_up(slot_s)}")
    if slots > _LONGEST:
        allowed = f"at most {written_up(_LONGEST * slot_s)}, {_LONGEST} slots"
        raise InvalidInput(limit.field, limit.written, allowed)
    work = MARGIN * plan.total_steps + 1
    gone = max(0.0, now - market.slot_began) / slot_s
    late = gone + max(0.0, site.startup_s - site.grow_s) * site.speed / slot_s
    # A hard deadline ends the job with its last whole slot, so the rest is of no use. An assumed
    # speed is no reason to refuse the job for that.
    cut = spec.hard_deadline and plan.basis is not Basis.ASSUMED
    lost = max(0.0, late - (0.0 if cut else length - slots))
    effective = slots - 1 + rule.grow - lost
    gpus = next(
        (
            gpus
            for gpus in range(plan.min_gpus, plan.max_gpus + 1)
            if effective * curve[gpus] >= work
        ),
        None,
    )
    if gpus is None:
        needed = work / curve[-1] + 1 - rule.grow + late
        earliest = market.slot_began + math.ceil(needed - 1e-9) * slot_s
        raise limit.too_soon(earliest, _why(plan))
    slowest = throughput(plan.step_s_slow, site, slot_s)[-1]
    notes = [] if effective * slowest >= work else [_slow_note(plan, limit.field)]
    notes += _limit_notes(spec, plan, site)
    work += lost * curve[gpus]
    held = math.ceil(work / curve[gpus] + 1 - rule.grow - 1e-9)
    on_demand_cost = held * gpus * market.slot.on_demand_price
    return Terms(
        job=Job(
            work=work,
            deadline=slots,
            value=VALUE_FACTOR * on_demand_cost if spec.value is None else spec.value,
            throughput=curve,
            min_gpus=plan.min_gpus,
            hard_deadline_factor=1.0 if spec.hard_deadline else _factor(market, slots, stop_at),
            reconfiguration=rule,
            budget=spec.budget,
            name=spec.name,
            unit="steps",
        ),
        origin=market.slot_began,
        slot_s=slot_s,
        deadline_at=deadline_at,
        late_s=max(0.0, late - lost) * slot_s,
        stop_at=stop_at,
        max_price=spec.max_price,
        gpus_per_member=plan.gpus_per_member,
        policy=policy,
        policy_reason=policy_reason,
        soft=spec.value is None and not spec.hard_deadline,
        pace=_pace(plan),
        notes=tuple(notes),
    )


def throughput(step_s: Sequence[float], site: Site, slot_s: float) -> tuple[float, ...]:
    """Return steps per slot with 0, 1, ... GPUs. More GPUs never do less, because some may stay
    idle.
    """
    wall_s = slot_s / site.speed
    paces = (wall_s / step if step > 0 else 0.0 for step in step_s)
    return tuple(itertools.accumulate(paces, max))


def _reconfiguration(site: Site, slot_s: float) -> Reconfiguration:
    """Return what a change of the group costs; refuse a clock too fast for slots."""
    longest = max(site.startup_s, site.grow_s, site.shrink_s, site.preempted_s)
    if longest * site.speed >= slot_s:
        allowed = (
            f"below {slot_s / longest:g}: GPUs need up to {longest:g} s to start, which would be "
            f"longer than a slot of {written_up(slot_s)}"
        )
        raise InvalidInput("speed", site.speed, allowed)
    return Reconfiguration.from_delays(
        grow_s=site.grow_s * site.speed,
        shrink_s=site.shrink_s * site.speed,
        preempted_s=site.preempted_s * site.speed,
        slot_s=slot_s,
        key=ReconfigurationKey.COMPOSITION,
    )


def _policy(spec: JobSpec, market: MarketReport, gpus: int) -> tuple[str | None, str]:
    """Return the only policy that the spec allows and why; None if it is free."""
    hourly = market.slot.on_demand_price / gpus / market.slot_s * 3600
    if spec.resources.spot is Spot.NEVER:
        forced, why = ON_DEMAND, "resources.spot is never"
    elif spec.resources.spot is Spot.ONLY:
        forced, why = SPOT_ONLY, "resources.spot is only"
    elif spec.max_price is not None and spec.max_price < hourly:
        forced, why = (
            SPOT_ONLY,
            f"on-demand costs ${hourly:.2f} per GPU and hour, more than max_price",
        )
    else:
        return None, ""
    if spec.policy not in {AUTO, forced}:
        raise InvalidInput("policy", spec.policy, f"auto or {forced}: {why}")
    return forced, why


class _TimeLimit(NamedTuple):
    """The field with which the user limits time, for messages about it."""

    spec: JobSpec
    field: str
    now: float

    @property
    def written(self) -> str:
        """The limit as the user could write it."""
        if self.field == "deadline":
            return written_deadline(self.spec.deadline)
        assert self.spec.max_duration is not None
        return written_duration(self.spec.max_duration)

    def too_soon(self, earliest: float, why: str) -> InvalidInput:
        """Return the error for a limit that is too soon, with the earliest possible one."""
        if self.field == "deadline" and isinstance(self.spec.deadline, datetime):
            allowed = f"{_moment(earliest)} or later"
        else:
            allowed = f"at least {written_up(earliest - self.now)}"
        return InvalidInput(self.field, self.written, f"{allowed}: {why}")


def _why(plan: TrainingPlan) -> str:
    """Return why no earlier moment is possible."""
    gpus = plan.max_gpus * plan.gpus_per_member
    group = f"all {gpus} GPUs need" if gpus > 1 else "the one GPU needs"
    return f"{group} that long on demand for {plan.total_steps} steps (speed from {plan.basis})"


def _slow_note(plan: TrainingPlan, field: str) -> str:
    """Return the note that the slowest likely speed misses the deadline."""
    slow, gpus = plan.step_s_slow[-1], plan.max_gpus * plan.gpus_per_member
    return (
        f"the speed is uncertain: a step with {gpus} GPUs may take {slow:.2g} s instead "
        f"of {plan.step_s[-1]:.2g} s, too long for the {field.replace('_', ' ')} even on demand"
    )


def _pace(plan: TrainingPlan) -> tuple[float, float] | None:
    """Return the slowest and the quickest likely pace, as multiples of the expected one; the widest
    range over all numbers of GPUs. None if the pace is a guess.
    """
    if plan.basis in {Basis.RULE, Basis.ASSUMED}:
        return None
    steps = list(zip(plan.step_s, plan.step_s_slow, plan.step_s_quick, strict=True))[1:]
    return (
        min(usual / slow for usual, slow, _ in steps),
        max(usual / quick for usual, _, quick in steps),
    )


def _limit_notes(spec: JobSpec, plan: TrainingPlan, site: Site) -> list[str]:
    """Return a note if the job would use more GPUs than it can ever hold here."""
    _, _, most = spec.gpus
    if (
        not site.limit
        or plan.max_gpus * plan.gpus_per_member < site.max_gpus
        or (most or math.inf) <= site.max_gpus
    ):
        return []
    gpus = plan.max_gpus * plan.gpus_per_member
    held = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    return [f"{site.limit} allows at most {held} at once, shared with other jobs"]


def _factor(market: MarketReport, slots: int, stop_at: float | None) -> float:
    """Return the hard deadline as a multiple of the deadline; never after ``stop_at``."""
    if stop_at is None:
        return HARD_DEADLINE_FACTOR
    last = math.floor((stop_at - market.slot_began) / market.slot_s + 1e-9)
    return min(HARD_DEADLINE_FACTOR, max(slots, last) / slots)


def written_up(seconds: float) -> str:
    """Return the duration as text, rounded up to the second."""
    return written_duration(timedelta(seconds=math.ceil(seconds - 1e-6)))


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(math.ceil(seconds - 1e-6), tz=UTC).isoformat()


def seconds_until(deadline: timedelta | datetime, speed: float) -> float:
    """Return the market seconds from now to a deadline. A moment is wall time; the market's clock
    runs ``speed`` times as fast.
    """
    if isinstance(deadline, timedelta):
        return deadline.total_seconds()
    left = (deadline.timestamp() - wall_now()) * speed
    if left <= 0:
        raise InvalidInput("deadline", deadline.isoformat(), "a moment in the future")
    return left

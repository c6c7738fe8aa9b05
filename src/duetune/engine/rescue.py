"""Whether a policy has given a job up, what would save the job, and when to measure its pace.

Here is arithmetic over one view. ``engine`` asks after every decision that holds no GPU.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from duetune.core.decision import Allocation
from duetune.core.events import Doubt, GivenUp
from duetune.core.physics import affordable, cheapest_spot, job_physics
from duetune.engine.state import highest_price
from duetune.policies.baselines import SpotOnly
from duetune.policies.rules import keeps_deadline, now_of

if TYPE_CHECKING:
    from duetune.core.decision import View
    from duetune.core.events import Submitted

VALUE_MARGIN = 1.1
"""A value must exceed the cost of the rest by this factor before it counts as enough."""

MEASURING_SLOTS = 2
"""Slots of slack that are kept to measure an estimated pace: one to start, one to train."""


def given_up(view: View, submitted: Submitted) -> GivenUp | None:
    """Return why a job that holds no GPU in this slot counts as given up; None if it only waits.

    A job waits as long as on-demand GPUs could still meet its deadline after the slot. The terms
    that would save it let on-demand GPUs finish it from the next slot on, because a user needs time
    to change terms.
    """
    job, slots, cost = view.job, view.job.fewest_slots(_left(view)), _cost(view)
    on_demand = view.market.on_demand_price
    priced_out = highest_price(submitted) < on_demand
    doubt = _doubt(view, spot_only=spot_only(view, submitted))
    if doubt is None:
        return None
    # Prices are those of a member; the user's highest price is that of one GPU.
    hours = submitted.slot_s / 3600 * submitted.task.gpus
    late = view.slot + slots > job.deadline and not submitted.soft
    over = job.budget is not None and view.spent + cost > job.budget
    return GivenUp(
        because=doubt,
        deadline=submitted.origin + (view.slot + slots) * submitted.slot_s if late else None,
        budget=_cents(view.spent + cost) if over else None,
        value=_cents(VALUE_MARGIN * cost) if job.value < VALUE_MARGIN * cost else None,
        max_price=_cents(on_demand / hours) if priced_out and doubt is Doubt.SPOT_ONLY else None,
    )


def spot_only(view: View, submitted: Submitted) -> bool:
    """Return whether the job may not use on-demand GPUs, by its policy or its highest price."""
    return (
        submitted.policy == SpotOnly().name
        or highest_price(submitted) < view.market.on_demand_price
    )


def probe(view: View, submitted: Submitted) -> Allocation:
    """Return the cheapest GPUs on which the pace can be measured; none if they cannot be had."""
    job, market = view.job, view.market
    gpus = job.min_gpus
    spot = int(cheapest_spot(gpus, market.available, market.spot_price, market.on_demand_price))
    if spot < gpus and spot_only(view, submitted):
        return Allocation()
    spot, on_demand = affordable(
        job_physics(job),
        spot,
        gpus - spot,
        market.spot_price,
        market.on_demand_price,
        view.spent,
    )
    return Allocation(spot=int(spot), on_demand=int(on_demand))


def faster(view: View, planned: tuple[float, ...], factor: float) -> View:
    """Return the view of a job that is ``factor`` times as fast, and at least as ``planned``."""
    curve = zip(view.job.throughput, planned, strict=False)
    throughput = tuple(max(factor * own, plan) for own, plan in curve)
    return msgspec.structs.replace(
        view, job=msgspec.structs.replace(view.job, throughput=throughput)
    )


def measure_early(view: View, gpus: Allocation, slowdown: float) -> bool:
    """Return whether a pace that was only estimated is measured in this slot, on ``gpus``.

    Spot GPUs measure it at once. On-demand GPUs measure it when a job that is ``slowdown`` times
    slower than estimated could not meet its deadline any more if it waited longer.
    """
    if slowdown <= 1 or not gpus.total:
        return False
    if not gpus.on_demand:
        return True
    slower = tuple(work / slowdown for work in view.job.throughput)
    job = msgspec.structs.replace(view.job, throughput=slower)
    later = now_of(view)._replace(slot=view.slot + MEASURING_SLOTS)
    return later.slot > job.deadline or not keeps_deadline(job_physics(job), later, 0, 0)


def _doubt(view: View, *, spot_only: bool) -> Doubt | None:
    job, market = view.job, view.market
    left = math.inf if job.budget is None else job.budget - view.spent
    cheapest = min(market.spot_price, market.on_demand_price)
    if left < job.min_gpus * cheapest:
        return Doubt.BUDGET
    least = min(
        gpus * _left(view) / job.throughput[gpus] for gpus in range(job.min_gpus, job.max_gpus + 1)
    )
    if job.value <= least * cheapest:
        return Doubt.WORTHLESS
    if view.slot <= job.deadline and keeps_deadline(job_physics(job), now_of(view), 0, 0):
        return None
    if left < job.min_gpus * market.on_demand_price:
        return Doubt.BUDGET
    if spot_only:
        return Doubt.SPOT_ONLY
    if view.slot - 1 + job.fewest_slots(_left(view)) > job.deadline:
        return Doubt.LATE
    return Doubt.WORTHLESS if job.value < VALUE_MARGIN * _cost(view) else Doubt.POLICY


def _left(view: View) -> float:
    """Return the work that is left."""
    return max(0.0, view.job.work - view.progress)


def _cost(view: View) -> float:
    """Return the dollars for the rest of the work on all GPUs on demand."""
    job = view.job
    return job.fewest_slots(_left(view)) * job.max_gpus * view.market.on_demand_price


def _cents(dollars: float) -> float:
    """Return dollars rounded up to whole cents."""
    return math.ceil(100 * dollars - 1e-6) / 100

"""Sia's round as it was published, in plain loops: what ``duetune.planners.sia`` is held to.

Nothing here is shared with the planner: costs are computed entry by entry, and the least objective
is found by a table over all numbers of GPUs that can be left.
"""

from __future__ import annotations

import functools
import math

CLIPPED = 3000.0


def most_allowed(view, stock, partition, scale_up=2):
    """The most GPUs that a job may have in a partition.

    Twice the most it has ever run with; it starts with the fewest it can run with. Where it can run
    with nothing in between, the next larger number (the published paces have no gaps).
    """
    held = stock.shapes[view.held].gpus if view.held >= 0 else 0
    ever = max(view.most_gpus, held)
    larger = [
        shape.gpus
        for pace, shape in zip(view.pace, stock.shapes, strict=True)
        if pace > 0 and shape.partition == partition and shape.gpus > ever
    ]
    return max(scale_up * ever, min(larger, default=0))


def restart_factor(view):
    """1 for a job that holds nothing, or has hardly begun; else the share of time left for work."""
    begun = view.attained_gpu_s if view.rigid else view.age_s
    if view.held < 0 or begun < view.restart_s:
        return 1.0
    lost = view.restarts * view.restart_s
    whole = view.age_s + view.restart_s
    return max(view.age_s - lost, 0.0) / whole if whole else 1.0


def utilities(view, stock, power=-0.5):
    """The utility of each shape by number, only of shapes that the job may have."""
    pinned = view.held >= 0 and (view.busy or not view.preemptible)
    able = [number for number, pace in enumerate(view.pace) if pace > 0]
    within = [
        number
        for number in able
        if stock.shapes[number].nodes <= stock.partitions[stock.shapes[number].partition].nodes
        and stock.shapes[number].gpus <= most_allowed(view, stock, stock.shapes[number].partition)
    ]
    if pinned:
        within = [number for number in within if number == view.held]
    if not within:
        return {}
    slowest = min(view.pace[number] for number in within)
    unit = min(stock.shapes[number].gpus for number in able)
    found = {}
    for number in within:
        goodput = view.pace[number] / slowest * unit
        if number != view.held:
            goodput *= restart_factor(view)
        if goodput > 0:
            found[number] = min(round(goodput**power, 2), CLIPPED)
    return found


def objective(views, stock, shapes, incentive=1.1):
    """The published objective (p below 0) of shapes by name of job: sum A.U + lambda (1 - A)."""
    return math.fsum(
        utilities(view, stock)[shapes[view.name]] if view.name in shapes else incentive
        for view in views
    )


def least_objective(views, stock, incentive=1.1):
    """The least objective of all choices for which there are GPUs; pinned jobs keep their shape."""
    rows = [utilities(view, stock) for view in views]
    pinned = [view.held >= 0 and (view.busy or not view.preemptible) for view in views]

    @functools.cache
    def least(job, left):
        if job == len(views):
            return 0.0
        found = math.inf if pinned[job] else incentive + least(job + 1, left)
        for number, utility in rows[job].items():
            partition, _, gpus = stock.shapes[number]
            rest = list(left)
            rest[partition] -= gpus
            if rest[partition] >= 0:
                found = min(found, utility + least(job + 1, tuple(rest)))
        return found

    return least(0, tuple(each.gpus for each in stock.partitions))

"""Sia's program is solved to its optimum; a simulated cluster gives out what there is, once."""

from __future__ import annotations

import functools
import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.core.planning import JobView, Partition, Stock, Tenure
from duetune.planners.queues import QueuePlanner
from duetune.planners.round_program import GAP
from duetune.planners.sia import Sia
from duetune.registry.clusters import world_source
from duetune.registry.planners import planner_named
from duetune.simulate.cluster.workload import poisson_arrivals, workload
from duetune.testing.small_markets import random_market
from support.small_cluster import STOCK, small_world, watched

PLANNERS = ("fifo", "fifo:backfill", "srt", "edf", "sia", "tutti")
world = functools.cache(small_world)


def costs_by_hand(view, stock, power=-0.5, incentive=1.1, scale_up=2):
    """Sia's objective, entry by entry as the paper has it; None where a job may not have it."""
    possible = [pace > 0 and stock.there[n] for n, pace in enumerate(view.pace)]
    runs = [n for n, pace in enumerate(view.pace) if pace > 0]
    if not runs:
        return [None] * len(view.pace)
    slowest = min(view.pace[n] for n in runs)
    fewest = min(stock.shapes[n].gpus for n in runs)
    restart = 1.0
    if view.age_s >= view.restart_s:
        spent = view.age_s - view.restarts * view.restart_s
        restart = max(0.0, spent) / (view.age_s + view.restart_s)
    held = stock.shapes[view.held].gpus if view.held >= 0 else 0
    found = []
    for n, shape in enumerate(stock.shapes):
        goodput = view.pace[n] / slowest * fewest * (1.0 if n == view.held else restart)
        sizes = sorted(stock.shapes[k].gpus for k in runs if stock.shapes[k].partition == shape[0])
        larger = [size for size in sizes if size > held]
        limit = max(scale_up * held, larger[0] if larger else 0)
        if not possible[n] or goodput <= 0 or shape.gpus > limit:
            found.append(None)
            continue
        utility = min(round(goodput**power, 2), 3000.0)
        found.append((utility if power < 0 else -utility) - incentive)
    return found


def best_by_hand(views, stock):
    """The least cost of all choices that the stock has GPUs for."""
    rows = [[(None, 0.0), *enumerate(costs_by_hand(view, stock))] for view in views]
    least = math.inf
    for choice in itertools.product(
        *([pair for pair in row if pair[1] is not None] for row in rows)
    ):
        used = [0] * len(stock.partitions)
        for shape, _ in choice:
            if shape is not None:
                used[stock.shapes[shape].partition] += stock.shapes[shape].gpus
        if all(gpus <= each.gpus for gpus, each in zip(used, stock.partitions, strict=True)):
            least = min(least, math.fsum(cost for _, cost in choice))
    return least


@st.composite
def rounds(draw):
    """Two to four jobs on one or two small partitions."""
    sizes = draw(
        st.lists(st.sampled_from([(1, 2), (1, 4), (2, 2), (3, 1)]), min_size=1, max_size=2)
    )
    stock = Stock(
        tuple(
            Partition(name=f"p{n}", gpu_model="A100-80GB", nodes=nodes, gpus_per_node=gpus)
            for n, (nodes, gpus) in enumerate(sizes)
        )
    )
    count = len(stock.shapes)
    pace = st.lists(st.one_of(st.just(0.0), st.floats(1, 100)), min_size=count, max_size=count)
    return [
        JobView(
            name=f"job-{n}",
            pace=np.array(draw(pace)),
            remaining=1.0,
            age_s=draw(st.sampled_from([0.0, 30.0, 60.0, 300.0, 5000.0])),
            restart_s=60.0,
            restarts=draw(st.integers(0, 6)),
            held=draw(st.integers(-1, count - 1)),
        )
        for n in range(draw(st.integers(2, 4)))
    ], stock


@given(rounds())
@settings(max_examples=40)
def test_sia_finds_the_optimum_of_all_choices(round_):
    views, stock = round_
    shapes = Sia().plan(views, stock).shapes
    rows = {view.name: costs_by_hand(view, stock) for view in views}
    reached = math.fsum(rows[name][shape] for name, shape in shapes.items())
    best = best_by_hand(views, stock)
    assert reached <= best + GAP * max(1.0, abs(best)) + 1e-9


@given(rounds(), st.sampled_from([-0.5, -1.0, 0.5]))
@settings(max_examples=30)
def test_sias_costs_are_those_of_the_paper(round_, power):
    views, stock = round_
    for view in views:
        got = Sia(power=power).costs(view, stock)
        for value, expected in zip(got, costs_by_hand(view, stock, power), strict=True):
            assert value == (math.inf if expected is None else pytest.approx(expected))


def drawn_jobs(seed, count=8, per_hour=120.0, slack=None):
    random = np.random.default_rng(seed)
    arrivals = poisson_arrivals(count, per_hour, random)
    return workload(world().kinds, arrivals, random, median_s=600.0, slack=slack)


MARKET_STOCK = Stock(
    (
        STOCK.partitions[0],
        Partition(
            name="spot",
            gpu_model="L40S",
            nodes=3,
            gpus_per_node=2,
            tenure=Tenure.SPOT,
            price=1.0,
        ),
    ),
    {"limited": 4},
)


@given(
    st.integers(0, 10_000),
    st.sampled_from(PLANNERS),
    st.sampled_from(["random", "nearest", "oracle"]),
    st.booleans(),
)
@settings(max_examples=14)
def test_a_simulation_adds_up(seed, planner, source, market):
    """No GPU is given out twice, all work is done, and every second of a GPU is paid for."""
    jobs = drawn_jobs(seed, slack=(2.0, 8.0))
    jobs = [msgspec.structs.replace(each, project="limited") for each in jobs[:3]] + list(jobs[3:])
    stock = MARKET_STOCK if market else STOCK
    trace = random_market(seed, 40, most=3)
    simulation, outcome = watched(
        jobs,
        planner_named(planner),
        world_source(source, world(), seed=seed),
        world(),
        stock=stock,
        markets={"spot": trace} if market else None,
    )
    assert [each.name for each in outcome.jobs] == [each.name for each in jobs]
    assert all(each.finished_s is not None for each in outcome.jobs)
    for each in outcome.rounds:
        assert all(used <= there for used, there in zip(each.used, each.there, strict=True))
        if market:
            slot = int(each.at_s / (trace.slot_hours * 3600)) % trace.slots
            assert each.there[1] == 2 * min(3, int(trace.available[0, slot]))
    tokens = {job.name: job.tokens for job in jobs}
    for job in outcome.jobs:
        work = gpu_s = dollars = 0.0
        for _, at, gpus, price, pace, pending in (
            row for row in simulation.seen if row[0] == job.name
        ):
            held = min(60.0, job.finished_s - at)
            work += max(0.0, held - pending) * pace
            gpu_s += gpus * held
            dollars += gpus * held / 3600 * price
        assert work == pytest.approx(tokens[job.name], rel=1e-6)
        assert job.gpu_hours == pytest.approx(gpu_s / 3600)
        assert job.dollars == pytest.approx(dollars)
        assert job.submitted_s <= job.first_s < job.finished_s
        assert job.deadline_s is None or job.late == (job.finished_s > job.deadline_s)


@pytest.mark.parametrize("planner", PLANNERS)
def test_the_same_seed_gives_the_same_bytes(planner):
    once, again = (
        msgspec.json.encode(
            watched(
                drawn_jobs(3),
                planner_named(planner),
                world_source("random", world(), seed=3),
                world(),
            )[1]
        )
        for _ in range(2)
    )
    assert once == again


@given(st.integers(0, 10_000))
@settings(max_examples=8)
def test_first_come_first_served_is_just_that(seed):
    jobs = drawn_jobs(seed, 12, 240.0)
    _, outcome = watched(jobs, QueuePlanner(), world().truth, world())
    starts = [each.first_s for each in outcome.jobs]
    assert starts == sorted(starts)
    assert all(each.restarts == 0 for each in outcome.jobs)


class Promises(QueuePlanner, frozen=True):
    """Notes for whom room is promised, and in how many minutes; ``made`` is by name."""

    made: dict[str, float] = msgspec.field(default_factory=dict)

    def plan(self, views, stock):
        plan = super().plan(views, stock)
        for name, reason in plan.reasons.items():
            if reason.startswith("enough GPUs become free"):
                age = next(view.age_s for view in views if view.name == name)
                self.made.setdefault(name, age + 60 * (float(reason.split()[-2]) + 0.5))
        return plan


@given(st.integers(0, 10_000))
@settings(max_examples=8)
def test_who_is_first_starts_by_the_moment_it_was_promised_whoever_is_let_before_it(seed):
    """With paces that are exact. A promise is in whole minutes, and kept in whole rounds."""
    planner = Promises(backfill=True)
    _, outcome = watched(
        drawn_jobs(seed, 14, 400.0),
        planner,
        world().truth,
        world(),
        delays={"start_s": 0.0, "restart_s": 0.0},
    )
    waited = {each.name: each.queued_s for each in outcome.jobs}
    for name, promised_s in planner.made.items():
        assert waited[name] <= promised_s + 60.0

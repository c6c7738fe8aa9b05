"""Sia's program is solved to its optimum; a simulated cluster gives out what there is, once."""

from __future__ import annotations

import functools

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
from support import plain_sia
from support.small_cluster import STOCK, small_world, watched

PLANNERS = ("fifo", "fifo:backfill", "srt", "edf", "sia", "tutti")
world = functools.cache(small_world)


SIZES = [(1, 2), (1, 4), (2, 2), (3, 1), (2, 4), (1, 8)]


def random_round(random):
    """Two to nine jobs on one to three small partitions, some of which run, start or are rigid."""
    stock = Stock(
        tuple(
            Partition(name=f"p{n}", gpu_model="A100-80GB", nodes=nodes, gpus_per_node=gpus)
            for n, (nodes, gpus) in enumerate(random.choice(SIZES, random.integers(1, 4)).tolist())
        )
    )
    free = stock.capacity.copy()
    views = []
    for n in range(random.integers(2, 10)):
        speed = random.uniform(1, 6, len(stock.partitions))[stock.partition]
        pace = speed * stock.gpus ** random.uniform(0.5, 1.0)
        rigid = random.random() < 0.2
        if rigid:
            pace[stock.gpus != random.choice(stock.gpus)] = 0.0
        elif random.random() < 0.3:
            pace[random.random(pace.size) < 0.3] = 0.0
        fits = np.flatnonzero((pace > 0) & (stock.gpus <= free[stock.partition]))
        held = int(random.choice(fits)) if fits.size and random.random() < 0.5 else -1
        if held >= 0:
            free[stock.partition[held]] -= stock.gpus[held]
        views.append(
            JobView(
                name=f"job-{n}",
                pace=pace,
                remaining=1.0,
                age_s=float(random.choice([0.0, 30.0, 60.0, 300.0, 5000.0])),
                restart_s=float(random.choice([25.0, 60.0, 250.0])),
                restarts=int(random.integers(0, 7)),
                held=held,
                busy=held >= 0 and random.random() < 0.15,
                rigid=rigid,
                most_gpus=int(random.choice([0, 1, 2, 4, 8])),
                attained_gpu_s=float(random.choice([0.0, 20.0, 100.0, 1e4])),
            )
        )
    return views, stock


@pytest.mark.parametrize("seed", range(100))
def test_sias_objective_is_that_of_the_published_rules(seed):
    views, stock = random_round(np.random.default_rng(seed))
    shapes = Sia().plan(views, stock).shapes
    best = plain_sia.least_objective(views, stock)
    slack = GAP * max(1.0, abs(best - 1.1 * len(views))) + 1e-9
    assert plain_sia.objective(views, stock, shapes) == pytest.approx(best, abs=slack)


@pytest.mark.parametrize("power", [-0.5, -1.0, 0.5])
def test_sias_costs_are_those_of_the_paper(power):
    for seed in range(30):
        views, stock = random_round(np.random.default_rng(seed))
        for view in views:
            known = plain_sia.utilities(view, stock, power)
            costs = Sia(power=power).costs(view, stock)
            assert set(np.flatnonzero(np.isfinite(costs)).tolist()) == set(known)
            sign = 1 if power < 0 else -1
            for shape, utility in known.items():
                assert costs[shape] == pytest.approx(sign * utility - 1.1)


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

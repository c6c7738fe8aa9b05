from __future__ import annotations

import io
import json

import msgspec
import numpy as np
import pytest

from duetune.core.market import MarketTrace
from duetune.core.planning import Partition, Stock, Tenure
from duetune.errors import InvalidInput
from duetune.knowledge.history import History
from duetune.knowledge.sources.blind import DefaultSource, RandomSource
from duetune.planners.queues import QueueOrder, QueuePlanner
from duetune.planners.sia import Sia
from duetune.simulate.cluster.cluster_outcome import What, write_jobs, write_rounds
from duetune.simulate.cluster.cluster_world import Supply, emulated, replayed, usual_stock
from duetune.simulate.cluster.job_views import Briefing
from duetune.simulate.cluster.rounds import Delays
from duetune.simulate.cluster.trial import Cluster, Setting, compared
from duetune.simulate.cluster.workload import ClusterJob
from support.small_cluster import MODEL, STOCK, changes, pace_of, small_world, watched

WORLD = small_world()
ONE_NODE = Stock(
    (Partition(name="only", gpu_model="A100-80GB", nodes=1, gpus_per_node=4, price=2.0),)
)
SPOT = Stock(
    (
        Partition(
            name="spot",
            gpu_model="A100-80GB",
            nodes=2,
            gpus_per_node=4,
            tenure=Tenure.SPOT,
            price=2.0,
        ),
    )
)


def job(name="a", submitted_s=0.0, tokens=1e6, **fields):
    given = {"model": MODEL, "method": "full", "tokens_per_sample": 1024}
    given |= fields.pop("given", {})
    return ClusterJob(name=name, submitted_s=submitted_s, given=given, tokens=tokens, **fields)


def market(available, slot_hours=0.5):
    count = np.array(available)
    return MarketTrace.single(np.full(count.size, 0.5), count, 1.0, slot_hours=slot_hours)


def test_a_job_alone_takes_its_start_and_its_work():
    _, outcome = watched([job(submitted_s=70.0)], QueuePlanner(), WORLD.truth, WORLD)
    (done,) = outcome.jobs
    # Seen in the round that begins after it came; eight GPUs on two nodes are the best it can have.
    assert done.first_s == 120.0
    assert done.finished_s == pytest.approx(120 + 60 + 1e6 / (2000 * 8**0.9))
    assert done.gpu_hours == pytest.approx(8 * (done.finished_s - 120) / 3600)
    assert done.dollars == pytest.approx(2.0 * done.gpu_hours)
    assert changes(outcome) == [(120.0, "a", What.STARTED), (240.0, "a", What.FINISHED)]


def test_a_start_that_runs_out_of_memory_costs_time_and_excludes_what_needs_as_much():
    small = Stock(STOCK.partitions[1:])
    # The default is nearest to a batch of 16: with one GPU of these one that does not fit.
    rigid = job(given={"num_gpus": 1})
    briefing = Briefing(DefaultSource(), WORLD.space, small, single=True)
    first = briefing.row(rigid)
    (tried,) = first.configurations.values()
    assert pace_of(tried) == 0.0
    briefing.ran_out(rigid, tried, 0.0)
    (then,) = briefing.row(rigid).configurations.values()
    assert then.batch_size == 4
    _, outcome = watched([rigid], QueuePlanner(), DefaultSource(), WORLD, stock=small, single=True)
    (done,) = outcome.jobs
    assert (done.failures, done.first_s) == (1, 120.0)
    assert done.finished_s == pytest.approx(120 + 60 + 1e6 / pace_of(then))


def test_fairness_is_against_an_even_share_in_the_best_configuration_whatever_is_believed():
    _, alone = watched([job()], QueuePlanner(), DefaultSource(), WORLD, stock=ONE_NODE, single=True)
    best = 2000 * 4**0.9
    assert alone.jobs[0].alone_s == pytest.approx(60 + 60 + 1e6 / best)
    # Two at once have two GPUs each; eight of them have one, which is the least.
    for count, shares in ((2, 2**0.9), (8, 1.0)):
        jobs = [job(str(number)) for number in range(count)]
        _, outcome = watched(
            jobs, QueuePlanner(), DefaultSource(), WORLD, stock=ONE_NODE, single=True
        )
        first = outcome.jobs[0]
        assert first.alone_s == pytest.approx(120 + 1e6 / (2000 * shares))
        figures = outcome.figures()
        ratios = [each.jct_s / each.alone_s for each in outcome.jobs]
        assert figures.fairness == pytest.approx(max(ratios))
        assert figures.unfair == pytest.approx(sum(ratio > 1 for ratio in ratios) / count)


def test_a_job_that_cannot_run_ends_the_simulation_undone():
    # Only rows that run out of memory are left to it.
    hopeless = job(given={"batch_size": 16, "gpu_model": "L40S", "num_gpus": 1})
    _, outcome = watched([hopeless, job("b")], QueuePlanner(), WORLD.truth, WORLD)
    figures = outcome.figures()
    assert (figures.jobs, figures.unserved) == (2, 1)
    assert outcome.jobs[1].finished_s is not None
    assert len(outcome.rounds) < 20


def test_a_shorter_job_takes_the_gpus_and_the_longer_one_goes_on_later():
    long, short = job("long", tokens=1e7), job("short", 300.0, tokens=1e6)
    _, outcome = watched(
        [long, short], QueuePlanner(QueueOrder.REMAINING), WORLD.truth, WORLD, stock=ONE_NODE
    )
    assert [what for _, name, what in changes(outcome) if name == "long"] == [
        What.STARTED,
        What.STOPPED,
        What.STARTED,
        What.FINISHED,
    ]
    pace = 2000 * 4**0.9
    done = outcome.jobs[0]
    assert done.restarts == 1
    ended = outcome.jobs[1].finished_s
    again = 60 * np.ceil(ended / 60)
    assert done.finished_s == pytest.approx(again + 60 + (1e7 - (300 - 60) * pace) / pace)


class Noting(Sia, frozen=True):
    """Sia, which notes what it was shown of the jobs; ``seen`` is in the order of the rounds."""

    seen: list = msgspec.field(default_factory=list)

    def plan(self, views, stock):
        self.seen.extend(views)
        return super().plan(views, stock)


def test_planners_are_shown_the_most_gpus_a_job_ran_with_and_what_it_has_used():
    planner = Noting()
    rigid = job("rigid", given={"num_gpus": 2})
    watched([job("grows", tokens=1e7), rigid], planner, WORLD.truth, WORLD, stock=ONE_NODE)
    grows = [view for view in planner.seen if view.name == "grows"]
    assert not any(view.rigid for view in grows)
    # It has run only after the minute of its start.
    assert [view.most_gpus for view in grows[:3]] == [0, 0, 1]
    assert [view.attained_gpu_s for view in grows[:3]] == [0.0, 60.0, 120.0]
    most = [view.most_gpus for view in grows]
    assert most == sorted(most)
    assert all(view.rigid for view in planner.seen if view.name == "rigid")


def test_a_job_that_waited_long_starts_at_once_however_long_starts_take():
    slow = {"start_s": 600.0, "restart_s": 600.0}
    only = Stock((msgspec.structs.replace(ONE_NODE.partitions[0], gpus_per_node=1),))
    jobs = [job("first"), job("second")]
    _, outcome = watched(jobs, Sia(), WORLD.truth, WORLD, stock=only, delays=slow)
    ended = min(each.finished_s for each in outcome.jobs)
    assert 0 <= max(each.first_s for each in outcome.jobs) - ended <= 60


def test_a_restart_takes_what_the_job_says():
    long, short = job("long", tokens=1e7, restart_s=250.0), job("short", 600.0, tokens=1e6)
    simulation, _ = watched(
        [long, short], QueuePlanner(QueueOrder.REMAINING), WORLD.truth, WORLD, stock=ONE_NODE
    )
    pending = {(name, at): rest for name, at, _, _, _, rest in simulation.seen}
    starts = [rest for (name, _), rest in pending.items() if name == "long" and rest == 250.0]
    assert len(starts) == 2, "the start and the restart"
    assert pending["short", 600.0] == 60.0
    with pytest.raises(InvalidInput, match="restart_s"):
        job(restart_s=-1.0)


class TestMarket:
    def test_nodes_that_are_taken_evict_and_the_job_still_finishes(self):
        trace = market([2, 0, 1, 2])
        _, outcome = watched(
            [job(tokens=5e7)],
            QueuePlanner(),
            WORLD.truth,
            WORLD,
            stock=SPOT,
            markets={"spot": trace},
        )
        (done,) = outcome.jobs
        assert done.evictions >= 1
        assert done.finished_s is not None
        evicted = changes(outcome, What.EVICTED)
        assert evicted[0][0] == 1800.0
        assert all(each.used == (0,) for each in outcome.rounds if 1800 <= each.at_s % 7200 < 3600)

    def test_what_is_held_is_paid_at_the_price_of_the_moment(self):
        # Half a dollar for half an hour is a dollar an hour.
        _, outcome = watched(
            [job()], QueuePlanner(), WORLD.truth, WORLD, stock=SPOT, markets={"spot": market([2])}
        )
        assert outcome.jobs[0].dollars == pytest.approx(outcome.jobs[0].gpu_hours)

    def test_shapes_stay_the_same_whatever_is_there(self):
        supply = Supply(SPOT, {"spot": market([2, 0])})
        full, none = supply.at(0.0), supply.at(1800.0)
        assert full.shapes == none.shapes
        assert (full.capacity.tolist(), none.capacity.tolist()) == ([8], [0])
        assert not none.there.any()
        assert supply.at(3600.0) is full

    def test_only_what_is_bought_has_a_market(self):
        with pytest.raises(InvalidInput, match="market: 'only'"):
            Supply(ONE_NODE, {"only": market([1])})
        with pytest.raises(InvalidInput, match="a partition: only"):
            Supply(ONE_NODE, {"other": market([1])})


class TestBlindKnowledge:
    def test_paces_are_taken_to_be_proportional_to_gpus(self):
        row = Briefing(DefaultSource(), WORLD.space, STOCK).row(job())
        assert row.guessed
        assert row.pace.tolist() == [1, 2, 4, 8, 1, 2, 4]

    def test_what_a_job_has_shown_corrects_them(self):
        briefing = Briefing(DefaultSource(), WORLD.space, STOCK)
        one = job()
        shape = STOCK.shape(0, 2)
        briefing.shown(one, briefing.row(one).configurations[shape], 3000.0)
        assert briefing.row(one).pace.tolist() == [1500, 3000, 6000, 12000, 1500, 3000, 6000]
        assert briefing.row(job("b")).pace.tolist() == [1, 2, 4, 8, 1, 2, 4]

    def test_a_queue_gets_one_configuration_and_others_one_for_each_shape(self):
        single = Briefing(RandomSource(1), WORLD.space, STOCK, single=True).row(job())
        each = Briefing(RandomSource(1), WORLD.space, STOCK).row(job())
        assert len(single.configurations) == 1
        assert len(each.configurations) == len(STOCK.shapes)

    def test_every_job_draws_for_itself(self):
        briefing = Briefing(RandomSource(1), WORLD.space, STOCK, single=True)
        drawn = {
            next(iter(briefing.row(job(f"j{n}")).configurations.values())).key for n in range(12)
        }
        assert len(drawn) > 3


def test_what_is_learned_is_told_to_the_source_only_if_that_is_asked_for():
    class Heard(RandomSource):
        def __init__(self):
            super().__init__(1)
            self.heard = []

        def observe(self, observation):
            self.heard.append(observation.outcome)

    for learning, count in ((False, 0), (True, 3)):
        source = Heard()
        jobs = [job("a"), job("b"), job("c")]
        _, outcome = watched(jobs, Sia(), source, WORLD, learning=learning)
        failures = sum(each.failures for each in outcome.jobs)
        assert len(source.heard) == (count + failures if learning else 0)


def test_the_figures_say_what_came_of_it():
    jobs = [job("a", deadline_s=100.0), job("b", 60.0, deadline_s=9e9), job("c", 60.0)]
    _, outcome = watched(jobs, QueuePlanner(), WORLD.truth, WORLD)
    figures = outcome.figures()
    times = [each.jct_s / 3600 for each in outcome.jobs]
    assert figures.mean_jct_h == pytest.approx(np.mean(times))
    assert figures.missed == 0.5
    assert figures.makespan_h == pytest.approx(max(each.finished_s for each in outcome.jobs) / 3600)
    assert 0 < figures.utilisation <= 1
    assert figures.dollars == pytest.approx(sum(each.dollars for each in outcome.jobs))


def test_jobs_and_rounds_can_be_written_down():
    _, outcome = watched([job("a"), job("b", 300.0)], QueuePlanner(), WORLD.truth, WORLD)
    jobs, rounds = io.StringIO(), io.StringIO()
    write_jobs(outcome, "replay", jobs)
    write_rounds(outcome, "replay", ["large", "small"], rounds)
    header, first, _ = jobs.getvalue().splitlines()
    row = dict(zip(header.split(","), first.split(","), strict=True))
    assert float(row["jct_s"]) == outcome.jobs[0].jct_s
    assert (row["deadline_s"], row["late"], row["world"]) == ("", "False", "replay")
    lines = [json.loads(line) for line in rounds.getvalue().splitlines()]
    assert lines[0]["used"] == {"large": 8, "small": 0}
    assert lines[0]["changes"] == [{"job": "a", "what": "started", "partition": "large", "gpus": 8}]


@pytest.mark.parametrize("field", ["start_s", "failed_s", "round_s"])
def test_delays_are_refused_where_they_make_no_sense(field):
    with pytest.raises(InvalidInput, match=field):
        Delays(**{field: -1.0})


class TestWorlds:
    def test_a_replay_has_the_measured_configurations_and_no_others(self):
        history = WORLD.truth.history
        world = replayed(history, STOCK, seed=1, least=4)
        assert world.how == "replay"
        assert len(world.space.rows) == len(history)
        assert len(world.known) == len(history) // 2
        with pytest.raises(InvalidInput, match="runs on H200"):
            replayed(
                history,
                Stock((Partition(name="h", gpu_model="H200", nodes=1, gpus_per_node=1),)),
            )

    def test_an_emulation_has_every_kind_on_nodes_of_every_size(self):
        mixed = Stock((*usual_stock().partitions, STOCK.partitions[1]))
        world = emulated(History.empty(), mixed, executed=50)
        assert world.how == "emulated"
        assert len(world.kinds) == 30
        assert len(world.known) == 50
        nodes = {
            (each.num_gpus, each.num_nodes) for each in world.space.rows if each.gpu_model == "L40S"
        }
        assert nodes == {(1, 1), (2, 1), (4, 1), (4, 2), (8, 2), (8, 4)}


class TestComparison:
    def test_the_first_of_each_load_is_what_others_are_compared_with(self):
        cluster = Cluster(STOCK, WORLD)
        results = {}
        for load in (1.0, 2.0):
            for planner in (QueuePlanner(), QueuePlanner(QueueOrder.REMAINING)):
                for seed in range(3):
                    jobs = [job(f"j{n}", 60.0 * n, 1e6 * (1 + n + seed)) for n in range(4)]
                    setting = Setting(planner=planner.name, source="oracle", load=load)
                    figures = cluster.simulate(jobs, planner, WORLD.truth).figures()
                    results.setdefault(setting, []).append(figures)
        found = compared(results, seed=1)
        assert [each.reduction is None for each in found] == [True, False, True, False]
        base, other = found[:2]
        saved = 1 - other.figures.mean_jct_h / base.figures.mean_jct_h
        assert other.reduction == pytest.approx(saved)
        assert other.reduction_interval.low <= other.reduction <= other.reduction_interval.high
        assert base.mean_jct_h.low <= base.figures.mean_jct_h <= base.mean_jct_h.high
        assert (base.seeds, base.figures.jobs) == (3, 12)
        assert found == compared(results, seed=1)

    def test_one_seed_has_no_interval(self):
        figures = Cluster(STOCK, WORLD).simulate([job()], QueuePlanner(), WORLD.truth).figures()
        settings = [Setting(planner=name, source="oracle", load=None) for name in ("a", "b")]
        first, second = compared({each: [figures] for each in settings})
        assert first.mean_jct_h is None
        assert (second.reduction, second.reduction_interval) == (0.0, None)

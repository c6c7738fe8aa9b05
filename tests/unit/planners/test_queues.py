from __future__ import annotations

import msgspec
import numpy as np
import pytest

from duetune.core.planning import JobView, Partition, Placement, Stock
from duetune.errors import InvalidInput
from duetune.planners.queues import QueueOrder, QueuePlanner

STOCK = Stock((Partition(name="only", gpu_model="A100-80GB", nodes=2, gpus_per_node=4),))
ONE, TWO, FOUR, EIGHT = range(4)
LINEAR = (100.0, 200.0, 400.0, 800.0)


def view(name, pace=LINEAR, minutes=60.0, **fields):
    """``minutes`` of one GPU are left to do."""
    values = {"remaining": minutes * 60 * 100.0, "restart_s": 60.0, "start_s": 60.0}
    return JobView(name=name, pace=np.array(pace, float), **(values | fields))


def held(one, shape, *nodes):
    place = Placement(0, tuple((node, STOCK.shapes[shape].gpus // len(nodes)) for node in nodes))
    return msgspec.structs.replace(one, held=shape, placement=place)


def only(gpus, pace=100.0):
    """A pace for one number of GPUs alone."""
    return tuple(pace * each.gpus if each.gpus == gpus else 0.0 for each in STOCK.shapes)


def test_the_best_shape_by_pace_for_gpus_is_taken():
    # 800 / 8 ** 0.7 is more than 400 / 4 ** 0.7; of what scales badly fewer are better.
    assert QueuePlanner().plan([view("a")], STOCK).shapes == {"a": EIGHT}
    assert QueuePlanner().plan([view("a", (100, 150, 180, 200))], STOCK).shapes == {"a": ONE}
    assert QueuePlanner(balance=0.0).plan([view("a", (100, 150, 180, 200))], STOCK).shapes == {
        "a": EIGHT
    }


def test_who_is_first_waits_for_something_better_than_a_third_of_the_best():
    runs = held(view("runs", only(4)), FOUR, 0)
    partial = held(view("partial", only(2)), TWO, 1)
    choosy = view("choosy", (10.0, 20.0, 400.0, 0.0))
    plan = QueuePlanner().plan([runs, partial, choosy, view("next", only(1))], STOCK)
    assert set(plan.shapes) == {"runs", "partial"}
    assert plan.reasons == {
        "choosy": "the free GPUs are too slow for this job",
        "next": "waits behind earlier jobs",
    }
    eager = QueuePlanner(patience=0.0).plan([runs, partial, choosy], STOCK)
    assert eager.shapes["choosy"] == TWO


class TestBackfill:
    runs = held(view("runs", only(4), minutes=240.0), FOUR, 0)  # an hour with four
    first = view("first", only(8))

    def test_a_short_job_runs_while_the_first_waits(self):
        short = view("short", only(4), minutes=100.0)
        plan = QueuePlanner(backfill=True).plan([self.runs, self.first, short], STOCK)
        assert plan.shapes == {"runs": FOUR, "short": FOUR}
        assert plan.reasons["first"] == "enough GPUs become free in about 60 min"
        assert plan.reasons["short"] == "backfilled without delaying first"

    def test_one_that_would_hold_it_up_does_not(self):
        # 220 minutes of one GPU are 55 of four: with caution 66, more than the hour.
        long = view("long", only(4), minutes=220.0)
        plan = QueuePlanner(backfill=True).plan([self.runs, self.first, long], STOCK)
        assert plan.shapes == {"runs": FOUR}

    def test_a_long_one_runs_where_the_first_will_not_need_it(self):
        whole = view("whole", only(4))
        long = view("long", only(2), minutes=900.0)
        busy = held(view("busy", only(2), minutes=10.0), TWO, 1)
        plan = QueuePlanner(backfill=True).plan([self.runs, busy, whole, long], STOCK)
        # Node 1 is free first, for the one that is first; at node 0 nothing is free before.
        assert plan.shapes == {"runs": FOUR, "busy": TWO}
        small = view("small", only(2), minutes=10.0)
        plan = QueuePlanner(backfill=True).plan([self.runs, busy, small, long], STOCK)
        assert set(plan.shapes) == {"runs", "busy", "small"}

    def test_nobody_overtakes_without_it(self):
        short = view("short", only(4), minutes=100.0)
        plan = QueuePlanner().plan([self.runs, self.first, short], STOCK)
        assert plan.shapes == {"runs": FOUR}


def test_the_shortest_takes_the_place_of_a_longer_one():
    runs = held(view("runs", only(8), minutes=600.0), EIGHT, 0, 1)
    short = view("short", only(8), minutes=300.0)
    assert QueuePlanner(QueueOrder.REMAINING).plan([runs, short], STOCK).shapes == {"short": EIGHT}


def test_a_little_shorter_is_not_worth_a_restart():
    runs = held(view("runs", only(8), minutes=600.0), EIGHT, 0, 1)
    short = view("short", only(8), minutes=594.0)  # by 45 s of eight GPUs, less than a restart
    assert QueuePlanner(QueueOrder.REMAINING).plan([runs, short], STOCK).shapes == {"runs": EIGHT}


class TestDeadlines:
    def test_the_most_urgent_comes_first(self):
        later = held(view("later", only(8), deadline_s=7200.0), EIGHT, 0, 1)
        sooner = view("sooner", only(8), deadline_s=3600.0)
        never = view("never", only(8))
        plan = QueuePlanner(QueueOrder.DEADLINE).plan([never, later, sooner], STOCK)
        assert plan.shapes == {"sooner": EIGHT}

    def test_the_fewest_gpus_that_are_in_time_are_enough(self):
        # An hour of one GPU and a minute to start: with two in time, with one not.
        assert QueuePlanner(QueueOrder.DEADLINE).plan(
            [view("a", (100, 190, 360, 680), deadline_s=3000.0)], STOCK
        ).shapes == {"a": TWO}

    def test_who_is_late_anyhow_runs_as_fast_as_can_be(self):
        plan = QueuePlanner(QueueOrder.DEADLINE).plan([view("a", deadline_s=10.0)], STOCK)
        assert plan.shapes == {"a": EIGHT}


def test_a_project_has_no_more_than_its_quota():
    stock = Stock(STOCK.partitions, {"small": 2})
    views = [view("a", project="small"), view("b", project="small"), view("c")]
    # The second of the project waits for the first, and nobody waits for it.
    assert QueuePlanner(patience=0.0).plan(views, stock).shapes == {"a": TWO, "c": FOUR}
    assert QueuePlanner(QueueOrder.REMAINING, patience=0.0).plan(views, stock).shapes == {
        "a": TWO,
        "c": FOUR,
    }


@pytest.mark.parametrize(
    "fields", [{"patience": 1.5}, {"balance": -1}, {"order": QueueOrder.DEADLINE, "backfill": True}]
)
def test_what_makes_no_sense_is_refused(fields):
    with pytest.raises(InvalidInput):
        QueuePlanner(**fields)

"""Completions first, then dollars and deadlines."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from duetune.core.planning import JobView, Partition, Placement, Stock, Tenure
from duetune.errors import InvalidInput
from duetune.planners.tutti import Tutti, premium, time_needed

EACH = 100.0


def part(name, nodes, tenure=Tenure.FIXED, price=0.0):
    return Partition(
        name=name, gpu_model="A100-80GB", nodes=nodes, gpus_per_node=4, tenure=tenure, price=price
    )


OURS = part("ours", 1)
RENTED = part("rented", 2, Tenure.ON_DEMAND, 4.0)
SPOT = part("spot", 2, Tenure.SPOT, 0.3)


def view(name, stock, minutes, **fields):
    """``minutes`` are left with four GPUs; twice as many do almost twice as much."""
    return JobView(
        name=name,
        pace=EACH * stock.gpus.astype(float) ** 0.95,
        remaining=minutes * 60 * EACH * 4**0.95,
        start_s=60.0,
        restart_s=60.0,
        **fields,
    )


def given(stock, *views, **options):
    """Partition and GPUs of each job that has some."""
    plan = Tutti(**options).plan(views, stock)
    return {
        name: (stock.partitions[stock.shapes[shape].partition].name, stock.shapes[shape].gpus)
        for name, shape in plan.shapes.items()
    }


def running(one, stock, partition, gpus):
    shape = stock.shape(partition, gpus)
    nodes = tuple((node, 4) for node in range(gpus // 4))
    return msgspec.structs.replace(one, held=shape, placement=Placement(partition, nodes))


def test_one_job_runs_as_fast_as_it_can():
    stock = Stock((part("ours", 2),))
    assert given(stock, view("a", stock, 60)) == {"a": ("ours", 8)}


def test_gpus_that_are_already_paid_are_worth_saving():
    # Four GPUs are hardly faster than one, and cost nothing.
    stock = Stock((OURS,))
    slow = msgspec.structs.replace(view("a", stock, 60), pace=EACH * stock.gpus**0.1)
    assert given(stock, slow, gpu_hour=0.0) == {"a": ("ours", 4)}
    assert given(stock, slow) == {"a": ("ours", 1)}
    assert given(stock, view("a", stock, 60)) == {"a": ("ours", 4)}
    # However dear GPU-hours are, a job does not wait for ever.
    assert given(stock, slow, gpu_hour=1e6) == {"a": ("ours", 1)}


def test_of_two_the_shorter_comes_first():
    stock = Stock((OURS,))
    assert given(stock, view("long", stock, 600), view("short", stock, 5))["short"] == ("ours", 4)


def test_who_has_waited_long_comes_before_who_is_a_little_shorter():
    stock = Stock((OURS,))
    old = view("old", stock, 60, age_s=1e6)
    assert given(stock, old, view("new", stock, 40)) == {"old": ("ours", 4)}


def test_owned_gpus_come_first_and_dear_ones_are_not_worth_the_time():
    stock = Stock((OURS, RENTED))
    for minutes in (600, 60, 6, 1):
        assert given(stock, view("a", stock, minutes)) == {"a": ("ours", 4)}
    assert given(stock, view("a", stock, 600), worth=1e4) == {"a": ("rented", 8)}


def test_a_job_that_runs_on_owned_gpus_does_not_leave_them_as_its_end_comes_near():
    stock = Stock((OURS, RENTED))
    for minutes in (60, 10, 3, 1):
        one = running(view("a", stock, minutes, age_s=50_000.0), stock, 0, 4)
        assert given(stock, one) == {"a": ("ours", 4)}


def test_cheap_spot_is_taken_where_the_time_it_saves_is_worth_it():
    stock = Stock((OURS, SPOT))
    assert given(stock, view("a", stock, 600)) == {"a": ("spot", 8)}
    assert given(stock, view("a", stock, 600), worth=1.0, gpu_hour=0.0) == {"a": ("ours", 4)}


def test_what_does_not_pay_is_waited_for():
    stock = Stock((OURS, RENTED))
    first = running(view("first", stock, 30), stock, 0, 4)
    assert given(stock, first, view("second", stock, 60)) == {"first": ("ours", 4)}


def test_a_job_at_risk_takes_owned_gpus_from_one_that_has_time():
    stock = Stock((OURS, RENTED))
    urgent = view("urgent", stock, 60, deadline_s=80 * 60.0)
    free = view("free", stock, 30)
    assert given(stock, free, urgent, worth=1.0) == {"urgent": ("ours", 4)}
    # At the usual worth it is cheaper to rent than to let the other one wait for an hour.
    assert given(stock, free, urgent) == {"free": ("ours", 4), "urgent": ("rented", 4)}


def test_a_deadline_is_worth_gpus_that_do_not_pay():
    stock = Stock((OURS, RENTED))
    urgent = view("urgent", stock, 60, deadline_s=45 * 60.0)
    assert given(stock, urgent) == {"urgent": ("rented", 8)}
    late = view("late", stock, 60, deadline_s=10 * 60.0)
    assert given(stock, late) == {"late": ("ours", 4)}


def test_who_was_saved_is_not_dropped_in_the_next_round():
    stock = Stock((OURS, RENTED))
    urgent = view("urgent", stock, 60, deadline_s=45 * 60.0)
    saved = running(urgent, stock, 1, 8)
    assert given(stock, view("free", stock, 5), saved)["urgent"] == ("rented", 8)


def test_a_restart_is_time_that_is_paid_and_does_no_work():
    stock = Stock((RENTED,))
    stays = running(view("a", stock, 10), stock, 0, 4)
    needs = time_needed(stays, stock)
    assert needs[stays.held] == pytest.approx(600.0)
    extra = premium(stays, needs, stock)
    assert extra[stays.held] < extra[stock.shape(0, 8)]


def test_reasons_say_when_it_is_done_and_why_it_waits():
    stock = Stock((OURS,))
    reasons = Tutti().plan([view("a", stock, 5), view("b", stock, 5000)], stock).reasons
    assert reasons["a"] == "finishes in about 6 min on 4 x A100-80GB"
    assert "less work left" in reasons["b"]
    none = msgspec.structs.replace(view("a", stock, 5), pace=np.zeros(len(stock.shapes)))
    assert Tutti().plan([none], stock).reasons == {"a": "no available GPUs fit this job"}


@pytest.mark.parametrize("worth", [0.0, -1.0, float("nan")])
def test_a_worth_that_makes_no_sense_is_refused(worth):
    with pytest.raises(InvalidInput, match="worth"):
        Tutti(worth=worth)


def test_a_gpu_hour_below_nothing_is_refused():
    with pytest.raises(InvalidInput, match="gpu_hour"):
        Tutti(gpu_hour=-1.0)

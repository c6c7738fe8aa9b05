"""The slot step, and its two variants with other units of time."""

from __future__ import annotations

import pytest

from duetune.core.cluster_physics import charge_by_second, round_step
from duetune.core.job import Job, Reconfiguration, ReconfigurationKey, linear_throughput
from duetune.core.physics import job_physics, step
from duetune.core.single_instance_physics import (
    ON_DEMAND,
    SPOT,
    WAIT,
    next_since,
    pending_since,
    tick_charge,
    tick_step,
)


def physics(key=ReconfigurationKey.TOTAL):
    rule = Reconfiguration(grow=0.9, shrink=0.8, preempted=0.5, key=key)
    return job_physics(
        Job(work=6.0, deadline=4, value=9, throughput=linear_throughput(4), reconfiguration=rule)
    )


def test_a_slot_charges_works_and_says_whether_the_job_is_done():
    grown = step(physics(), 1.0, 1, 0, 2, 1, 0.25, 4, 1.0)
    assert grown == (1.5, 0.9, pytest.approx(2.7), pytest.approx(3.7), False)
    kept = step(physics(), 3.0, 2, 1, 2, 1, 0.25, 4, 1.0)
    assert kept == (1.5, 1.0, 3.0, 6.0, True)


def test_a_swap_costs_time_only_where_the_composition_counts():
    swap = (0.0, 2, 0, 0, 2, 0.25, 0, 1.0)
    assert step(physics(), *swap).efficiency == 1.0
    assert step(physics(ReconfigurationKey.COMPOSITION), *swap).efficiency == 0.5


def test_no_gpus_cost_and_do_nothing():
    assert step(physics(), 2.0, 3, 0, 0, 0, 0.25, 4, 1.0)[2:] == (0.0, 2.0, False)
    assert step(physics(), 2.0, 3, 0, 0, 0, 0.25, 4, 1.0).charge == 0.0


def test_a_restart_longer_than_a_tick_goes_on_in_the_next():
    first = tick_step(600.0, 1500.0, WAIT, 0.0, SPOT)
    assert first == (0.0, 600.0, 900.0, True)
    second = tick_step(600.0, 1500.0, SPOT, first.pending, SPOT)
    assert second == (0.0, 600.0, 300.0, False)
    third = tick_step(600.0, 1500.0, SPOT, second.pending, SPOT)
    assert third == (300.0, 300.0, 0.0, False)


def test_another_kind_replaces_the_pending_overhead_and_waiting_keeps_it():
    assert tick_step(600.0, 180.0, SPOT, 500.0, ON_DEMAND) == (420.0, 180.0, 0.0, True)
    assert tick_step(600.0, 180.0, SPOT, 500.0, WAIT) == (0.0, 600.0, 500.0, False)


def test_whole_units_stay_whole():
    did = tick_step(10, 25, SPOT, 5, SPOT)
    assert did == (5, 5, 0, False)
    assert isinstance(did.work, int)


@pytest.mark.parametrize("restart", [0, 5, 10, 15, 25])
def test_pending_overhead_by_ticks_since_the_start_is_what_the_steps_leave(restart):
    tick, levels = 10, max(0, -(-restart // 10) - 1)
    did, since = tick_step(tick, restart, WAIT, 0, SPOT), next_since(levels, 0, True)
    for _ in range(5):
        assert pending_since(tick, restart, since) == did.pending
        did = tick_step(tick, restart, SPOT, did.pending, SPOT)
        since = next_since(levels, since, False)


def test_a_tick_is_billed_by_its_kind():
    assert [tick_charge(kind, 0.3, 1.0) for kind in (WAIT, SPOT, ON_DEMAND)] == [0.0, 0.3, 1.0]


def test_a_round_waits_for_the_start_and_then_works():
    did = round_step(1000.0, 10.0, 20.0, 60.0)
    assert did == (20.0, 40.0, 60.0, 0.0, 600.0, False)
    long = round_step(1000.0, 10.0, 100.0, 60.0)
    assert long == (60.0, 0.0, 60.0, 40.0, 1000.0, False)


def test_a_job_that_is_done_gives_its_gpus_back_at_once():
    assert round_step(100.0, 10.0, 20.0, 60.0) == (20.0, 10.0, 30.0, 0.0, 0.0, True)


def test_a_configuration_that_does_not_fit_is_held_until_it_has_failed():
    assert round_step(100.0, 0.0, 20.0, 60.0) == (20.0, 0.0, 20.0, 0.0, 100.0, False)
    assert charge_by_second(7200.0, 1.5) == 3.0

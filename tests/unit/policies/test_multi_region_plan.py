from __future__ import annotations

import numpy as np
import pytest

from duetune.core.multi_region_physics import NOWHERE, MoveCost
from duetune.core.single_instance_physics import ON_DEMAND, SPOT, WAIT
from duetune.market.forecast.pool_looks import PoolLooks
from duetune.policies.multi_region_guard import Position
from duetune.policies.multi_region_plan import PoolChoice, PoolsNow, choices_for, tables_for
from duetune.policies.multi_region_tables import expected_value, safe_work
from support.multi_region import job_over

HOUR = 3600.0


def position(held=WAIT, place=NOWHERE, time_left=6 * HOUR, work_left=4 * HOUR):
    return Position(time_left, work_left, held, place, 0.0)


def market(spot, on_demand=None, looks=None):
    spot = np.array(spot)
    on_demand = np.full(spot.size, 3.0) if on_demand is None else np.array(on_demand)
    return PoolsNow(spot / 3600, on_demand / 3600, (looks or PoolLooks(spot.size, 1.0)).rates)


def job_of(pools, paces=None, **fields):
    return job_over([180.0] * pools, paces, work_s=4 * HOUR, deadline_s=6 * HOUR, **fields)


def test_the_cheapest_pools_and_what_is_held_are_planned_for():
    job, now = job_of(4), market([1.0, 1.3, 0.9, 1.1])
    found = choices_for(job, position(), now, 2)
    assert found == (PoolChoice(SPOT, 0), PoolChoice(SPOT, 2), PoolChoice(ON_DEMAND, 0))
    held = choices_for(job, position(SPOT, 1), now, 2)
    assert PoolChoice(SPOT, 1) in held
    paid = choices_for(job, position(ON_DEMAND, 3), now, 2)
    assert PoolChoice(ON_DEMAND, 3) in paid


def test_a_pool_that_is_never_up_makes_room_for_a_dearer_one():
    looks = PoolLooks(2, 1.0)
    for _ in range(200):
        looks.see(0, up=False)
        looks.see(1, up=True)
        looks.advance(1)
    job = job_of(2)
    assert choices_for(job, position(), market([1.0, 1.1]), 1)[0] == PoolChoice(SPOT, 0)
    assert choices_for(job, position(), market([1.0, 1.1], looks=looks), 1)[0].pool == 1


def test_on_demand_is_planned_where_it_is_cheapest_and_last_where_it_is_fastest():
    job = job_of(2, [0.5, 1.0])
    found = choices_for(job, position(), market([0.5, 1.1], [1.0, 3.0]), 2)
    assert found[-2:] == (PoolChoice(ON_DEMAND, 0), PoolChoice(ON_DEMAND, 1))
    assert choices_for(job, position(), market([0.5, 1.1], [2.0, 3.0]), 2)[-1].pool == 1


def test_tables_are_kept_until_prices_beliefs_or_pools_change():
    job, looks = job_of(2), PoolLooks(2, 1.0)
    first = tables_for(job, position(), market([1.0, 1.1], looks=looks), 2, None)
    assert tables_for(job, position(), market([1.01, 1.1], looks=looks), 2, first) is first
    assert tables_for(job, position(), market([1.05, 1.1], looks=looks), 2, first) is not first
    assert tables_for(job, position(), market([1.0, 3.5], looks=looks), 2, first) is not first
    for tick in range(10):
        looks.see(0, up=tick % 2 == 0)
        looks.advance(1)
    assert tables_for(job, position(), market([1.0, 1.1], looks=looks), 2, first) is not first


def test_places_count_only_where_transfers_differ():
    far = MoveCost(300.0, 0.5)
    moves = ((MoveCost(), MoveCost(), far), (MoveCost(), MoveCost(), far), (far, far, MoveCost()))
    prices = market([1.0, 1.1, 1.2])
    free = tables_for(job_of(3), position(), prices, 3, None)
    assert set(free.places.values()) == {0}
    apart = tables_for(job_of(3, moves=moves), position(), prices, 3, None)
    assert apart.places[0] == apart.places[1]
    assert len({apart.places[0], apart.places[2], apart.places[NOWHERE]}) == 3


def test_more_spot_and_more_time_cost_no_more_and_more_work_no_less():
    tables = tables_for(job_of(2), position(), market([1.0, 1.1]), 2, None)
    for plan, values in zip(tables.plans, tables.values, strict=True):
        assert np.isfinite(values).all()
        assert (values[:, 3] <= values[:, 0] + 1e-4).all()
        assert (np.diff(values, axis=3) >= -1e-4).all()
        for mode in range(values.shape[2]):
            some, more = (
                expected_value(values, plan, np.array([0.5, 0.5]), mode, hours * HOUR, HOUR)
                for hours in (2.0, 5.0)
            )
            assert more <= some + 1e-4


def test_without_time_the_tables_cost_what_on_demand_costs():
    tables = tables_for(job_of(2), position(), market([1.0, 1.1]), 2, None)
    plan, values = tables.plans[0], tables.values[0]
    idle, paid = tables.places[NOWHERE], tables.mode(PoolChoice(ON_DEMAND, 0))
    chances = np.array([1.0, 1.0])
    assert expected_value(values, plan, chances, paid, 0.0, HOUR) == pytest.approx(3.0, rel=1e-5)
    started = expected_value(values, plan, chances, idle, 0.0, HOUR)
    assert started == pytest.approx(3.0 * (1 + 180 / 3600), rel=1e-5)
    assert safe_work(plan, idle, HOUR) == pytest.approx(HOUR - 180.0)
    assert safe_work(plan, paid, HOUR) == pytest.approx(HOUR)

from __future__ import annotations

import highspy
import numpy as np
import pytest

from duetune.core.multi_region_physics import MoveCost
from duetune.simulate.multi_region_episode import optimum_over_pools
from support.multi_region import ON_DEMAND, SPOT, TICK, job_over, market_over

FREE, FAR = MoveCost(), MoveCost(seconds=400.0, dollars=0.2)


def least_cost_by_highs(job, market) -> float:
    """The cheapest path through (tick, what is held, where, overhead left) that does the work.

    The work is a constraint over the whole path and not a state, as it is in the dynamic program.
    """
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    start = (None, None, 0.0)
    inflow, work, cost = {(0, start): []}, [], []
    outflow: dict[tuple, list] = {}
    layer = {start}
    for tick in range(job.ticks):
        following = set()
        for held, place, pending in layer:
            wishes = [None]
            for row, pool in enumerate(job.pools):
                wishes += [(row, SPOT)] if market.available[row, tick] else []
                wishes.append((row, ON_DEMAND))
                assert pool.pace > 0
            for wish in wishes:
                done, price = 0.0, 0.0
                if wish is None:
                    after = (None, place, 0.0)
                else:
                    row, kind = wish
                    left = pending
                    if wish != held:
                        move = job.moves[place][row] if job.moves and place is not None else FREE
                        left = job.pools[row].restart_overhead_s + move.seconds
                        price += move.dollars
                    done = max(0.0, TICK - left) * job.pools[row].pace
                    table = market.spot_price if kind is SPOT else market.on_demand_price
                    price += table[row, tick]
                    after = (wish, row, max(0.0, left - TICK))
                # What will be lost at the next tick leaves only its place behind.
                gone = tick + 1 < job.ticks and after[0] is not None and after[0][1] is SPOT
                if gone and not market.available[after[0][0], tick + 1]:
                    after = (None, after[1], 0.0)
                arc = solver.addBinary()
                outflow.setdefault((tick, (held, place, pending)), []).append(arc)
                inflow.setdefault((tick + 1, after), []).append(arc)
                work.append(done * arc)
                cost.append(price * arc)
                following.add(after)
        layer = following
    for node, arcs in outflow.items():
        solver.addConstr(sum(arcs) == (sum(inflow[node]) if inflow[node] else 1))
    solver.addConstr(sum(work) >= job.work_s)
    solver.minimize(sum(cost))
    if solver.modelStatusToString(solver.getModelStatus()) != "Optimal":
        return np.inf
    return solver.getObjectiveValue()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("moves", [(), ((FREE, FAR), (FAR, FREE))], ids=["free", "far"])
def test_the_optimum_is_that_of_an_integer_program(seed, moves):
    random = np.random.default_rng(seed)
    job = job_over(
        random.choice([100.0, 300.0, 700.0], 2).tolist(),
        [1.0, float(random.choice([1.0, 1.5]))],
        moves,
        work_s=float(random.choice([2400.0, 3300.0])),
        deadline_s=9 * TICK,
    )
    up = np.repeat(random.random((2, 5)) < 0.6, 2, axis=1)[:, :9]
    spot = random.choice([0.6, 0.9, 1.2], (2, 9))
    market = market_over(up, spot, [3.0, 3.3])
    best = optimum_over_pools(job, market)
    assert best.exact
    assert best.cost == pytest.approx(least_cost_by_highs(job, market), abs=1e-6)


def test_a_pace_that_fits_no_grid_gives_a_bound_and_a_plan_close_to_it():
    job = job_over(
        [181.7, 97.3],
        [1.0, 1.2345],
        ((FREE, FAR), (FAR, FREE)),
        work_s=40_000.0,
        deadline_s=60_000.0,
        prorate_last_tick=True,
    )
    up = np.repeat(np.random.default_rng(3).random((2, 10)) < 0.5, 10, axis=1)
    best = optimum_over_pools(job, market_over(up, [1.0, 1.1], [3.0, 3.0]))
    assert not best.exact
    assert best.cost <= best.reached <= best.cost * 1.02


def test_what_no_plan_can_do_in_time_costs_infinitely_much():
    job = job_over([0.0, 0.0], [1.0, 2.0], work_s=2 * 4 * TICK + 1, deadline_s=4 * TICK)
    market = market_over([[1] * 4] * 2, [1.0, 1.0], [3.0, 3.0])
    assert optimum_over_pools(job, market).cost == np.inf
    faster = job_over([0.0, 0.0], [1.0, 2.0], work_s=2 * 4 * TICK, deadline_s=4 * TICK)
    assert optimum_over_pools(faster, market).cost == pytest.approx(4 / 6)

"""Which pools the tables of one instance look at, and with which rates they are filled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.core.single_instance_physics import ON_DEMAND, SPOT
from duetune.policies.multi_region_tables import PoolPlan, fill_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.multi_region_physics import MultiRegionJob
    from duetune.market.forecast.pool_looks import SpellRates
    from duetune.policies.multi_region_guard import Position

_MOST_STEPS = 144
_SPREAD = 0.5  # deviations of the rates' logarithm between the belief and each of two tables
_RATE_CHANGED = 0.25  # of the rates' logarithm; tables are filled again when it is exceeded
_PRICE_CHANGED = 0.02  # the same for prices, as a share
_RENT = 0.01  # waiting costs this share of on-demand, so that a tie is not idled away
_SLOWEST = 8.0  # cells are as small as a step's work at the slowest pace, within this factor
_FASTEST = 0.8  # no spell ends with a higher probability per tick
_CONTINUOUS = 1e-3  # seconds in which a prorated tick is billed


class PoolChoice(NamedTuple):
    """A kind of instance and a pool, by their numbers."""

    kind: int
    pool: int


class PoolTables(NamedTuple):
    """Filled tables, and what they were filled for.

    ``choices`` are in the order of ``PoolPlan``. ``places`` has the mode of each place in which a
    checkpoint may lie. ``rates`` are those of the pools whose spot is among the choices.
    """

    choices: tuple[PoolChoice, ...]
    places: dict[int, int]
    plans: tuple[PoolPlan, ...]
    values: tuple[NDArray[np.float32], ...]
    price: NDArray[np.float64]
    rates: NDArray[np.float64]

    @property
    def spot_pools(self) -> list[int]:
        """Return the pools whose spot is among the choices."""
        return [choice.pool for choice in self.choices if choice.kind == SPOT]

    def mode(self, choice: PoolChoice) -> int:
        """Return the mode of what a choice holds."""
        return len(set(self.places.values())) + self.choices.index(choice)


class PoolsNow(NamedTuple):
    """Prices of all pools in dollars per second, and what is believed about their spells."""

    spot: NDArray[np.float64]
    on_demand: NDArray[np.float64]
    rates: SpellRates

    def price(self, choice: PoolChoice) -> float:
        """Return the price of a choice."""
        return float((self.spot if choice.kind == SPOT else self.on_demand)[choice.pool])


def tables_for(
    job: MultiRegionJob, now: Position, market: PoolsNow, most_pools: int, old: PoolTables | None
) -> PoolTables:
    """Return tables that fit the market: the old ones, or new ones if it has changed.

    They cover all times from now to the deadline, and all work from none to what is left.
    """
    choices = choices_for(job, now, market, most_pools)
    pools = [choice.pool for choice in choices if choice.kind == SPOT]
    price = np.array([market.price(choice) for choice in choices])
    rates = np.array(market.rates)[:, pools]
    if (
        old is not None
        and old.choices == choices
        and now.place in old.places
        and (np.abs(price - old.price) <= _PRICE_CHANGED * old.price).all()
        and (np.abs(rates - old.rates) <= _RATE_CHANGED).all()
    ):
        return old
    places, representatives = _places(job, [*(choice.pool for choice in choices), now.place])
    plans = _plans(
        job, now, choices, price, rates, [places[c.pool] for c in choices], representatives
    )
    steps = max(1, math.ceil(now.time_left / plans[0].step - 1e-6))
    pace = float(plans[0].pace.max())
    debt = float(plans[0].overhead.max()) * pace
    # What cannot be done in twice the time needs no cells of its own: it is late anyway.
    most = min(now.work_left + debt, 2 * steps * plans[0].step * pace)
    cells = math.ceil(most / plans[0].unit) + 2
    values = tuple(fill_values(plan, steps, cells) for plan in plans)
    return PoolTables(choices, places, plans, values, price, rates)


def choices_for(
    job: MultiRegionJob, now: Position, market: PoolsNow, most_pools: int
) -> tuple[PoolChoice, ...]:
    """Return spot in the best pools, and on-demand where it is cheapest and where it is fastest.

    Pools are ranked by what a unit of work costs if spot is used while it is believed to be up, and
    on-demand otherwise. What is held is always among the choices.
    """
    pace, restart = job.terms.pace, job.terms.restart
    per_work = market.on_demand / pace
    cheapest = int(np.lexsort((restart, per_work))[0])
    fastest = int(np.lexsort((per_work, restart, -pace))[0])
    on_demand = [cheapest]
    if pace[cheapest] < pace[fastest] or restart[cheapest] > restart[fastest]:
        on_demand.append(fastest)
    if now.held == ON_DEMAND and now.place not in on_demand:
        on_demand.insert(0, now.place)
    goes, comes = np.exp(market.rates.goes), np.exp(market.rates.comes)
    up = comes / (goes + comes)
    score = up * market.spot / pace + (1 - up) * per_work[cheapest]
    useful = market.spot / pace < per_work[cheapest]
    order = [int(pool) for pool in np.argsort(score, kind="stable") if useful[pool]]
    if now.held == SPOT:
        order = [now.place, *(pool for pool in order if pool != now.place)]
    return (
        *(PoolChoice(SPOT, pool) for pool in sorted(order[:most_pools])),
        *(PoolChoice(ON_DEMAND, pool) for pool in on_demand),
    )


def _places(job: MultiRegionJob, pools: list[int]) -> tuple[dict[int, int], list[int]]:
    """Return the number of each place, and a pool for each number.

    Places from which all transfers take and cost the same have one number.
    """
    rows = np.hstack((job.terms.move_time, job.terms.move_price))
    numbers: dict[bytes, int] = {}
    representatives: list[int] = []
    places = {}
    for pool in pools:
        key = rows[pool].tobytes()
        if key not in numbers:
            numbers[key] = len(numbers)
            representatives.append(pool)
        places[pool] = numbers[key]
    return places, representatives


def _plans(
    job: MultiRegionJob,
    now: Position,
    choices: tuple[PoolChoice, ...],
    price: NDArray[np.float64],
    rates: NDArray[np.float64],
    place: list[int],
    representatives: list[int],
) -> tuple[PoolPlan, ...]:
    """Return what is planned for: a market worse than believed, and one that is better."""
    terms, pools = job.terms, [choice.pool for choice in choices]
    ticks = max(1, round(now.time_left / job.tick_s))
    ticks_per_step = math.ceil(ticks / _MOST_STEPS)
    from_place = np.ix_(representatives, pools)
    pace = terms.pace[pools]
    plans = []
    for worse in (_SPREAD, -_SPREAD):
        goes = np.minimum(_FASTEST, np.exp(rates[0] + worse * rates[1]))
        comes = np.minimum(_FASTEST, np.exp(rates[2] - worse * rates[3]))
        changed = 1 - np.maximum(0.0, 1 - goes - comes) ** ticks_per_step
        plans.append(
            PoolPlan(
                step=ticks_per_step * job.tick_s,
                unit=ticks_per_step * job.tick_s * max(pace.min(), pace.max() / _SLOWEST),
                billed=_CONTINUOUS if job.prorate_last_tick else job.tick_s,
                rent=_RENT * float(price[-1]),
                spots=rates.shape[1],
                price=price,
                pace=pace,
                overhead=terms.restart[pools] + terms.move_time[from_place],
                egress=terms.move_price[from_place],
                place=np.array(place),
                goes=changed * goes / (goes + comes),
                comes=changed * comes / (goes + comes),
            )
        )
    return tuple(plans)

"""Possible futures of a market: they begin with the present and resemble its past.

With enough history, futures are made of pieces of it. From each slot the future continues as the
past did from a similar slot: similar in spot available, in spot price, and in what was available
over the last hours, because one slot cannot tell a plentiful market from a scarce one. It follows
the past for a few hours, then looks for a similar slot again. Every future trusts some days of the
history more than others, at random. A few days are a small sample of all possible days, and without
this all futures would be too much alike.

Without history, the market stays about as it is, with noise. It is up or down, and while it is up
GPUs come and go one by one around a usual number. Neither that number nor the length of up and down
spells is known, so every future has its own. With ten days of history all futures are pieces of it,
with none all are noise, and in between the share grows with the history.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from duetune.core.market import MarketTrace
from duetune.errors import InvalidInput
from duetune.market.slot_grid import checked_slot_hours

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.market import Slot

ENOUGH_HOURS = 240.0
LEAST_SLOTS = 8
"""A shorter history is not used."""

MOST_SLOTS = 4000
PIECE_HOURS = 3.0
RECENT_HOURS = 6.0
DAY_HOURS = 24.0
LIKENESS = 0.5
"""A slot that is less similar by this many standard deviations is e times less likely."""

DAYS_ALIKE = 0.3
"""Days of one market are not independent: a day counts as this share of a sample."""

UP_HOURS, DOWN_HOURS, GPU_HOURS = 6.0, 2.0, 6.0
PRICE_HOURS = 12.0
DOUBT = 0.7
"""Standard deviation of the logarithm of the unknown: hours up, hours down, usual count."""

PRICE_SPREAD = 0.35
LOWEST_RATIO = 0.05


def scenarios(
    history: MarketTrace | None,
    now: Slot,
    slots: int,
    *,
    count: int,
    seed: int,
    slot_hours: float,
) -> tuple[MarketTrace, ...]:
    """Return ``count`` futures of ``slots`` slots, beginning with ``now``; ``seed`` fixes them.

    ``history`` (its first pool counts) ends with the slot before ``now``. The on-demand price stays
    as it is now. With ten days of history or more, every later slot is one of the history or
    ``now``; with less, this holds for a share of the futures.
    """
    for field, number in (("slots", slots), ("count", count)):
        if number < 1:
            raise InvalidInput(field, number, "1 or more")
    checked_slot_hours(slot_hours)
    if history is not None and not math.isclose(history.slot_hours, slot_hours):
        allowed = f"slots of {slot_hours:g} hours, as the present market has"
        raise InvalidInput("history", history.slot_hours, allowed)
    random = np.random.default_rng(seed)
    past = 0 if history is None else min(history.slots, MOST_SLOTS)
    price = np.array([now.spot_price])
    available = np.array([now.available], dtype=np.int64)
    if history is not None:
        price = np.append(history.spot_price[0, -past:], price)
        available = np.append(history.available[0, -past:], available)
    share = past * slot_hours / ENOUGH_HOURS if past >= LEAST_SLOTS else 0.0
    walks = min(count, round(share * count))
    places = _walks(price, available, slots, walks, random, slot_hours)
    rest = (slots, count - walks, random, slot_hours)
    prices = np.concatenate((price[places], _noisy_prices(now, *rest)))
    counts = np.concatenate((available[places], _noisy_counts(available, *rest)))
    # Shuffled, so that any first few are a fair sample.
    return tuple(
        MarketTrace.single(
            prices[row],
            counts[row],
            now.on_demand_price,
            slot_hours=slot_hours,
            name=f"scenario-{place}",
        )
        for place, row in enumerate(random.permutation(count))
    )


def _walks(
    price: NDArray[np.float64],
    available: NDArray[np.int64],
    slots: int,
    count: int,
    random: np.random.Generator,
    slot_hours: float,
) -> NDArray[np.int64]:
    """Return which slot of the past each slot of each future is; the last index is the present."""
    last = price.size - 1
    recent = _trailing_mean(available, max(1, round(RECENT_HOURS / slot_hours)))
    state = np.stack([_scaled(series) for series in (available, price, recent)])
    day = max(1, round(DAY_HOURS / slot_hours))
    piece = max(1.0, PIECE_HOURS / slot_hours)
    order = np.arange(last)
    likely: dict[int, NDArray[np.float64]] = {}
    places = np.full((count, slots), last, dtype=np.int64)
    for walk in places:
        trust = random.gamma(DAYS_ALIKE, size=last // day + 2)
        # A tiny floor, for the case that no day is trusted at all.
        weights = trust[(order + random.integers(day)) // day] + 1e-300
        slot = 1
        while slot < slots:
            here = int(walk[slot - 1])
            if here not in likely:
                distance = np.abs(state[:, :-1] - state[:, here : here + 1]).sum(axis=0)
                likely[here] = np.exp((distance.min() - distance) / LIKENESS)
            chances = np.cumsum(weights * likely[here])
            chosen = int(chances.searchsorted(random.random() * chances[-1], side="right"))
            begin = min(chosen, last - 1) + 1
            stop = min(slots, slot + int(random.geometric(1 / piece)), slot + last + 1 - begin)
            walk[slot:stop] = np.arange(begin, begin + stop - slot)
            slot = stop
    return places


def _trailing_mean(values: NDArray[np.int64], slots: int) -> NDArray[np.float64]:
    """Return the mean of the last ``slots`` values at each slot."""
    total = np.concatenate(([0.0], np.cumsum(values)))
    stop = np.arange(1, values.size + 1)
    start = np.maximum(0, stop - slots)
    mean: NDArray[np.float64] = (total[stop] - total[start]) / (stop - start)
    return mean


def _scaled(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return values in standard deviations; a constant series becomes zeros."""
    numbers = values.astype(np.float64)
    spread = float(numbers.std())
    return numbers / spread if spread > 1e-12 * float(np.abs(numbers).max()) else 0 * numbers


def _noisy_prices(
    now: Slot, slots: int, count: int, random: np.random.Generator, slot_hours: float
) -> NDArray[np.float64]:
    """Return prices that drift within a day from the present price to another one, with noise."""
    keep = math.exp(-slot_hours / PRICE_HOURS)
    logarithm = np.zeros((count, slots))
    usual = random.normal(0.0, PRICE_SPREAD, count)
    for slot in range(1, slots):
        shock = random.normal(0.0, PRICE_SPREAD * math.sqrt(1 - keep * keep), count)
        logarithm[:, slot] = keep * logarithm[:, slot - 1] + (1 - keep) * usual + shock
    lowest = min(now.spot_price, LOWEST_RATIO * now.on_demand_price)
    highest = max(now.spot_price, now.on_demand_price)
    prices: NDArray[np.float64] = np.clip(now.spot_price * np.exp(logarithm), lowest, highest)
    return prices


def _noisy_counts(
    seen: NDArray[np.int64],
    slots: int,
    count: int,
    random: np.random.Generator,
    slot_hours: float,
) -> NDArray[np.int64]:
    """Return counts with births and deaths around the usual number, and spells with nothing.

    If no GPU was ever observed, the usual number is anything from 1 to 8.
    """
    some = seen[seen > 0]
    if some.size:
        usual = some.mean() * _doubtful(DOUBT / math.sqrt(min(some.size, 4)), count, random)
    else:
        usual = np.exp(random.uniform(0.0, math.log(8.0), count))
    leave = 1 - np.exp(-slot_hours / (UP_HOURS * _doubtful(DOUBT, count, random)))
    come = 1 - np.exp(-slot_hours / (DOWN_HOURS * _doubtful(DOUBT, count, random)))
    die = 1 - math.exp(-slot_hours / GPU_HOURS)
    counts = np.full((count, slots), seen[-1], dtype=np.int64)
    up = counts[:, 0] > 0
    level = np.where(up, counts[:, 0], np.rint(usual).astype(np.int64))
    for slot in range(1, slots):
        up = np.where(up, random.random(count) >= leave, random.random(count) < come)
        level = random.binomial(level, 1 - die) + random.poisson(usual * die)
        counts[:, slot] = np.where(up, level, 0)
    return counts


def _doubtful(spread: float, count: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Return random factors around 1."""
    factors: NDArray[np.float64] = np.exp(random.normal(0.0, spread, count))
    return factors

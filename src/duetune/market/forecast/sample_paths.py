"""Futures drawn from a distribution: every slot as it says, one slot after another as they went.

A distribution tells each slot apart. How slots hang together is taken from the past: of as many
stretches of it as futures are wanted, begun when the market was as it is now, the ranks in every
slot are given to values drawn for that slot (the Schaake shuffle: Clark et al., 2004).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.decision import Paths
from duetune.market.forecast.distribution import count_quantiles, price_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.market import Slot
    from duetune.market.forecast.distribution import Distribution

REMEMBERED = 2048


class PastSeries:
    """The last slots of both series."""

    def __init__(self) -> None:
        self._rows = np.zeros((2, REMEMBERED))
        self._seen = 0

    def observe(self, slot: Slot) -> None:
        self._rows[:, self._seen % REMEMBERED] = slot.spot_price, slot.available
        self._seen += 1

    def rows(self) -> NDArray[np.float64]:
        """Oldest first."""
        if self._seen <= REMEMBERED:
            return self._rows[:, : self._seen]
        return np.roll(self._rows, -(self._seen % REMEMBERED), axis=1)


def draw_paths(
    distribution: Distribution, past: PastSeries, count: int, random: np.random.Generator
) -> Paths:
    """``count`` futures, as long as the distribution."""
    horizon = distribution.prices.shape[0]
    price_ranks, count_ranks = _ranks(past.rows(), horizon, count, random)
    return Paths(
        spot_price=_prices(distribution.prices, _levels(price_ranks, random)),
        available=_counts(distribution.counts, _levels(count_ranks, random)),
    )


def _ranks(
    rows: NDArray[np.float64], horizon: int, count: int, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each future in each slot among all futures, for prices and for counts."""
    begins = rows.shape[1] - horizon
    if begins < 1 or not count or not horizon:
        # Too young to have a past: who is high is high throughout.
        order = np.tile(random.permutation(count)[:, np.newaxis], (1, horizon))
        return order, order
    distance = np.abs(rows[1, :begins] - rows[1, -1])
    nearest = np.argsort(distance + random.random(begins) * 1e-6, kind="stable")
    alike = nearest[: max(1, min(begins, max(count, begins // 4)))]
    chosen = alike[random.permutation(max(count, alike.size))[:count] % alike.size]
    stretch = chosen[:, np.newaxis] + np.arange(1, horizon + 1)
    moves = rows[:, stretch] - rows[:, chosen][:, :, np.newaxis]
    moves[1] = rows[1][stretch]
    # Equal values are put in an order that each future keeps from slot to slot.
    luck = random.permutation(count)
    ranks = [
        np.argsort(np.lexsort((np.tile(luck[:, np.newaxis], (1, horizon)), each), axis=0), axis=0)
        for each in moves
    ]
    return ranks[0], ranks[1]


def _levels(ranks: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.float64]:
    count, horizon = ranks.shape
    spread: NDArray[np.float64] = (ranks + random.random((count, horizon))) / max(count, 1)
    return spread


def _prices(quantiles: NDArray[np.float64], levels: NDArray[np.float64]) -> NDArray[np.float64]:
    drawn = price_at(quantiles, np.ascontiguousarray(levels.T)).T
    # No price is below zero, nor beyond the outermost quantile: tails were stretched enough.
    return np.ascontiguousarray(np.clip(drawn, quantiles[:, 0], quantiles[:, -1]))


def _counts(cumulative: NDArray[np.float64], levels: NDArray[np.float64]) -> NDArray[np.int64]:
    drawn = np.empty(levels.shape, dtype=np.int64)
    for ahead in range(levels.shape[1]):
        row = cumulative[ahead : ahead + 1]
        drawn[:, ahead] = count_quantiles(row, levels[:, ahead])[:, 0].astype(np.int64)
    return drawn

"""The market as a Markov chain, learned from the observed slots.

A state is a number of available spot GPUs and a spot price. A policy that plans against the chain
plans against every future that it allows, each with its probability. ``regimes`` is the chain for
jobs of one GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.market import MarketChain

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from duetune.core.decision import Seen

    Prior = Callable[[float, NDArray[np.float64]], NDArray[np.float64]]

LEVELS = 17
"""Largest number of count levels; a count between two levels uses the lower one."""
PRICES = 3
_MOVING = 0.05  # a price that moves less than this share of itself is one level
_HALF_LIFE = 192.0  # slots after which an observation has half its weight
_PRIOR_WEIGHT = 5.0  # observed slots of a state that outweigh the prior
_PRIOR_SLOTS = 10.0
_PRIOR_CHANGES = 0.2  # share of those slots in which the number changed
_NEAR, _LEAP = 0.6, 0.3


def learned_chain(seen: Seen, max_gpus: int, *, most_levels: int = LEVELS) -> MarketChain:
    """Return the chain of observed slots, oldest first, for a job of ``max_gpus``."""
    levels = level_counts(max_gpus, most_levels)
    level = level_of(levels, seen.available)
    return with_prices(levels, _followed(level, levels.size, _prior_of_levels), seen)


def with_prices(
    available: NDArray[np.int64], by_number: NDArray[np.float64], seen: Seen
) -> MarketChain:
    """Return a chain with these counts and with prices that move as observed."""
    prices = price_levels(seen.spot_price)
    return MarketChain(
        by_number=by_number,
        by_price=_followed(price_of(prices, seen.spot_price), prices.size, _prior_of_prices),
        available=np.repeat(available, prices.size),
        spot_price=np.tile(prices, available.size),
    )


def number_of(chain: MarketChain, available: int) -> int:
    """Return the row of ``by_number`` for so many available GPUs."""
    levels = chain.available[:: chain.by_price.shape[0]]
    return int(level_of(levels, np.array([available]))[0])


def price_state(chain: MarketChain, spot_price: float) -> int:
    """Return the row of ``by_price`` for a price."""
    prices = chain.spot_price[: chain.by_price.shape[0]]
    return int(price_of(prices, np.array([spot_price]))[0])


def level_counts(max_gpus: int, most_levels: int = LEVELS) -> NDArray[np.int64]:
    """Return the numbers of GPUs that are states, from none to all that the job can use."""
    if max_gpus < most_levels:
        return np.arange(max_gpus + 1)
    return np.unique(np.rint(np.linspace(0, max_gpus, most_levels)).astype(np.int64))


def level_of(levels: NDArray[np.int64], available: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the highest level that each count reaches."""
    return np.searchsorted(levels, available, side="right") - 1


def price_levels(spot_price: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the last price if it hardly moved, else the means of three parts of the prices."""
    low, high = float(spot_price.min()), float(spot_price.max())
    if high - low <= _MOVING * high:
        return spot_price[-1:].astype(np.float64)
    parts = np.array_split(np.sort(spot_price), PRICES)
    return np.unique([float(part.mean()) for part in parts if part.size])


def price_of(prices: NDArray[np.float64], spot_price: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the nearest price level."""
    return np.searchsorted((prices[1:] + prices[:-1]) / 2, spot_price)


def _followed(state: NDArray[np.int64], count: int, prior: Prior) -> NDArray[np.float64]:
    """Return transition probabilities: from observed transitions, faded with age, and a prior."""
    counts = np.zeros((count, count))
    age = np.arange(state.size - 2, -1, -1)
    np.add.at(counts, (state[:-1], state[1:]), 0.5 ** (age / _HALF_LIFE))
    total = counts.sum()
    changes = total - float(np.trace(counts))
    rate = (changes + _PRIOR_CHANGES * _PRIOR_SLOTS) / (total + _PRIOR_SLOTS)
    usual = counts.sum(axis=0) + 1.0 / count
    chances = counts + _PRIOR_WEIGHT * prior(rate, usual / usual.sum())
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def _prior_of_levels(rate: float, usual: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a prior that mostly stays; a change is more often a small step than a jump."""
    distance = np.abs(np.subtract.outer(np.arange(usual.size), np.arange(usual.size)))
    near = np.where(distance > 0, _NEAR**distance, 0.0)
    near /= np.maximum(near.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    moved = (1 - _LEAP) * near + _LEAP * usual
    return np.asarray((1 - rate) * np.eye(usual.size) + rate * moved)


def _prior_of_prices(rate: float, usual: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a prior that mostly stays; a change goes to any usual price."""
    return np.asarray((1 - rate) * np.eye(usual.size) + rate * usual)

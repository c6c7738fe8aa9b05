"""Spot for one GPU that is there or not, in spells whose usual lengths are unknown and change.

A regime is a mean length of spells with spot and one of spells without. The present regime is not
known. There is a belief over all regimes, and every observed slot updates it. A regime can give way
to any other at any time, so old observations are forgotten and nothing stays excluded.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.core.compiled import compiled
from duetune.core.market import MarketChain

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPELLS = (2.0, 6.0, 18.0, 54.0)
"""Mean lengths of a spell, in usual slots."""
_SHORTEST = 1.25  # slots: a mean spell is never shorter
_GIVES_WAY = 0.02  # the probability per usual slot that another regime takes over


class Spells(NamedTuple):
    """The probabilities of every regime: that a spell with, and without, spot ends in a slot.

    ``gives_way`` is the probability that another regime takes over.
    """

    with_ends: NDArray[np.float64]
    without_ends: NDArray[np.float64]
    gives_way: float


@functools.lru_cache(maxsize=16)
def spells(slots: float = 1.0, gives_way: float = _GIVES_WAY) -> Spells:
    """Return the probabilities per slot; ``slots`` slots take as long as a usual one.

    ``gives_way`` is the probability per usual slot that another regime takes over.
    """
    lengths = [max(_SHORTEST, slots * spell) for spell in SPELLS]
    return Spells(
        with_ends=np.array([1 / up for up in lengths for _ in lengths]),
        without_ends=np.array([1 / down for _ in lengths for down in lengths]),
        gives_way=1 - (1 - gives_way) ** (1 / slots),
    )


@functools.lru_cache(maxsize=16)
def regime_chain(slots: float = 1.0, gives_way: float = _GIVES_WAY) -> MarketChain:
    """Return the chain of (regime, spot or not); a regime's two states are adjacent: without, with.

    Prices are zero, because regimes are about availability only.
    """
    found = spells(slots, gives_way)
    count = found.with_ends.size
    succession = (1 - found.gives_way) * np.eye(count) + found.gives_way / count
    transition = np.zeros((2 * count, 2 * count))
    for place in range(count):
        for there, ends in ((0, found.without_ends[place]), (1, found.with_ends[place])):
            transition[2 * place + there, 1 - there :: 2] = succession[place] * ends
            transition[2 * place + there, there::2] = succession[place] * (1 - ends)
    return MarketChain(
        by_number=transition,
        by_price=np.ones((1, 1)),
        available=np.tile(np.array([0, 1]), count),
        spot_price=np.zeros(2 * count),
    )


def first_belief(slots: float = 1.0) -> NDArray[np.float64]:
    """Return the belief before any observation: all regimes equal, each in its stationary state."""
    found = spells(slots)
    belief = np.empty(2 * found.with_ends.size)
    belief[0::2] = found.with_ends / (found.with_ends + found.without_ends)
    belief[1::2] = found.without_ends / (found.with_ends + found.without_ends)
    return np.asarray(belief / belief.sum())


@compiled
def believe(
    belief: NDArray[np.float64], transition: NDArray[np.float64], there: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the belief after observing spot (1) or none (0) slot by slot.

    ``belief`` is about the first of these slots.
    """
    count = belief.size
    now = belief.copy()
    before = np.empty(count)
    for slot in range(there.size):
        if slot > 0:
            before[:] = now
            now[:] = 0.0
            for state in range(count):
                if before[state] > 0:
                    for after in range(count):
                        now[after] += before[state] * transition[state, after]
        for state in range(count):
            if state % 2 != there[slot]:
                now[state] = 0.0
        now /= now.sum()
    return now

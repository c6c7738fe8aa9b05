"""Spot that is there or not, with spells whose usual lengths are unknown and change.

A regime is a mean length of spells with spot and one of spells without. Which regime holds is not
known: it is believed, and the belief moves with every slot that is seen. A regime may give way to
any other at any time, so that what happened long ago is forgotten and nothing stays excluded.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from duetune.core.compiled import compiled
from duetune.core.market import MarketChain

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPELLS = (2.0, 6.0, 18.0, 54.0)
"""Mean lengths of a spell, in slots."""
GIVES_WAY = 0.02
"""The probability per slot that another regime takes over."""


@functools.cache
def regime_chain() -> MarketChain:
    """The chain of (regime, spot or not); a regime's two states are neighbours: without, with.

    Prices are left at zero: availability is what regimes are about.
    """
    regimes = [(up, down) for up in SPELLS for down in SPELLS]
    count = len(regimes)
    succession = (1 - GIVES_WAY) * np.eye(count) + GIVES_WAY / count
    transition = np.zeros((2 * count, 2 * count))
    for place, (up, down) in enumerate(regimes):
        for there, spell in ((0, down), (1, up)):
            ends = 1 / spell
            transition[2 * place + there, 1 - there :: 2] = succession[place] * ends
            transition[2 * place + there, there::2] = succession[place] * (1 - ends)
    return MarketChain(
        transition=transition,
        available=np.tile(np.array([0, 1]), count),
        spot_price=np.zeros(2 * count),
    )


def first_belief() -> NDArray[np.float64]:
    """Before anything was seen: every regime alike, each as long in a state as it usually is."""
    belief = np.zeros(2 * len(SPELLS) ** 2)
    for place, (up, down) in enumerate((up, down) for up in SPELLS for down in SPELLS):
        belief[2 * place : 2 * place + 2] = down / (up + down), up / (up + down)
    return np.asarray(belief / belief.sum())


@compiled
def believe(
    belief: NDArray[np.float64], transition: NDArray[np.float64], there: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The belief after seeing spot (1) or none (0) slot by slot; ``belief`` is about the first."""
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

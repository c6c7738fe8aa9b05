"""What a job knows of the spot of several pools from its own looks.

A look is the answer to a request, or what happens to an instance that is held. Between looks
nothing is known, and the belief gets vaguer. Each pool has a belief over the regimes of
``regimes``; pools tell nothing about each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.market.forecast.regimes import first_belief, regime_chain, spells

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GIVES_WAY = 0.0005  # a regime lasts two weeks: a job looks at a pool too rarely to follow faster
_LONG_SPELLS = 0.5  # before any look, a regime counts by this power of its spells with spot
_LONGEST = 2000  # unseen ticks; more make no difference to the belief


class SpellRates(NamedTuple):
    """The rates per tick at which spells end, as logarithms with their deviations, by pool.

    ``goes``: the end of a spell with spot. ``comes``: the end of a spell without.
    """

    goes: NDArray[np.float64]
    goes_spread: NDArray[np.float64]
    comes: NDArray[np.float64]
    comes_spread: NDArray[np.float64]


class PoolLooks:
    """The beliefs about several pools at one tick. ``slots``: ticks in a usual slot of regimes."""

    def __init__(self, pools: int, slots: float) -> None:
        self._chain = regime_chain(slots, _GIVES_WAY).by_number
        found = spells(slots, _GIVES_WAY)
        self._goes, self._comes = np.log(found.with_ends), np.log(found.without_ends)
        first = first_belief(slots) * np.repeat(np.exp(-_LONG_SPELLS * self._goes), 2)
        self._belief = np.tile(first / first.sum(), (pools, 1))

    def see(self, pool: int, *, up: bool) -> None:
        """Condition the belief about a pool on a look at the present tick."""
        row = self._belief[pool]
        row[int(not up) :: 2] = 0.0
        row[int(up) :: 2] += 1e-12
        row /= row.sum()

    def advance(self, ticks: int) -> None:
        """Move all beliefs some ticks ahead, without a look."""
        for _ in range(min(ticks, _LONGEST)):
            self._belief = self._belief @ self._chain

    @property
    def chances(self) -> NDArray[np.float64]:
        """Return the probability that each pool is up now."""
        return np.asarray(self._belief[:, 1::2].sum(axis=1))

    def next_chances(self, *, up: bool) -> NDArray[np.float64]:
        """Return the probability that each pool is up in the next tick, if it is up or not now."""
        given = np.zeros_like(self._belief)
        given[:, int(up) :: 2] = self._belief[:, int(up) :: 2] + 1e-12
        given /= given.sum(axis=1, keepdims=True)
        return np.asarray((given @ self._chain)[:, 1::2].sum(axis=1))

    @property
    def rates(self) -> SpellRates:
        """Return what is believed about the lengths of spells."""
        regimes = self._belief[:, 0::2] + self._belief[:, 1::2]
        goes, comes = regimes @ self._goes, regimes @ self._comes
        return SpellRates(
            goes=goes,
            goes_spread=np.sqrt(np.maximum(0.0, regimes @ self._goes**2 - goes**2)),
            comes=comes,
            comes_spread=np.sqrt(np.maximum(0.0, regimes @ self._comes**2 - comes**2)),
        )

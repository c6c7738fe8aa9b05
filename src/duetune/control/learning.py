"""What a finished job teaches: which policy would have been best, and how fast training was."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.events import Learned, Observed
from duetune.simulate.journal_replay import counterfactual_utilities

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from duetune.core.events import Recorded
    from duetune.core.ports import Policy
    from duetune.store.selector import SelectorStates

TRIES = 20


class PoolLearning:
    """Plays the pool on the market of a job that is over, and saves what each would have earned.

    A version of the selector's state is the utilities of one job; the state is all of them, in
    order. A job counts once.
    """

    def __init__(
        self,
        states: SelectorStates,
        pool: Sequence[Policy],
        observe: Callable[[str, Sequence[Recorded]], None],
    ) -> None:
        self._states, self._pool, self._observe = states, tuple(pool), observe

    def learn(self, job: str, story: Sequence[Recorded]) -> Learned:
        self._observe(job, story)
        names = tuple(policy.name for policy in self._pool)
        pool = pool_digest(names)
        at = story[-1].event.at
        if not any(isinstance(each.event, Observed) for each in story):
            return Learned(at, pool, (), ())
        utilities = counterfactual_utilities(story, self._pool)
        for _ in range(TRIES):
            if self._states.learnt(pool, job):
                break
            latest = self._states.load(pool)
            payload = msgspec.json.encode(utilities)
            expected = 0 if latest is None else latest.version
            if self._states.save(pool, payload, expected=expected, job=job):
                break
        return Learned(at, pool, names, utilities)


def learnt_utilities(states: SelectorStates, names: Sequence[str]) -> NDArray[np.float64]:
    """One row per job that the pool has learnt from, oldest first."""
    rows = [
        msgspec.json.decode(state.payload, type=list[float])
        for state in states.history(pool_digest(names))
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(names))


def pool_digest(names: Sequence[str]) -> str:
    """The name of a pool: another set of policies is another pool."""
    return hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest()

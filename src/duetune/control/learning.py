"""Learning from a job that is over: the utility that each policy of the pool would have had."""

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
"""Maximum attempts to save a state while other processes keep saving theirs first."""


class PoolLearning:
    """Replays every policy of the pool on the market of a job that is over and saves the result.

    One version of the selector's state holds the utilities of one job; all versions in order are
    the whole state. A job counts once. ``observe`` is called first, with the same job and story.
    """

    def __init__(
        self,
        states: SelectorStates,
        pool: Sequence[Policy],
        observe: Callable[[str, Sequence[Recorded]], None],
    ) -> None:
        self._states, self._pool, self._observe = states, tuple(pool), observe

    def learn(self, job: str, story: Sequence[Recorded]) -> Learned:
        """Return the event with the utilities of all policies; called after the job's end.

        A job that ended before its first slot teaches nothing.
        """
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
    """Return one row of utilities per job that the pool has learned from, oldest first."""
    rows = [
        msgspec.json.decode(state.payload, type=list[float])
        for state in states.history(pool_digest(names))
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(names))


def pool_digest(names: Sequence[str]) -> str:
    """Return the key of a pool of policies, computed from their names."""
    return hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest()

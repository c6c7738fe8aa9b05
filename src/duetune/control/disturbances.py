"""What may go wrong around the controller: its time is disturbed, or the journal is lost.

That the fleet does not answer is noticed where it is called, in ``controller``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from duetune.core.events import Disturbance
from duetune.core.fleet import Release
from duetune.errors import FleetError, StoreError
from duetune.wall_clock import StepWatch, steady_now

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duetune.core.ports import Clock, Fleet

STANDSTILL_S = 5.0
"""A wait that lasts this many seconds longer than asked for means that the process was stopped."""

RELEASE_TRIES = 10

log = logging.getLogger(__name__)


class TimeWatch:
    """Waits for the controller, and notices what happens to its time.

    ``speed`` is the number of seconds of ``clock`` per real second.
    """

    def __init__(self, clock: Clock, speed: float) -> None:
        self._clock, self._speed = clock, speed
        self._steps = StepWatch()
        self._stood_still_s = 0.0

    def wait_until(self, moment: float) -> None:
        """Wait for a moment of the fleet's clock; called between two turns."""
        planned = max(0.0, moment - self._clock.now()) / self._speed
        begun = steady_now()
        self._clock.wait_until(moment)
        late = steady_now() - begun - planned
        if late > STANDSTILL_S:
            self._stood_still_s += late

    def disturbances(self) -> list[tuple[Disturbance, float]]:
        """Return what happened since the last call, with its seconds; called in each turn."""
        stood_still_s, self._stood_still_s = self._stood_still_s, 0.0
        found = {
            Disturbance.CLOCK_SET: self._steps.step_s(),
            Disturbance.STOOD_STILL: stood_still_s,
        }
        return [(what, seconds) for what, seconds in found.items() if seconds]


def release_all(fleet: Fleet, clock: Clock, jobs: Iterable[str]) -> list[str]:
    """Release every node of ``jobs`` and return those jobs whose nodes could not be released.

    It is called when the journal is lost: nobody would ever release the nodes, but they cost money.
    A fleet whose ledger was in the same store is not asked again; its nodes end with their lease.
    """
    left = list(jobs)
    for _ in range(RELEASE_TRIES):
        for job in list(left):
            try:
                nodes = fleet.observe(job).nodes
                fleet.apply([Release(n.id, job) for n in nodes if n.state.alive])
            except FleetError as error:
                log.warning("job %s: %s", job, error)
            except StoreError as error:
                log.warning("the ledger of the fleet is lost too: %s", error)
                return left
            else:
                left.remove(job)
        if not left:
            break
        clock.wait_until(clock.now() + 1.0)
    return left

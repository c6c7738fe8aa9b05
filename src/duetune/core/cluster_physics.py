"""Physics of a job in a round of a cluster, a variant of ``core.physics.step``: time is counted in
seconds, a start or a restart has a delay without work, and what is held is paid by the second.

A job that is given GPUs does nothing until its delay is over; then it does ``pace`` units of work
in a second. A configuration that does not fit runs no work: it fails once its delay is over.
"""

from __future__ import annotations

from typing import NamedTuple

DONE_S = 1e-9
"""A job that needs this many seconds more than a round has is done in the round."""

HOUR_S = 3600.0


class RoundStep(NamedTuple):
    """What one round came to for one job: seconds of delay in it, seconds that did work, seconds
    for which GPUs were held, the delay and the work left after it, and whether the job is done.
    """

    waited_s: float
    ran_s: float
    held_s: float
    pending_s: float
    remaining: float
    done: bool


def round_step(remaining: float, pace: float, pending_s: float, round_s: float) -> RoundStep:
    """What happens to a job in one round in which it holds GPUs. At a ``pace`` of 0, which is that
    of a configuration that does not fit, GPUs are held only until the delay is over.
    """
    waited = min(pending_s, round_s)
    left = pending_s - waited
    if pace <= 0:
        return RoundStep(waited, 0.0, waited, left, remaining, done=False)
    runs = round_s - waited
    needs = remaining / pace
    if needs <= runs + DONE_S:
        return RoundStep(waited, needs, waited + needs, left, 0.0, done=True)
    return RoundStep(waited, runs, round_s, left, remaining - runs * pace, done=False)


def charge_by_second(gpu_s: float, price: float) -> float:
    """Dollars for so many GPU seconds, at ``price`` dollars per GPU and hour."""
    return gpu_s * price / HOUR_S

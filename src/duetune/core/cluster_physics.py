"""What a job does in one round of a simulated cluster: a variant of ``core.physics.step``.

Time is counted in seconds, and held GPUs are paid by the second. A start or restart has a delay in
which no work is done. After the delay the job does ``pace`` units of work per second. A
configuration that does not fit does no work: it fails when its delay is over.
"""

from __future__ import annotations

from typing import NamedTuple

DONE_S = 1e-9
"""Rounding tolerance in seconds: a job that needs this much more than the round is done in it."""

HOUR_S = 3600.0


class RoundStep(NamedTuple):
    """The result of one round for one job.

    ``waited_s``: seconds of start or restart delay in the round.
    ``ran_s``: seconds in which work was done.
    ``held_s``: seconds for which GPUs were held.
    ``pending_s``: delay that is left after the round.
    ``remaining``: work that is left after the round.
    """

    waited_s: float
    ran_s: float
    held_s: float
    pending_s: float
    remaining: float
    done: bool


def round_step(remaining: float, pace: float, pending_s: float, round_s: float) -> RoundStep:
    """Return the result of one round in which a job holds GPUs.

    A ``pace`` of 0 means that the configuration does not fit: GPUs are then held only until the
    delay is over.
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
    """Return the dollars for ``gpu_s`` GPU-seconds at ``price`` dollars per GPU-hour."""
    return gpu_s * price / HOUR_S

"""The words in which a host and a step function over several pools speak to each other.

In every tick, in this order:

1. A spot instance whose pool has none left is gone.
2. The host tells the step function the time, the work left, what is held, the prices of all pools,
   and which of its last attempts was granted.
3. The host tries the attempts that it gets back, one after the other, until one is granted. It then
   releases what it held before. A request for spot is refused if the pool has none. A request for
   on-demand is granted.
4. If none is granted, the host does what ``otherwise`` says.
5. The tick is billed, and work is done.

Nobody is told whether a pool has spot: the answers to a job's own requests, and what happens to the
instance that it holds, are all that it learns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from duetune.policies.single_instance import Instance, instance_named


class Attempt(NamedTuple):
    """An instance in a pool: what is asked for, what was granted, or what is held."""

    pool: str
    kind: Instance


class PoolPrice(NamedTuple):
    """The prices of a pool now, in dollars per hour."""

    spot: float
    on_demand: float


class Otherwise(StrEnum):
    """What a host does if no attempt is granted."""

    STAY = "stay"
    WAIT = "wait"
    STOP = "stop"


class PoolStep(msgspec.Struct, frozen=True):
    """What to do in a tick: attempts in order, and what to do if none is granted.

    ``STAY`` keeps what is held, ``WAIT`` releases it, and ``STOP`` releases it because the work is
    done. A step that ends with an attempt for on-demand never gets to ``otherwise``.
    """

    attempts: tuple[Attempt, ...] = ()
    otherwise: Otherwise = Otherwise.WAIT


PoolPolicy = Callable[
    [float, float, Attempt | None, float, Mapping[str, PoolPrice], Attempt | None], PoolStep
]
"""Elapsed seconds, work left in seconds, what is held, its pending overhead in seconds, prices of
all pools, and the attempt of the last tick that was granted, or None."""


def attempt_of(value: Attempt | tuple[str, str] | None) -> Attempt | None:
    """Return an attempt that a host may have written as a plain pair."""
    return None if value is None else Attempt(value[0], instance_named(value[1]))

"""What a policy may know, what it believes, and what it decides."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.core.job import Job
from duetune.core.market import Slot
from duetune.errors import InvalidInput


class Allocation(msgspec.Struct, frozen=True):
    """GPUs held during a slot."""

    spot: int = 0
    on_demand: int = 0

    @property
    def total(self) -> int:
        return self.spot + self.on_demand


def checked_allocation(wish: Allocation, view: View, policy: str) -> Allocation:
    """``wish``, if the job and the market allow it: a policy may come from anywhere."""
    job, available = view.job, view.market.available
    if (
        0 <= wish.spot <= available
        and wish.on_demand >= 0
        and (wish.total == 0 or job.min_gpus <= wish.total <= job.max_gpus)
    ):
        return wish
    raise InvalidInput(
        f"decision of {policy} in slot {view.slot}",
        (wish.spot, wish.on_demand),
        f"at most {available} spot, and in all 0 or {job.min_gpus} to {job.max_gpus}",
    )


class Spread(msgspec.Struct, frozen=True, eq=False):
    """How sure a forecast is: row i holds the quantiles ``levels[i]`` of every slot ahead."""

    levels: tuple[float, ...]
    spot_price: NDArray[np.float64]
    available: NDArray[np.float64]


class Paths(msgspec.Struct, frozen=True, eq=False):
    """Futures drawn from a forecast: one row each, one column per slot ahead."""

    spot_price: NDArray[np.float64]
    available: NDArray[np.int64]


class Forecast(msgspec.Struct, frozen=True, eq=False):
    """The market to come as believed now: entry k is slot now + 1 + k.

    ``spot_price`` and ``available`` are what a planner of one future plans with. A forecaster
    that knows how sure it is says so in ``spread``, with ``mean_available`` the mean count.
    """

    spot_price: NDArray[np.float64]
    available: NDArray[np.int64]
    mean_available: NDArray[np.float64] | None = None
    spread: Spread | None = None


class Seen(msgspec.Struct, frozen=True, eq=False):
    """What was seen of the market, from before the job began: oldest slot first, the present last.

    The count of the present slot is that of ``View.market``.
    """

    spot_price: NDArray[np.float64]
    available: NDArray[np.int64]


class Outlook(msgspec.Struct, frozen=True):
    """What the market is typically like, as believed when the job began.

    It stands for the slots beyond the forecast. Nothing is known: none available.
    """

    available: float = 0.0
    spot_price: float = 0.0


class View(msgspec.Struct, frozen=True, eq=False):
    """All that a policy may know in slot ``slot`` (from 1) of a job.

    ``progress`` is the work done before this slot, ``held`` what was held in the previous one
    (before any preemption), ``memo`` what the policy itself returned with its last decision.
    ``seen`` is None where nobody kept a record of the market.
    """

    job: Job
    slot: int
    progress: float
    held: Allocation
    market: Slot
    forecast: Forecast
    outlook: Outlook = Outlook()
    spent: float = 0.0
    memo: tuple[float, ...] = ()
    seen: Seen | None = None


class Decision(msgspec.Struct, frozen=True):
    """What to hold in this slot, why in words, and what to remember."""

    allocation: Allocation
    reason: str
    memo: tuple[float, ...] = ()

"""What a policy is shown (``View``, ``Forecast``) and what it returns (``Decision``)."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.core.job import Job
from duetune.core.market import Slot
from duetune.errors import InvalidInput


class Allocation(msgspec.Struct, frozen=True):
    """The number of GPUs of each kind that are held during a slot."""

    spot: int = 0
    on_demand: int = 0

    @property
    def total(self) -> int:
        """Return the number of GPUs of both kinds."""
        return self.spot + self.on_demand


def checked_allocation(asked: Allocation, view: View, policy: str) -> Allocation:
    """Return ``asked`` if the job and the market allow it, else raise ``InvalidInput``.

    Called with every decision, because a policy may come from a plug-in.
    """
    job, available = view.job, view.market.available
    if (
        0 <= asked.spot <= available
        and asked.on_demand >= 0
        and (asked.total == 0 or job.min_gpus <= asked.total <= job.max_gpus)
    ):
        return asked
    raise InvalidInput(
        f"decision of {policy} in slot {view.slot}",
        (asked.spot, asked.on_demand),
        f"at most {available} spot, and in all 0 or {job.min_gpus} to {job.max_gpus}",
    )


class Spread(msgspec.Struct, frozen=True, eq=False):
    """The uncertainty of a forecast: row i holds quantile ``levels[i]`` of every slot ahead."""

    levels: tuple[float, ...]
    spot_price: NDArray[np.float64]
    available: NDArray[np.float64]


class Paths(msgspec.Struct, frozen=True, eq=False):
    """Sample paths drawn from a forecast: one row per path, one column per slot ahead."""

    spot_price: NDArray[np.float64]
    available: NDArray[np.int64]


class Forecast(msgspec.Struct, frozen=True, eq=False):
    """The expected market of the next slots: entry k is slot now + 1 + k.

    ``spot_price`` and ``available`` are the point forecast, used by policies that plan one future.
    ``mean_available``: the mean number of available GPUs, where the forecaster knows it.
    ``spread``: the quantiles, where the forecaster knows them.
    """

    spot_price: NDArray[np.float64]
    available: NDArray[np.int64]
    mean_available: NDArray[np.float64] | None = None
    spread: Spread | None = None


class Seen(msgspec.Struct, frozen=True, eq=False):
    """The market up to now, including slots before the job began; the present slot is last.

    The availability of the present slot equals that of ``View.market``.
    """

    spot_price: NDArray[np.float64]
    available: NDArray[np.int64]


class Outlook(msgspec.Struct, frozen=True):
    """The typical market, as estimated when the job was submitted.

    It is used for slots beyond the forecast. The default means that nothing is known: no spot GPU.
    """

    available: float = 0.0
    spot_price: float = 0.0


class View(msgspec.Struct, frozen=True, eq=False):
    """Everything that a policy may know when it decides slot ``slot`` (counted from 1) of a job.

    ``progress``: work done before this slot.
    ``held``: GPUs held in the previous slot, before any preemption.
    ``spent``: dollars charged so far.
    ``memo``: what the policy returned with its last decision.
    ``seen``: the market so far; None where no record was kept.
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
    """The GPUs to hold in this slot, the reason in words, and the policy's memory."""

    allocation: Allocation
    reason: str
    memo: tuple[float, ...] = ()

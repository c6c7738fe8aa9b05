"""Forecasters without parameters to fit: the oracle, the last value, the value one period ago.

Each has two forms that agree bit for bit: a stepping ``Forecaster`` for the controller, and a pure
function over whole series for many slots at once. The outlook, the mean of the last week, is here
too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.decision import Forecast, Outlook
from duetune.core.events import Past
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.market import MarketTrace, Slot


MAX_PERIOD_SLOTS = 1_000_000


class Perfect:
    """The oracle: it knows the future of ``trace``. For experiments only.

    The first observed slot is trace slot ``start``, the next is the one after, and so on;
    observations only count time. Past its end the trace repeats its last slot.
    """

    def __init__(self, trace: MarketTrace, start: int = 0) -> None:
        self._price = trace.spot_price[0]
        self._available = trace.available[0]
        self._next = checked_start(start)

    def observe(self, slot: Slot) -> None:  # noqa: ARG002 - only the time counts
        """Move one slot ahead; called once per slot."""
        self._next += 1

    def forecast(self, horizon: int) -> Forecast:
        """Return the true next ``horizon`` slots."""
        index = self._next + np.arange(checked_horizon(horizon))
        index = np.minimum(index, self._price.size - 1)
        return Forecast(spot_price=self._price[index], available=self._available[index])


class LastValue:
    """The market stays as it is: the control that any other forecast must beat."""

    def __init__(self) -> None:
        self._last: Slot | None = None

    def observe(self, slot: Slot) -> None:
        """Remember the slot; called once per slot."""
        self._last = slot

    def forecast(self, horizon: int) -> Forecast:
        """Return the last slot ``horizon`` times."""
        last = observed(self._last)
        return Forecast(
            spot_price=np.full(checked_horizon(horizon), last.spot_price, dtype=np.float64),
            available=np.full(horizon, last.available, dtype=np.int64),
        )


class SeasonalNaive:
    """The value one period ago; the last value until a full period was observed.

    For horizons longer than the period, it is the same phase of the last observed period.
    """

    def __init__(self, period_slots: int) -> None:
        self.period_slots = checked_period(period_slots)
        # Rings of one period, so that memory stays constant in a controller that runs for months.
        self._price = np.empty(period_slots, dtype=np.float64)
        self._available = np.empty(period_slots, dtype=np.int64)
        self._seen = 0

    def observe(self, slot: Slot) -> None:
        """Remember the slot; called once per slot."""
        place = self._seen % self.period_slots
        self._price[place] = slot.spot_price
        self._available[place] = slot.available
        self._seen += 1

    def forecast(self, horizon: int) -> Forecast:
        """Return the next ``horizon`` slots as they were one period ago."""
        if self._seen == 0:
            observed(None)
        now = self._seen - 1
        index = season_ago(np.array([now]), checked_horizon(horizon), self.period_slots)[0]
        place = index % self.period_slots
        return Forecast(spot_price=self._price[place], available=self._available[place])


def perfect_index(now: NDArray[np.int64], horizon: int) -> NDArray[np.int64]:
    """Return the slot that each forecast copies.

    There is one row per slot of ``now`` and one column per slot ahead.
    """
    return now[:, np.newaxis] + np.arange(1, horizon + 1)


def last_index(now: NDArray[np.int64], horizon: int) -> NDArray[np.int64]:
    """Return the same as ``perfect_index``, for the last value."""
    return np.repeat(now[:, np.newaxis], horizon, axis=1)


def season_ago(now: NDArray[np.int64], horizon: int, period_slots: int) -> NDArray[np.int64]:
    """Return the same as ``perfect_index``, for the value one period ago, from slot 0 on."""
    ahead = np.arange(1, horizon + 1)
    back = period_slots * ((ahead + period_slots - 1) // period_slots)
    index = now[:, np.newaxis] + (ahead - back)
    return np.where(index >= 0, index, now[:, np.newaxis])


def observed(last: Slot | None) -> Slot:
    """Return the last slot, or refuse to forecast before any slot was observed."""
    if last is None:
        raise InvalidInput("forecast", "nothing observed yet", "at least one observed slot")
    return last


def checked_horizon(horizon: int) -> int:
    """Return the horizon, or refuse a negative one."""
    if horizon < 0:
        raise InvalidInput("horizon", horizon, "a number of slots, zero or more")
    return horizon


def checked_start(start: int) -> int:
    """Return the start slot, or refuse a negative one."""
    if start < 0:
        raise InvalidInput("start", start, "a slot of the trace, counted from 0")
    return start


def checked_period(period_slots: int) -> int:
    """Return the period, or refuse one outside 1 to a million slots."""
    if not 1 <= period_slots <= MAX_PERIOD_SLOTS:
        allowed = f"a number of slots, 1 to {MAX_PERIOD_SLOTS:,}"
        raise InvalidInput("period_slots", period_slots, allowed)
    return period_slots


WEEK_HOURS = 168.0


def past_before(trace: MarketTrace, start: int, *, history_hours: float = WEEK_HOURS) -> Past:
    """Return the slots before ``start``, at most ``history_hours`` of them."""
    first = max(0, start - max(1, round(history_hours / trace.slot_hours)))
    return Past(
        spot_price=tuple(trace.spot_price[0, first:start].tolist()),
        available=tuple(trace.available[0, first:start].tolist()),
    )


def outlook_at(trace: MarketTrace, start: int, *, history_hours: float = WEEK_HOURS) -> Outlook:
    """Return the outlook: means over at most ``history_hours`` up to and including ``start``.

    The outlook stands for the slots beyond any forecast.
    """
    slots = max(1, round(history_hours / trace.slot_hours))
    first = max(0, start + 1 - slots)
    return Outlook(
        available=float(trace.available[0, first : start + 1].mean()),
        spot_price=float(trace.spot_price[0, first : start + 1].mean()),
    )

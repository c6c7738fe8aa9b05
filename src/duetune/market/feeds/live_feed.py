"""The feed over a source that answers over the network: asked once per slot, and again if it fails.

While the source does not answer, the feed repeats its last answer and reports its age.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from duetune.core.fleet import MarketReport
from duetune.core.market import MarketTrace, Slot
from duetune.errors import FleetError
from duetune.market.slot_grid import moment_at
from duetune.wall_clock import wall_now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.core.market import Pool

LONGEST_AGE_S = 6 * 3600.0
"""An answer that is older than this is no longer repeated."""
FIRST_RETRY_S = 15.0
LAST_RETRY_S = 900.0
"""A source that fails is asked again after these times, doubled after every failure."""
MOST_KEPT = 20_000

log = logging.getLogger(__name__)


class Quote(NamedTuple):
    """What a source says of one slot, in dollars per GPU-hour.

    ``available`` is None if the source knows prices only.
    """

    spot_usd_gpu_h: float
    on_demand_usd_gpu_h: float
    available: int | None = None


class MarketSource(Protocol):
    """A place to ask for prices. Both methods raise ``FleetError`` if it does not answer."""

    @property
    def pool(self) -> Pool:
        """Return the pool that the source reports on."""
        ...

    def quote(self, began: float) -> Quote:
        """Return the market of the present slot, which began at this moment."""
        ...

    def past(self, first: float, slots: int, slot_s: float) -> Sequence[Quote | None]:
        """Return the quotes of ``slots`` slots from ``first`` on; empty if the source has none."""
        ...


class LiveFeed:
    """The ``MarketFeed`` over a source.

    ``believed`` is the number of GPUs that are taken as available where the source has no count.
    Slots begin at whole multiples of ``slot_s`` since 1970.
    """

    def __init__(
        self,
        source: MarketSource,
        slot_s: float,
        believed: int,
        clock: Callable[[], float] = wall_now,
    ) -> None:
        self.pool = source.pool
        self._source, self._slot_s, self._believed, self._clock = source, slot_s, believed, clock
        self._seen: dict[int, Quote] = {}
        self._last: tuple[float, Quote] | None = None
        self._retry_at = -np.inf
        self._pause_s = FIRST_RETRY_S
        self._past: dict[int, Quote] = {}
        self._asked = range(0)

    def now(self) -> MarketReport:
        """Return the present slot; the source is asked once in every slot."""
        at = self._clock()
        index = int(at // self._slot_s)
        if index not in self._seen and at >= self._retry_at:
            self._ask(at, index)
        quote, age_s = self._seen.get(index), 0.0
        if quote is None:
            if self._last is None:
                raise FleetError(f"the market feed {self.pool.name} has no answer yet")
            answered, quote = self._last
            age_s = at - answered
            if age_s > LONGEST_AGE_S:
                hours = age_s / 3600
                raise FleetError(f"the market feed {self.pool.name} is silent for {hours:.1f} h")
        return MarketReport(
            at,
            index,
            index * self._slot_s,
            self._slot_s,
            self._slot(quote),
            counted=quote.available is not None,
            age_s=age_s,
        )

    def history(self, slots: int) -> MarketTrace | None:
        """Return the slots before the present one: prices that were or are told.

        A slot that was not seen has the values of the one before it, and the believed count.
        """
        index = int(self._clock() // self._slot_s)
        quotes: list[Quote] = []
        for quote in self._known(index, slots):
            if quote is not None or quotes:
                quotes.append(quote or quotes[-1])
        if not quotes:
            return None
        told = [self._slot(quote) for quote in quotes]
        return MarketTrace.single(
            np.array([slot.spot_price for slot in told]),
            np.array([slot.available for slot in told]),
            np.array([slot.on_demand_price for slot in told]),
            slot_hours=self._slot_s / 3600,
            pool=self.pool,
            start=moment_at((index - len(told)) * self._slot_s * 1e6),
            name=self.pool.name,
        )

    def past(self, slots: int) -> list[Quote | None]:
        """Return what is known of the ``slots`` slots before the present one; None for a gap.

        What the feed saw itself comes first, because only that has counts.
        """
        return self._known(int(self._clock() // self._slot_s), slots)

    def _known(self, index: int, slots: int) -> list[Quote | None]:
        """Return what is known of the slots before ``index``; the source is asked if needed."""
        wanted = range(index - max(0, slots), index)
        if any(each not in self._seen and each not in self._asked for each in wanted):
            try:
                told = self._source.past(wanted.start * self._slot_s, len(wanted), self._slot_s)
            except FleetError as error:
                log.warning("%s; the history has only what was seen here", error)
            else:
                self._asked = wanted
                self._past = {
                    each: quote for each, quote in zip(wanted, told, strict=False) if quote
                }
        return [self._seen.get(each) or self._past.get(each) for each in wanted]

    def _ask(self, at: float, index: int) -> None:
        try:
            quote = self._source.quote(index * self._slot_s)
        except FleetError as error:
            self._retry_at = at + self._pause_s
            self._pause_s = min(LAST_RETRY_S, 2 * self._pause_s)
            if self._last is None:
                raise
            age = (at - self._last[0]) / 60
            log.warning("%s; the answer of %.0f min ago is repeated", error, age)
            return
        self._pause_s = FIRST_RETRY_S
        self._last = (at, quote)
        self._seen[index] = quote
        if len(self._seen) > MOST_KEPT:
            del self._seen[min(self._seen)]

    def _slot(self, quote: Quote) -> Slot:
        hours = self._slot_s / 3600
        available = self._believed if quote.available is None else quote.available
        return Slot(quote.spot_usd_gpu_h * hours, available, quote.on_demand_usd_gpu_h * hours)

"""Writes a feed slot by slot into a recording; ``duetune market record`` runs it."""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import TYPE_CHECKING

from duetune.errors import FleetError
from duetune.market.feeds.live_feed import LiveFeed
from duetune.market.feeds.recorded_feed import RememberingFeed
from duetune.market.feeds.recording import RecordedSlot
from duetune.market.forecast.simple import WEEK_HOURS
from duetune.wall_clock import wall_now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.core.fleet import MarketReport
    from duetune.core.ports import Clock, MarketFeed
    from duetune.market.feeds.recording import Recording

RETRY_S = 60.0
"""A feed that does not answer is asked again after this time, as long as the slot lasts."""
AFTER_S = 1.0
"""A slot is asked for this long after it began, so that its source has it too."""


class Outcome(StrEnum):
    """What became of the present slot."""

    ADDED = "added"
    KNOWN = "recorded already"
    STALE = "not recorded: the feed only repeats an older answer"


class WallClock:
    """The ``Clock`` of the machine; ``interrupt`` ends a wait early."""

    def __init__(self) -> None:
        self._interrupted = threading.Event()

    def now(self) -> float:
        """Return the wall time in seconds since the epoch."""
        return wall_now()

    def wait_until(self, moment: float) -> None:
        """Wait until wall time ``moment``, also if the clock is set meanwhile."""
        while (left := moment - wall_now()) > 0 and not self._interrupted.wait(min(left, 10.0)):
            pass

    def interrupt(self) -> None:
        """End this wait and all later ones."""
        self._interrupted.set()


class Recorder:
    """Appends every slot of ``feed`` to ``recording``, once.

    Slots that nobody recorded are filled with what the feed really knows of them; the others stay
    gaps. An answer that the feed only repeats is not recorded.
    """

    def __init__(self, feed: MarketFeed, recording: Recording) -> None:
        self._feed, self.recording = feed, recording
        self.filled = 0

    def once(self) -> Outcome:
        """Record the present slot and the slots before it that are missing."""
        report = self._feed.now()
        if report.age_s > 0:
            return Outcome.STALE
        self._fill(report)
        hours = report.slot_s / 3600
        slot = RecordedSlot(
            report.slot.spot_price / hours,
            report.slot.on_demand_price / hours,
            report.slot.available if report.counted else None,
        )
        added = self.recording.append(report.slot_began, slot)
        return Outcome.ADDED if added else Outcome.KNOWN

    def run(
        self, clock: Clock, stop: Callable[[], bool], say: Callable[[Outcome | FleetError], None]
    ) -> None:
        """Record slot after slot until ``stop``; ``say`` is told what became of each."""
        while not stop():
            slot_s, at = self.recording.slot_s, clock.now()
            start = self.recording.start
            begins = at - (at - (start or 0.0)) % slot_s
            try:
                outcome: Outcome | FleetError = self.once()
            except FleetError as error:
                outcome = error
            say(outcome)
            following = begins + slot_s + AFTER_S
            done = outcome in {Outcome.ADDED, Outcome.KNOWN}
            clock.wait_until(following if done else min(following, at + RETRY_S))

    def _fill(self, report: MarketReport) -> None:
        """Append what the feed knows of the slots since the last recorded one."""
        recording = self.recording
        week = max(1, round(WEEK_HOURS * 3600 / report.slot_s))
        missed = week
        if recording.last is not None:
            missed = min(week, recording.number_at(report.slot_began) - recording.last - 1)
        for place, slot in enumerate(known := _past(self._feed, missed) if missed > 0 else []):
            if slot is not None:
                began = report.slot_began - (len(known) - place) * report.slot_s
                self.filled += recording.append(began, slot)


def _past(feed: MarketFeed, slots: int) -> Sequence[RecordedSlot | None]:
    """Return what the feed knows of the slots before the present one, oldest first.

    A live feed knows prices and, of slots that it saw itself, counts. The history of any other
    feed is taken as it is. What a recording adds to a feed is left out: there gaps are filled.
    """
    source = feed.feed if isinstance(feed, RememberingFeed) else feed
    if isinstance(source, LiveFeed):
        return [None if each is None else RecordedSlot(*each) for each in source.past(slots)]
    past = source.history(slots)
    if past is None:
        return []
    hours = past.slot_hours
    told = (past.slot(number) for number in range(past.slots))
    return [
        RecordedSlot(slot.spot_price / hours, slot.on_demand_price / hours, slot.available)
        for slot in told
    ]

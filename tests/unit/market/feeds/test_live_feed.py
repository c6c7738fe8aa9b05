"""The feed over a source: asked once per slot, repeated while the source is away."""

from __future__ import annotations

import logging

import pytest

from duetune.core.market import Pool
from duetune.errors import FleetError
from duetune.market.feeds.live_feed import FIRST_RETRY_S, LONGEST_AGE_S, LiveFeed, Quote
from duetune.testing import ManualClock, MarketFeedContract

SLOT_S = 1800.0
START = 1_790_000_000.0 // SLOT_S * SLOT_S + 60


class Source:
    pool = Pool("here", "H100", "zone")

    def __init__(self, *, counted=True, history=True):
        self.counted, self.history = counted, history
        self.away = False
        self.asked = 0

    def quote(self, began):
        self.asked += 1
        if self.away:
            raise FleetError("away")
        number = round(began / SLOT_S)
        return Quote(1 + number % 5 / 10, 3.0, number % 7 if self.counted else None)

    def past(self, first, slots, slot_s):
        if not self.history:
            return ()
        self.asked += 1
        if self.away:
            raise FleetError("away")
        began = (first + place * slot_s for place in range(slots))
        return [Quote(1 + round(each / SLOT_S) % 5 / 10, 3.0) for each in began]


class TestContract(MarketFeedContract):
    history = True

    def make(self):
        self.clock = ManualClock(START)
        return LiveFeed(Source(history=self.history), SLOT_S, 4, self.clock.now)

    def turn(self):
        self.clock.advance(SLOT_S)


class TestContractWithoutHistory(TestContract):
    history = False

    def test_history_is_no_longer_than_asked_for(self):
        feed = self.make()
        for _ in range(3):
            feed.now()
            self.turn()
        assert [feed.history(slots).slots for slots in (1, 2, 9)] == [1, 2, 3]


def made(**how):
    clock, source = ManualClock(START), Source(**how)
    return LiveFeed(source, SLOT_S, 4, clock.now), source, clock


def test_the_source_is_asked_once_in_a_slot():
    feed, source, clock = made()
    for _ in range(5):
        feed.now()
        clock.advance(60)
    assert source.asked == 1


def test_without_a_count_the_believed_number_is_reported_as_such():
    report = made(counted=False)[0].now()
    assert (report.slot.available, report.counted) == (4, False)
    assert made()[0].now().counted


def test_a_source_that_is_away_is_repeated_with_its_age_and_asked_again_less_and_less(caplog):
    feed, source, clock = made()
    before = feed.now()
    source.away = True
    clock.advance(SLOT_S)
    with caplog.at_level(logging.WARNING):
        report = feed.now()
    assert report.slot == before.slot
    assert report.index == before.index + 1
    assert report.age_s == SLOT_S
    assert "the answer of 30 min ago is repeated" in caplog.text
    asked = source.asked
    feed.now()
    assert source.asked == asked, "not again at once"
    clock.advance(FIRST_RETRY_S)
    feed.now()
    assert source.asked == asked + 1
    clock.advance(FIRST_RETRY_S)
    feed.now()
    assert source.asked == asked + 1, "the second pause is longer"
    source.away = False
    clock.advance(FIRST_RETRY_S)
    assert feed.now().age_s == 0


def test_an_old_answer_is_no_longer_repeated():
    feed, source, clock = made()
    feed.now()
    source.away = True
    clock.advance(LONGEST_AGE_S + 1)
    with pytest.raises(FleetError, match=r"here is silent for 6\.0 h"):
        feed.now()


def test_a_source_that_never_answered_says_why():
    feed, source, _ = made()
    source.away = True
    with pytest.raises(FleetError, match="away"):
        feed.now()
    with pytest.raises(FleetError, match="no answer yet"):
        feed.now()


def test_the_past_has_counts_only_where_the_feed_looked():
    feed, _, clock = made()
    feed.now()
    clock.advance(2 * SLOT_S)
    assert [quote.available is None for quote in feed.past(3)] == [True, False, True]


def test_slots_that_nobody_looked_at_are_asked_for_later():
    feed, source, clock = made()
    assert feed.history(4).slots == 4
    asked = source.asked
    feed.history(4)
    assert source.asked == asked, "the past does not change"
    clock.advance(3 * SLOT_S)
    prices = [quote.spot_usd_gpu_h for quote in feed.past(2)]
    first = round(START // SLOT_S) + 1
    assert prices == [1 + each % 5 / 10 for each in (first, first + 1)]
    assert source.asked == asked + 1


def test_history_without_the_source_is_what_was_seen(caplog):
    feed, source, clock = made()
    feed.now()
    source.away = True
    clock.advance(SLOT_S)
    assert feed.history(5).slots == 1
    assert "only what was seen here" in caplog.text

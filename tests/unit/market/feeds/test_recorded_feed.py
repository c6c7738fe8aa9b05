"""Feeds over recordings: gaps are held for a while, bounds are lifted, old files are refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from duetune.core.market import Pool
from duetune.errors import FleetError, InvalidInput
from duetune.market.feeds.live_feed import LiveFeed, Quote
from duetune.market.feeds.recorded_feed import RecordedFeed, RememberingFeed
from duetune.market.feeds.recording import RecordedSlot, Recording
from duetune.market.traces import load_trace
from duetune.testing import ManualClock, MarketFeedContract

POOL = Pool("here", "H100", "a")
START = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
SLOT_S = 1800.0
BELIEVED = 8


def at(number):
    return START + number * SLOT_S


def recorded(path, slots):
    recording = Recording(path, POOL, SLOT_S)
    for number, slot in slots.items():
        recording.append(at(number), slot)
    return recording


def feed_of(path, slots, now, **how):
    recorded(path, slots)
    return RecordedFeed(path, None, BELIEVED, clock=ManualClock(at(now) + 60).now, **how)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "here.csv"


class TestContract(MarketFeedContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.path = tmp_path / "here.csv"
        self.clock = ManualClock(at(3) + 60)
        self.recording = recorded(self.path, {n: RecordedSlot(1.0 + n, 9.0, n) for n in range(4)})

    def make(self):
        return RecordedFeed(self.path, None, BELIEVED, clock=self.clock.now)

    def turn(self):
        self.clock.advance(SLOT_S)
        number = round((self.clock.now() - 60 - START) / SLOT_S)
        self.recording.append(at(number), RecordedSlot(1.0 + number, 9.0, number))


def test_now_is_the_last_slot_and_history_the_rest(path):
    feed = feed_of(path, {n: RecordedSlot(1.0 + n, 9.0, n) for n in range(4)}, now=3)
    report = feed.now()
    assert (report.slot.spot_price, report.slot.available) == (2.0, 3)
    assert (report.age_s, report.counted, report.slot_began) == (0.0, True, at(3))
    assert feed.history(9).available.tolist() == [[0, 1, 2]]
    assert feed.pool == POOL


def test_a_recorder_that_stands_still_shows_in_the_age_and_at_last_fails(path):
    slots = {0: RecordedSlot(1.0, 9.0, 3)}
    report = feed_of(path, slots, now=4).now()
    assert (report.slot.available, report.counted) == (3, True)
    assert report.age_s == 3 * SLOT_S + 60
    report = feed_of(path, slots, now=6).now()
    assert (report.slot.available, report.counted) == (BELIEVED, False), "a count holds 2 h"
    with pytest.raises(FleetError, match=r"ended 24\.5 h ago; start `duetune market record`"):
        feed_of(path, slots, now=50).now()
    with pytest.raises(FleetError, match="ended"):
        feed_of(path, slots, now=4, hold_hours=1.0).now()


def test_history_holds_short_gaps_and_begins_after_long_ones(path):
    slots = {n: RecordedSlot(1.0 + n, 9.0, 2) for n in (0, 60, 61, 64, 70)}
    history = feed_of(path, slots, now=71).history(200)
    assert history.slots == 11
    assert history.start == datetime(2026, 11, 2, 6, tzinfo=UTC)
    prices = (history.spot_price[0] * 2).tolist()
    assert prices == [61.0, 62, 62, 62, 65, 65, 65, 65, 65, 65, 71]
    assert history.available[0].tolist() == [2] * 9 + [BELIEVED, 2], "a count holds 2 h"


def test_a_lower_bound_is_lifted_to_the_belief_and_a_refusal_is_not(path):
    slots = {
        0: RecordedSlot(1.0, 9.0, 2, at_least=True),
        1: RecordedSlot(1.0, 9.0, 20, at_least=True),
        2: RecordedSlot(1.0, 9.0, 2),
    }
    assert feed_of(path, slots, now=3).history(3).available.tolist() == [[BELIEVED, 20, 2]]


def test_a_file_with_unknown_counts_can_be_simulated_with_a_rule_for_gaps(path):
    recorded(path, {n: RecordedSlot(1.0, 9.0, 4 if n < 2 else None) for n in range(4)})
    assert load_trace(path, gaps="hold").available.tolist() == [[4, 4, 4, 4]]
    assert load_trace(path, gaps="longest").slots == 2
    assert load_trace(path, available=3).available.tolist() == [[3, 3, 3, 3]]
    with pytest.raises(InvalidInput, match=r"available in pool 'here' at 2026-11-01T01.*unknown"):
        load_trace(path)
    with pytest.raises(InvalidInput, match=r"or at most 0\.5 h after one"):
        load_trace(path, gaps="hold", max_hold_hours=0.5)


def test_a_file_that_becomes_unreadable_stays_as_it_was(path, caplog):
    feed = feed_of(path, {0: RecordedSlot(1.0, 9.0, 3)}, now=1)
    path.write_text("nonsense\n")
    assert feed.now().slot.available == 3
    assert "stays as it was" in caplog.text
    path.unlink()
    assert feed.now().slot.available == 3


def test_what_is_missing_is_said(path):
    with pytest.raises(InvalidInput, match="`duetune market record` writes one"):
        RecordedFeed(path, None, BELIEVED)
    recorded(path, {0: RecordedSlot(1.0, 9.0, 3)})
    with pytest.raises(InvalidInput, match="pool: 'there' is not allowed; expected one of here"):
        RecordedFeed(path, "there", BELIEVED)
    with pytest.raises(FleetError, match="begins in the future"):
        RecordedFeed(path, None, BELIEVED, clock=lambda: at(-3)).now()


class Source:
    pool = POOL

    def __init__(self, *, past=True, available=None):
        self.has_past, self.available = past, available

    def quote(self, began):
        return Quote(round((began - START) / SLOT_S) + 11.0, 90.0, self.available)

    def past(self, first, slots, slot_s):
        return [self.quote(first + place * slot_s) for place in range(slots * self.has_past)]


class TestContractOfRemembering(MarketFeedContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.path, self.clock = tmp_path / "here.csv", ManualClock(at(9) + 60)
        recorded(self.path, {n: RecordedSlot(50.0 + n, 90.0, n) for n in (2, 3, 7)})

    def make(self):
        live = LiveFeed(Source(), SLOT_S, BELIEVED, self.clock.now)
        return RememberingFeed(live, POOL, self.path, BELIEVED)

    def turn(self):
        self.clock.advance(SLOT_S)


class TestRemembering:
    def made(self, path, slots, now, **how):
        if slots:
            recorded(path, slots)
        live = LiveFeed(Source(**how), SLOT_S, BELIEVED, ManualClock(at(now) + 60).now)
        return RememberingFeed(live, POOL, path, BELIEVED)

    def test_counts_come_from_the_recording_and_other_prices_from_the_feed(self, path):
        slots = {4: RecordedSlot(50.0, 9.0, 3), 5: RecordedSlot(60.0, 9.0, 2, at_least=True)}
        history = self.made(path, slots, now=12).history(12)
        assert (history.spot_price[0] * 2).tolist() == [
            11,
            12,
            13,
            14,
            50,
            60,
            17,
            18,
            19,
            20,
            21,
            22,
        ]
        assert history.available[0].tolist() == [8, 8, 8, 8, 3, 8, 8, 8, 8, 8, 8, 8]

    def test_a_recording_that_begins_later_than_the_history_does(self, path):
        history = self.made(path, {2: RecordedSlot(50.0, 9.0, 3)}, now=3).history(6)
        assert (history.spot_price[0] * 2).tolist() == [8.0, 9.0, 10.0, 11.0, 12.0, 50.0]
        assert history.available[0].tolist() == [8, 8, 8, 8, 8, 3]

    def test_a_feed_without_history_remembers_by_its_recording(self, path):
        slots = {n: RecordedSlot(50.0, 9.0, 3) for n in range(3)}
        feed = self.made(path, slots, now=4, past=False)
        assert (feed.history(9).spot_price[0] * 2).tolist() == [50.0] * 4, "the last one is held"

    def test_our_own_last_refusal_says_how_many_there_are_now(self, path):
        slots = {3: RecordedSlot(50.0, 9.0, 1)}
        report = self.made(path, slots, now=4).now()
        assert (report.slot.available, report.counted, report.slot.spot_price) == (1, True, 7.5)
        assert self.made(path, {}, now=9).now().counted is False, "more than 2 h later"
        assert self.made(path, {}, now=4, available=5).now().slot.available == 5

    def test_without_a_recording_or_with_another_the_feed_is_as_it_is(self, path, caplog):
        feed = self.made(path, {}, now=4)
        assert feed.now() == feed.feed.now()
        assert feed.history(3).available.tolist() == [[8, 8, 8]]
        Recording(path, POOL, 600.0).append(at(0), RecordedSlot(1.0, 9.0, 3))
        assert feed.history(3).available.tolist() == [[8, 8, 8]]
        assert "has other slots" in caplog.text
        path.write_text("nonsense\n")
        fresh = self.made(path, {}, now=4)
        assert fresh.now().slot.available == 8
        assert "is not used" in caplog.text

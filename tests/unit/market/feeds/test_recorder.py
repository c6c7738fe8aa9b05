"""The recorder: every slot once, gaps filled only with what is known, never a repeated answer."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from duetune.core.market import Pool
from duetune.errors import FleetError
from duetune.market.feeds.live_feed import LiveFeed, Quote
from duetune.market.feeds.recorder import Outcome, Recorder, WallClock
from duetune.market.feeds.recording import Recording
from duetune.testing import ManualClock, MemoryFleet, market_of
from duetune.wall_clock import wall_now

POOL = Pool("here")
START = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
SLOT_S = 1800.0


class Source:
    pool = POOL

    def __init__(self, clock, *, past):
        self.clock, self.has_past, self.away = clock, past, set()

    def quote(self, began):
        number = round((began - START) / SLOT_S)
        if number in self.away:
            raise FleetError("away")
        return Quote(number + 1.0, 9.0, 4)

    def past(self, first, slots, slot_s):
        told = [first + place * slot_s for place in range(slots * self.has_past)]
        return [
            Quote((each - START) / SLOT_S + 1.0, 9.0) if each >= START else None for each in told
        ]


def made(path, *, past=False):
    clock = ManualClock(START + 5)
    source = Source(clock, past=past)
    recorder = Recorder(LiveFeed(source, SLOT_S, 8, clock.now), Recording(path, POOL, SLOT_S))
    return recorder, source, clock


def prices(path):
    recording = Recording(path, POOL, SLOT_S)
    return {
        number: (slot.spot_usd_gpu_h, slot.available) for number, slot in recording.slots.items()
    }


def test_each_slot_is_recorded_once(tmp_path):
    path = tmp_path / "here.csv"
    recorder, _, clock = made(path)
    assert [recorder.once(), recorder.once()] == [Outcome.ADDED, Outcome.KNOWN]
    clock.advance(SLOT_S)
    assert recorder.once() is Outcome.ADDED
    assert prices(path) == {0: (1.0, 4), 1: (2.0, 4)}


def test_missed_slots_stay_gaps_without_a_past_and_have_prices_only_with_one(tmp_path):
    for past, expected in (
        (False, {0: (1.0, 4), 3: (4.0, 4)}),
        (True, {0: (1.0, 4), 1: (2.0, None), 2: (3.0, None), 3: (4.0, 4)}),
    ):
        path = tmp_path / f"{past}.csv"
        made(path, past=past)[0].once()
        recorder, _, clock = made(path, past=past)  # killed and started again
        clock.advance(3 * SLOT_S)
        assert recorder.once() is Outcome.ADDED
        assert prices(path) == expected


def test_a_repeated_answer_is_not_recorded(tmp_path):
    path = tmp_path / "here.csv"
    recorder, source, clock = made(path)
    recorder.once()
    source.away.add(1)
    clock.advance(SLOT_S)
    assert recorder.once() is Outcome.STALE
    assert list(prices(path)) == [0]


def test_it_runs_on_while_the_feed_is_away(tmp_path):
    path = tmp_path / "here.csv"
    recorder, source, clock = made(path)
    source.away |= {0, 2}
    said = []
    recorder.run(clock, stop=lambda: clock.now() > START + 4 * SLOT_S, say=said.append)
    assert prices(path) == {0: (2.0, 4), 2: (4.0, 4)}, "numbered from the first recorded slot"
    assert isinstance(said[0], FleetError)
    assert said.count(Outcome.ADDED) == 2
    assert Outcome.STALE in said


def test_the_history_of_a_fleet_is_recorded_with_its_counts(tmp_path):
    path = tmp_path / "fleet.csv"
    fleet = MemoryFleet(market_of([0.4, 0.5, 0.6, 0.7], [4, 1, 0, 2]))
    recording = Recording(path, POOL, fleet.now().slot_s)
    fleet.clock.advance(2 * recording.slot_s + 1)
    assert Recorder(fleet, recording).once() is Outcome.ADDED
    counts = [slot.available for slot in recording.slots.values()]
    assert counts == [4, 1, 0]


def test_an_interrupted_clock_waits_no_more():
    clock = WallClock()
    clock.interrupt()
    clock.wait_until(wall_now() + 1000)
    assert clock.now() == pytest.approx(wall_now(), abs=100)

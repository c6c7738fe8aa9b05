"""The memory of an engine's market: what its controller records, and what is learned from it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from duetune.control.market_watch import MarketMemory
from duetune.core.decision import Forecast
from duetune.core.fleet import Launch, NodeKind, Task
from duetune.core.market import Pool
from duetune.fleets.engine_market import EngineMarket
from duetune.fleets.fleet_file import FleetFile
from duetune.fleets.node_ledger import NodeLedger
from duetune.jobs import market_keeper
from duetune.jobs.market_keeper import MarketKeeper
from duetune.jobs.recordings import opened_recording
from duetune.market.feeds.recorded_feed import RememberingFeed
from duetune.market.feeds.recorder import Outcome, Recorder
from duetune.testing.memory_driver import MemoryDriver
from support.engines import EngineLab, MemoryPages

POOL = Pool("campus", "H100")
FILE = FleetFile(engine="memory", slot_minutes=30, max_gpus=6)
SLOT_S = 1800.0
BELIEVED = 6


@pytest.fixture
def path(tmp_path):
    return tmp_path / "markets" / "campus.csv"


@pytest.fixture
def driver():
    found = MemoryDriver(spot=3)
    found.clock.advance(1_800_000_000 - found.clock.now())
    return found


def keeper(driver, path, *, file=FILE):
    """A feed as a controller has after it was started."""
    market = EngineMarket(file, driver, None, driver.clock)
    return MarketKeeper(market, POOL, path, BELIEVED, lambda: ())


def live(driver, feed, counts):
    """Let a controller look once in each slot, with so many GPUs there."""
    for count in counts:
        driver.spot = count
        feed.now()
        driver.clock.advance(SLOT_S)


class Watching:
    """A forecaster that notes what it is shown."""

    def __init__(self):
        self.counts = []

    def observe(self, slot):
        self.counts.append(slot.available)

    def forecast(self, horizon):
        return Forecast(np.zeros(horizon), np.zeros(horizon, dtype=np.int64))


def test_a_forecaster_sees_the_history_after_a_restart(driver, path):
    live(driver, keeper(driver, path), [3, 5, 0, 4])
    again = keeper(driver, path)
    driver.spot = 2
    watching = Watching()
    MarketMemory(again, lambda: watching).forecast(again.now(), 1)
    assert watching.counts == [3, 5, 0, 4, 2]


def test_commands_that_only_read_learn_the_same_and_write_nothing(driver, path):
    live(driver, keeper(driver, path), [3, 5])
    written = path.read_bytes()
    market = EngineMarket(FILE, driver, None, driver.clock)
    found = RememberingFeed(market, POOL, path, BELIEVED).history(100)
    assert found.available[0].tolist() == [3, 5]
    assert found.spot_price[0].tolist() == [FILE.spot_usd_h / 2] * 2
    assert path.read_bytes() == written


def test_a_gap_of_hours_is_unknown_and_not_zero(driver, path):
    feed = keeper(driver, path)
    live(driver, feed, [3, 1])
    driver.clock.advance(10 * SLOT_S)
    live(driver, keeper(driver, path), [4])
    known = keeper(driver, path).history(100).available[0].tolist()
    held = [1] * 4
    assert known == [3, 1, *held, *[BELIEVED] * 6, 4], "a count holds for two hours"
    assert len(path.read_text().splitlines()) == 4, "nothing is written for the gap"


def test_history_begins_after_a_gap_of_days(driver, path):
    live(driver, keeper(driver, path), [3, 1])
    driver.clock.advance(3 * 86_400)
    live(driver, keeper(driver, path), [4, 5])
    assert keeper(driver, path).history(1000).available[0].tolist() == [4, 5]


def test_two_controllers_write_every_slot_once(driver, path):
    feeds = [keeper(driver, path) for _ in range(2)]
    for _ in range(20):
        threads = [threading.Thread(target=feed.now) for feed in feeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        driver.clock.advance(SLOT_S)
    times = [line.split(",")[0] for line in path.read_text().splitlines()[1:]]
    assert len(times) == 20
    assert times == sorted(set(times))


def test_a_pool_that_somebody_else_records_is_left_to_them(driver, path, caplog):
    feed = keeper(driver, path)
    live(driver, feed, [3])
    with opened_recording(path, POOL, SLOT_S) as recording:
        driver.spot = 5
        assert feed.now().slot.available == 5
        market = EngineMarket(FILE, driver, None, driver.clock)
        assert Recorder(market, recording).once() is Outcome.ADDED
    driver.clock.advance(SLOT_S)
    live(driver, feed, [2])
    assert feed.history(9).available[0].tolist() == [3, 5, 2]
    assert not caplog.records


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00garbage\n\x00more\n",
        b"timestamp,pool\nnonsense,1\n",
        b"time,pool,accelerator\n" + b"x" * 5000 + b"\n",
    ],
)
def test_a_broken_file_is_one_warning_and_a_new_beginning(driver, path, content, caplog):
    path.parent.mkdir()
    path.write_bytes(content)
    feed = keeper(driver, path)
    live(driver, feed, [3, 4])
    assert feed.history(9).available[0].tolist() == [3, 4]
    (warning,) = caplog.messages
    assert "a new recording begins" in warning
    (aside,) = path.parent.glob("campus.csv.*.old")
    assert aside.name in warning
    assert aside.read_bytes() == content


def test_other_slots_begin_another_recording(driver, path, caplog):
    live(driver, keeper(driver, path), [3, 4])
    hourly = keeper(driver, path, file=FleetFile(engine="memory", slot_minutes=60, max_gpus=6))
    hourly.now()
    assert "slots of 60 min; this file has 30" in caplog.messages[0]
    assert len(path.read_text().splitlines()) == 2


def test_a_recording_that_cannot_be_written_is_one_warning(driver, path, caplog):
    path.parent.write_text("not a folder")
    feed = keeper(driver, path)
    live(driver, feed, [3, 4, 5])
    assert feed.now().slot.available == 5
    assert len(caplog.messages) == 1
    assert "the market is not recorded" in caplog.messages[0]


def test_the_recording_does_not_grow_for_ever(driver, path, monkeypatch):
    monkeypatch.setattr(market_keeper, "MOST_SLOTS", 8)
    feed = keeper(driver, path)
    live(driver, feed, range(25))
    assert len(path.read_text().splitlines()) - 1 <= 10
    assert feed.history(100).available[0].tolist()[-8:] == list(range(17, 25))


def test_a_recorder_of_the_fleet_fills_no_gap_with_what_was_only_held(driver, path):
    live(driver, keeper(driver, path), [3])
    driver.clock.advance(3 * SLOT_S)
    market = EngineMarket(FILE, driver, None, driver.clock)
    feed = RememberingFeed(market, POOL, path, BELIEVED)
    with opened_recording(path, POOL, SLOT_S) as recording:
        recorder = Recorder(feed, recording)
        assert recorder.once() is Outcome.ADDED
        assert recorder.filled == 0
    assert len(path.read_text().splitlines()) == 3


class Uncounted:
    """An engine that cannot tell its capacity."""

    def __init__(self, driver):
        self.start, self.stop, self.list = driver.start, driver.stop, driver.list


def test_where_the_engine_cannot_count_our_own_grants_and_refusals_do(path):
    lab = EngineLab(spot=2, pages=MemoryPages())
    lab.clock.advance(1_800_000_000 - lab.clock.now())
    ledger = NodeLedger(lab.pages)
    market = EngineMarket(FILE, Uncounted(lab.driver), ledger, lab.clock)
    feed = MarketKeeper(market, POOL, path, BELIEVED, ledger.nodes)
    assert feed.now().slot.available == BELIEVED
    assert not feed.now().counted
    for number in range(3):
        launch = Launch(f"n{number}", "job", NodeKind.SPOT, 1, Task(folder="/nowhere"))
        lab.fleet.apply([launch])
    lab.clock.advance(60.0)
    lab.fleet.look()
    lab.clock.advance(SLOT_S - 60.0)
    assert feed.now().slot.available == 2, "two were granted and the third was refused"
    assert feed.history(9).available[0].tolist() == [2]
    lab.clock.advance(5 * SLOT_S)
    assert feed.now().slot.available == BELIEVED, "two are held, so there are two at least"

"""What happens to the controller's time, and nodes that nobody else would release."""

from __future__ import annotations

import pytest

from duetune.control import disturbances
from duetune.control.disturbances import TimeWatch, release_all
from duetune.core.events import Disturbance, Disturbed
from duetune.errors import StoreLost
from duetune.testing import constant_market
from duetune.testing.memory_fleet import ManualClock
from duetune.wall_clock import OFFSET_FILE
from support.harness import Room
from support.invariants import check_over


def test_a_wait_that_lasts_much_longer_was_a_standstill(monkeypatch):
    clock, steady = ManualClock(1000.0), iter([0.0, 2.0, 10.0, 72.0])
    monkeypatch.setattr(disturbances, "steady_now", lambda: next(steady))
    watch = TimeWatch(clock, speed=100.0)
    watch.wait_until(1200.0)
    assert watch.disturbances() == []
    watch.wait_until(1400.0)
    assert watch.disturbances() == [(Disturbance.STOOD_STILL, 60.0)]
    assert watch.disturbances() == []


def test_that_the_clock_was_set_is_in_the_journal_of_every_job(tmp_path, monkeypatch):
    offset = tmp_path / "offset"
    offset.write_text("0")
    monkeypatch.setenv(OFFSET_FILE, str(offset))
    room = Room(constant_market(spot_price=0.3, available=8))
    for name in ("first", "second"):
        room.submit(name, steps=20)
    room.at(1.5, lambda: offset.write_text("600"))
    room.run()
    for name in ("first", "second"):
        check_over(room, name)
        (event,) = room.events(name, Disturbed)
        assert event.what is Disturbance.CLOCK_SET
        assert event.seconds == pytest.approx(600, abs=5)


def test_without_a_journal_every_node_is_released(monkeypatch):
    monkeypatch.setattr(disturbances, "RELEASE_TRIES", 3)
    room = Room(constant_market(spot_price=0.3, available=8))
    room.submit(policy="maximal_spot")
    room.run(slots=1.5)
    assert room.fleet.alive("job")
    room.fleet.lose_requests(2)
    assert release_all(room.fleet, room.clock, ["job", "unknown"]) == []
    assert not room.fleet.alive("job")
    room.fleet.unreachable = True
    assert release_all(room.fleet, room.clock, ["job"]) == ["job"]


def test_a_fleet_whose_ledger_is_lost_too_is_not_asked_again():
    asked = []

    class Ledgerless:
        def observe(self, job):
            asked.append(job)
            raise StoreLost("duetune.db", "its file was deleted")

    assert release_all(Ledgerless(), ManualClock(0.0), ["a", "b"]) == ["a", "b"]
    assert asked == ["a"]

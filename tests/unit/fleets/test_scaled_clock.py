from __future__ import annotations

import threading
import time

import msgspec
import pytest

from duetune.core.ports import Clock
from duetune.errors import FleetError, InvalidInput
from duetune.fleets.embedded import FleetSettings, ScaledClock
from duetune.fleets.embedded.clock import PROVIDER_FILE, Anchor, ProviderFile
from duetune.wall_clock import OFFSET_FILE, StepWatch, clock_reading
from support.patience import PATIENCE_S

SETTINGS = FleetSettings(preload="")


def write(folder, *, market, speed):
    anchor = Anchor.at(clock_reading(), market, speed)
    file = ProviderFile("http://127.0.0.1:1", 1, "token", "m", "d", 1800.0, anchor, SETTINGS)
    (folder / PROVIDER_FILE).write_bytes(msgspec.json.encode(file))


def test_it_runs_at_its_speed_from_where_it_began(tmp_path):
    write(tmp_path, market=5000.0, speed=1000.0)
    clock = ScaledClock(tmp_path)
    assert isinstance(clock, Clock)
    assert clock.speed == 1000.0
    first = clock.now()
    assert first >= 5000.0
    wall = time.time()
    clock.wait_until(first + 100.0)
    assert clock.now() >= first + 100.0
    assert time.time() - wall >= 0.05


def test_a_moment_that_has_passed_is_not_waited_for(tmp_path):
    write(tmp_path, market=5000.0, speed=1.0)
    ScaledClock(tmp_path).wait_until(4000.0)


def test_a_wait_can_be_interrupted_before_and_while_it_lasts(tmp_path):
    write(tmp_path, market=0.0, speed=1.0)
    clock = ScaledClock(tmp_path)
    clock.interrupt()
    clock.wait_until(clock.now() + 10_000)
    waiter = threading.Thread(target=clock.wait_until, args=(clock.now() + 10_000,))
    waiter.start()
    clock.interrupt()
    waiter.join(PATIENCE_S)
    assert not waiter.is_alive()


def test_it_goes_on_without_the_file_and_follows_a_new_one(tmp_path):
    write(tmp_path, market=5000.0, speed=1.0)
    clock = ScaledClock(tmp_path)
    (tmp_path / PROVIDER_FILE).unlink()
    assert 5000.0 <= clock.now() < 6000.0
    write(tmp_path, market=90_000.0, speed=1.0)
    assert clock.now() >= 90_000.0
    (tmp_path / PROVIDER_FILE).write_text("{half of")
    assert clock.now() >= 90_000.0


def test_a_wall_clock_that_is_set_is_noticed_and_changes_no_wait(tmp_path, monkeypatch):
    offset = tmp_path / "offset"
    offset.write_text("0")
    monkeypatch.setenv(OFFSET_FILE, str(offset))
    write(tmp_path, market=0.0, speed=1.0)
    clock, steps = ScaledClock(tmp_path), StepWatch()
    assert steps.step_s() == 0.0
    first = clock.now()
    for step in (600, 0):
        offset.write_text(str(step))
        assert first <= clock.now() < first + 300
        clock.wait_until(clock.now() + 0.01)
        assert abs(steps.step_s()) == pytest.approx(600, abs=5)
    assert steps.step_s() == 0.0


def test_without_a_fleet_there_is_no_clock(tmp_path):
    with pytest.raises(FleetError, match="no fleet is running"):
        ScaledClock(tmp_path)
    (tmp_path / PROVIDER_FILE).write_text("{half of")
    with pytest.raises(FleetError, match="cannot read"):
        ScaledClock(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("speed", 0.0),
        ("speed", float("inf")),
        ("first_slot", -1),
        ("grant_delay_s", -1.0),
        ("notice_s", float("nan")),
        ("silent_share", 1.5),
        ("on_demand_capacity", -1),
        ("max_price", -0.1),
        ("heartbeat_timeout_s", 0.0),
        ("seed", -1),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(field, value):
    with pytest.raises(InvalidInput, match=f"{field}: {value}"):
        FleetSettings(**{field: value})

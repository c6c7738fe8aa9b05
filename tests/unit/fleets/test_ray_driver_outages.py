"""The driver without a cluster: it needs no Ray to say that nobody answers."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from duetune.core.fleet import NodeKind
from duetune.errors import FleetError, MissingExtra
from duetune.fleets.driver import CapacityDriver, CheckedDriver, NodeOrder
from duetune.fleets.ray import ray_driver
from duetune.fleets.ray.ray_driver import RayDriver
from duetune.fleets.ray.ray_settings import RaySettings

ORDER = NodeOrder(name="a", job="j", kind=NodeKind.SPOT, command=("true",))


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def driver_of(server):
    return RayDriver(RaySettings(address=f"127.0.0.1:{server.getsockname()[1]}"), prefix="")


def test_it_tells_its_capacity_and_checks_itself(listener):
    driver = driver_of(listener)
    assert isinstance(driver, CapacityDriver)
    assert isinstance(driver, CheckedDriver)


def test_a_head_that_is_away_is_an_error_that_a_retry_may_mend(listener):
    driver = driver_of(listener)
    listener.close()
    changes = (lambda: driver.stop("a"), lambda: driver.start(ORDER))
    for call in (driver.list, driver.capacity, *changes):
        with pytest.raises(FleetError, match="cannot be reached") as caught:
            call()
        assert caught.value.retry
    assert [bool(each.wrong) for each in driver.check()] == [True]


def test_without_ray_the_extra_is_named(listener, monkeypatch):
    monkeypatch.setattr(ray_driver, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtra, match=r"duetune\[ray\]"):
        driver_of(listener).list()


def test_the_controllers_process_does_not_import_ray():
    code = "import sys, duetune.fleets.ray; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

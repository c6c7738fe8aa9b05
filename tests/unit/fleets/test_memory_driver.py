from __future__ import annotations

import contextlib

import pytest

from duetune.core.fleet import NodeEnd, NodeKind
from duetune.errors import FleetError
from duetune.fleets.driver import EngineState, NodeOrder
from duetune.testing import DriverFault, MemoryDriver

ORDER = NodeOrder(name="a", job="job", kind=NodeKind.SPOT, command=("true",))


def order(name="a", **changes):
    return NodeOrder(
        **{"name": name, "job": "job", "kind": NodeKind.SPOT, "command": (), **changes}
    )


def names(driver):
    return [node.name for node in driver.list()]


@pytest.mark.parametrize(
    ("fault", "error", "there"),
    [
        (DriverFault.UNHEARD, True, False),
        (DriverFault.FORGOTTEN, False, False),
        (DriverFault.REPLY_LOST, True, True),
        (DriverFault.DELAYED, True, False),
    ],
)
def test_a_fault_decides_what_the_caller_hears_and_what_happens(fault, error, there):
    driver = MemoryDriver()
    driver.fail(fault, verb="start")
    with pytest.raises(FleetError) if error else contextlib.nullcontext():
        driver.start(ORDER)
    assert names(driver) == ["a"] * there
    driver.start(ORDER)
    assert names(driver) == ["a"]


def test_a_delayed_start_may_come_after_a_stop():
    driver = MemoryDriver(delay_s=10.0)
    driver.fail(DriverFault.DELAYED, verb="start")
    with pytest.raises(FleetError):
        driver.start(ORDER)
    driver.stop("a")
    driver.clock.advance(10.0)
    assert driver.node("a").state is EngineState.RUNNING


def test_a_refusal_is_for_good():
    driver = MemoryDriver()
    driver.fail(DriverFault.REFUSED, verb="start")
    with pytest.raises(FleetError) as raised:
        driver.start(ORDER)
    assert not raised.value.retry


def test_lists_can_be_stale_or_empty():
    driver = MemoryDriver()
    driver.start(ORDER)
    driver.list()
    driver.fail(DriverFault.STALE, verb="list")
    driver.fail(DriverFault.EMPTY, verb="list")
    driver.kill("a")
    assert [node.state for node in driver.list()] == [EngineState.RUNNING]
    assert names(driver) == []
    assert [node.end for node in driver.list()] == [NodeEnd.DIED]


def test_a_request_that_is_not_granted_in_time_is_withdrawn():
    driver = MemoryDriver(spot=0)
    driver.start(order(withdraw_at=driver.clock.now() + 60))
    driver.clock.advance(59)
    assert driver.node("a").state is EngineState.WAITING
    driver.clock.advance(1)
    assert driver.node("a").end is NodeEnd.CAPACITY


def test_higher_priorities_are_granted_first():
    driver = MemoryDriver(spot=0)
    driver.start(order("low"))
    driver.start(order("high", priority=1))
    driver.spot = 1
    assert driver.node("high").state is EngineState.RUNNING
    assert driver.node("low").state is EngineState.WAITING


def test_gpus_are_counted():
    driver = MemoryDriver(spot=3)
    driver.start(order(gpus=2))
    driver.start(order("b", gpus=2))
    assert driver.capacity().spot == 1
    assert driver.node("b").state is EngineState.WAITING


def test_a_forgotten_node_can_be_made_again():
    driver = MemoryDriver()
    driver.start(ORDER)
    driver.finish("a")
    driver.start(ORDER)
    assert driver.node("a").state is EngineState.ENDED
    driver.forget("a")
    assert names(driver) == []
    driver.start(ORDER)
    assert driver.node("a").state is EngineState.RUNNING

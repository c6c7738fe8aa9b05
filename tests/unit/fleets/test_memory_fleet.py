"""The fake that controllers are tested with: its clock and its faults."""

from __future__ import annotations

import pytest

from duetune.core.fleet import Launch, NodeKind, NodeState, Task
from duetune.core.ports import Clock
from duetune.errors import Bug, FleetError
from duetune.testing import ManualClock, MemoryFleet


def launch(node="a"):
    return Launch(node, "job", NodeKind.SPOT, 1, Task(folder="/nonexistent", command=("true",)))


def test_its_clock_goes_only_when_told():
    clock = ManualClock(100.0)
    assert isinstance(clock, Clock)
    clock.wait_until(130.0)
    clock.wait_until(50.0)
    clock.advance(5.0)
    assert clock.now() == 135.0


def test_a_lost_reply_has_its_effect_and_a_lost_request_has_none():
    fleet = MemoryFleet()
    fleet.lose_replies()
    with pytest.raises(FleetError) as caught:
        fleet.apply([launch("a")])
    assert caught.value.retry
    fleet.lose_requests(2)
    for _ in range(2):
        with pytest.raises(FleetError):
            fleet.apply([launch("b")])
    assert fleet.alive("job") == ["a"]
    fleet.apply([launch("b")])
    assert fleet.alive("job") == ["a", "b"]
    assert [command.node for command in fleet.commands] == ["a", "b"]


def test_a_fleet_that_cannot_be_reached_goes_on_living():
    fleet = MemoryFleet()
    fleet.apply([launch()])
    fleet.unreachable = True
    for call in (lambda: fleet.observe("job"), fleet.now, lambda: fleet.apply([launch("b")])):
        with pytest.raises(FleetError, match="does not answer"):
            call()
    fleet.clock.advance(900)
    fleet.unreachable = False
    (node,) = fleet.observe("job").nodes
    assert node.billed == pytest.approx(0.2)


def test_it_can_refuse_and_leave_waiting():
    fleet = MemoryFleet()
    fleet.refusing = True
    fleet.apply([launch("a")])
    fleet.refusing = False
    fleet.never_grant()
    fleet.apply([launch("b")])
    fleet.never_grant(never=False)
    fleet.apply([launch("c")])
    fleet.clock.advance(9999)
    states = [node.state for node in fleet.observe("job").nodes]
    assert states == [NodeState.REFUSED, NodeState.REQUESTED, NodeState.RUNNING]
    assert fleet.running("job") == ["c"]


def test_nodes_are_lost_with_and_without_notice():
    fleet = MemoryFleet()
    fleet.apply([launch("a"), launch("b")])
    fleet.lose("a")
    fleet.lose("b", notice_s=30.0)
    assert fleet.node("a").state is NodeState.LOST
    assert fleet.node("b").notice_at == fleet.clock.now() + 30
    fleet.clock.advance(31)
    assert fleet.node("b").state is NodeState.LOST
    with pytest.raises(Bug, match="which is already lost"):
        fleet.lose("b")
    with pytest.raises(Bug, match="never launched"):
        fleet.finish("z")

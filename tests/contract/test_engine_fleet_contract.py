"""The fleet contract holds for an engine fleet, whichever calls of its engine go wrong."""

from __future__ import annotations

import itertools

import pytest

from duetune.core.fleet import NodeKind
from duetune.testing import FleetContract
from duetune.testing.fleet_contract import SPOT
from support.engines import FAULTS, EngineLab


class TestEngineFleet(FleetContract):
    def make(self):
        self.lab = EngineLab(spot=SPOT)
        return self.lab.fleet

    def wait(self):
        self.lab.clock.advance(20.0)

    def exits(self, fleet, node, code):
        self.lab.exit(fleet, node, code)

    def lose(self, fleet, node):  # noqa: ARG002 - as the contract calls it
        self.lab.driver.preempt(self.lab.name(node))
        return True


class _Faulty(TestEngineFleet):
    """Every second call of the engine goes wrong in one way, from the first on."""

    fault = None
    verb = ""

    def make(self):
        fleet = super().make()
        fault = itertools.cycle((self.fault, None))
        self.lab.every_call(self.verb, lambda: next(fault))
        return fleet


@pytest.mark.parametrize(("verb", "fault"), FAULTS)
class TestEngineFleetWithFaults:
    """The whole contract again for every way in which a call can go wrong."""

    @pytest.mark.parametrize(
        "name", sorted(name for name in dir(FleetContract) if name.startswith("test_"))
    )
    def test_contract(self, verb, fault, name):
        suite = _Faulty()
        suite.verb, suite.fault = verb, fault
        getattr(suite, name)()


def test_kinds_are_told_to_the_engine():
    lab = EngineLab(spot=1)
    lab.launch("a")
    lab.launch("b", kind=NodeKind.ON_DEMAND)
    assert [order.kind for order in lab.driver.orders] == [NodeKind.SPOT, NodeKind.ON_DEMAND]

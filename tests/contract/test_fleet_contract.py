from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import duetune.fleets
from duetune.core.fleet import NodeState, Task
from duetune.core.market import MarketTrace
from duetune.fleets.embedded import EmbeddedFleet, FleetSettings, start_provider, stop_provider
from duetune.testing import FleetContract, MarketFeedContract, MemoryFleet, constant_market
from duetune.testing.fleet_contract import SPOT
from support.discovery import classes_with

pytestmark = pytest.mark.live

# Not fleets themselves: what they are made of.
PARTS = {"Desk"}
STEADY = constant_market(available=SPOT)
# Every slot differs from its neighbours, so that a history shifted by one shows.
LIVELY = MarketTrace.single(np.arange(1.0, 41.0) / 100, np.arange(40) % 7, 1.0)


def test_every_fleet_of_the_package_runs_through_the_suite():
    found = {each.__name__ for each in classes_with(duetune.fleets, "apply", "observe")}
    assert found - PARTS == {"EmbeddedFleet", "EngineFleet"}


class TestMemoryFleet(FleetContract):
    def make(self):
        self.fleet = MemoryFleet(STEADY)
        return self.fleet

    def wait(self):
        self.fleet.clock.advance(7.0)

    def exits(self, fleet, node, code):
        self.eventually(fleet, lambda report: report.nodes[0].state is NodeState.RUNNING)
        fleet.finish(node, code)

    def lose(self, fleet, node):
        fleet.lose(node)
        return True


class TestSlowMemoryFleet(TestMemoryFleet):
    def make(self):
        settings = FleetSettings(grant_delay_s=60.0, notice_s=120.0)
        self.fleet = MemoryFleet(STEADY, settings)
        return self.fleet


class TestMemoryMarket(MarketFeedContract):
    def make(self):
        self.fleet = MemoryFleet(LIVELY)
        return self.fleet

    def turn(self):
        self.fleet.clock.advance(1800.0)


class Embedded:
    """A provider for every test, in a folder of its own."""

    market = STEADY
    speed = 600.0

    def setup_method(self):
        self.home = tempfile.TemporaryDirectory()
        self.fleet: EmbeddedFleet | None = None

    def teardown_method(self):
        stop_provider(Path(self.home.name) / "fleet")
        self.home.cleanup()

    def make(self):
        settings = FleetSettings(
            speed=self.speed, grant_delay_s=0.02, notice_s=0.1, release_grace_s=1.0, preload=""
        )
        self.fleet = start_provider(Path(self.home.name) / "fleet", settings, self.market)
        return self.fleet


class TestEmbeddedFleet(Embedded, FleetContract):
    def wait(self):
        time.sleep(0.02)

    def task(self):
        script = "echo $PPID > agent-$DUETUNE_NODE_ID; exec sleep 600"
        return Task(folder=f"{self.home.name}/job", command=("sh", "-c", script))

    def lose(self, fleet, node):
        """A node lives as long as its agent, which has written down its number."""
        file = Path(self.home.name) / "job" / f"agent-{node}"
        self.eventually(fleet, lambda _: file.exists() and file.read_text().endswith("\n"))
        os.kill(int(file.read_text()), signal.SIGKILL)
        return True


class TestEmbeddedMarket(Embedded, MarketFeedContract):
    market = LIVELY
    speed = 9000.0

    def turn(self):
        self.fleet.clock.wait_until(self.fleet.clock.now() + 1800.0)

"""Helpers for your own tests: conformance suites to subclass, and small fakes.

    class TestMyPolicy(PolicyContract):
        def make(self) -> MyPolicy:
            return MyPolicy()

A suite is a plain class with ``test_`` methods and plain asserts, so every runner that collects
classes can run it. Importing this package does not need pytest.
"""

from duetune.testing.driver_contract import DriverContract
from duetune.testing.fleet_contract import FleetContract
from duetune.testing.forecaster_contract import (
    CausalForecasterContract,
    DistributionForecasterContract,
    ForecasterContract,
)
from duetune.testing.journal_contract import JournalContract
from duetune.testing.market_feed_contract import MarketFeedContract
from duetune.testing.memory_driver import DriverFault, MemoryDriver
from duetune.testing.memory_fleet import ManualClock, MemoryFleet
from duetune.testing.planner_contract import PlannerContract
from duetune.testing.policy_contract import PolicyContract
from duetune.testing.sample_policies import FixedPlan, Idle, Restless
from duetune.testing.selector_contract import SelectorContract
from duetune.testing.small_markets import constant_market, market_of, random_market, view_of
from duetune.testing.source_contract import SourceContract

__all__ = [
    "CausalForecasterContract",
    "DistributionForecasterContract",
    "DriverContract",
    "DriverFault",
    "FixedPlan",
    "FleetContract",
    "ForecasterContract",
    "Idle",
    "JournalContract",
    "ManualClock",
    "MarketFeedContract",
    "MemoryDriver",
    "MemoryFleet",
    "PlannerContract",
    "PolicyContract",
    "Restless",
    "SelectorContract",
    "SourceContract",
    "constant_market",
    "market_of",
    "random_market",
    "view_of",
]

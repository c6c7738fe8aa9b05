"""The market of an engine: prices of its file, and the GPUs that are free in the engine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from duetune.core.fleet import MarketReport, NodeKind
from duetune.core.market import Slot
from duetune.fleets.driver import Capacity, CapacityDriver, EngineState

if TYPE_CHECKING:
    from duetune.core.market import MarketTrace
    from duetune.core.ports import Clock
    from duetune.fleets.driver import Driver
    from duetune.fleets.fleet_file import FleetFile
    from duetune.fleets.node_ledger import NodeLedger


class EngineMarket:
    """The ``MarketFeed`` of an engine.

    Slots begin at multiples of their length since the epoch. Spot GPUs are counted once a slot:
    those that the engine has free, and those that jobs of this fleet hold. If the engine gives
    only whole nodes, GPUs that make no whole node are not counted.
    """

    def __init__(
        self, file: FleetFile, driver: Driver, ledger: NodeLedger | None, clock: Clock
    ) -> None:
        self._file = file
        self._driver = driver
        self._ledger = ledger
        self._clock = clock
        self._counted: tuple[int, Slot, bool] | None = None

    def now(self) -> MarketReport:
        """Return the present slot; ``FleetError`` if the engine does not answer."""
        at, slot_s = self._clock.now(), 60 * self._file.slot_minutes
        index = math.floor(at / slot_s)
        if self._counted is None or self._counted[0] != index:
            self._counted = (index, *self._slot(slot_s / 3600))
        _, slot, told = self._counted
        return MarketReport(at, index, index * slot_s, slot_s, slot, counted=told)

    def history(self, slots: int) -> MarketTrace | None:  # noqa: ARG002 - nothing is kept
        """Return None: the engine keeps no history; ``market_keeper`` keeps one."""
        return None

    def _slot(self, hours: float) -> tuple[Slot, bool]:
        """Return the present slot, and whether its GPUs were counted by the engine."""
        counted = self._spot()
        available, free = counted or (believed_gpus(self._file), None)
        prices = self._file.spot_usd_h * hours, self._file.on_demand_usd_h * hours
        return Slot(prices[0], available, prices[1], free), counted is not None

    def _spot(self) -> tuple[int, tuple[int, ...] | None] | None:
        """Return the spot GPUs, and the free ones of each machine if the engine tells them.

        None means that the engine cannot count.
        """
        free = Capacity()
        if isinstance(self._driver, CapacityDriver):
            free = self._driver.capacity()
        if free.spot is None:
            return None
        node, held = self._file.gpus_per_node or 1, self._held()
        if free.spot_by_machine is not None:
            machines = tuple(count // node * node for count in free.spot_by_machine)
            return sum(machines) + held, machines
        return free.spot // node * node + held, None

    def _held(self) -> int:
        """Return the spot GPUs of nodes that the ledger wants and the engine runs.

        The engine is asked after it has counted the free GPUs, because the ledger is as old as the
        last look. GPUs of a node that has ended since then would count twice, and those of a node
        that was granted since then not at all: the job would give back what it has just got.
        """
        nodes = [
            entry
            for entry in (() if self._ledger is None else self._ledger.open())
            if entry.node.kind is NodeKind.SPOT and entry.node.state.alive
        ]
        if not nodes:
            return 0
        running = {each.name for each in self._driver.list() if each.state is EngineState.RUNNING}
        return sum(entry.node.gpus for entry in nodes if entry.name in running)


def believed_gpus(file: FleetFile) -> int:
    """Return the spot GPUs that are believed to be there where nobody counts them."""
    return file.max_gpus if file.spot_gpus is None else file.spot_gpus


class FilePrices:
    """The ``Prices`` of a fleet's file, which do not change while a job runs."""

    def __init__(self, file: FleetFile) -> None:
        self._file = file

    def dollars(self, kind: NodeKind, since: float, until: float) -> float:
        """Return the dollars for one GPU from ``since`` to ``until``."""
        return self.rate(kind) * max(0.0, until - since)

    def rate(self, kind: NodeKind) -> float:
        """Return the dollars for one GPU in a second."""
        spot = kind is NodeKind.SPOT
        return (self._file.spot_usd_h if spot else self._file.on_demand_usd_h) / 3600

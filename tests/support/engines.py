"""An engine fleet in memory: driver, ledger, files and clock of a test."""

from __future__ import annotations

import msgspec

from duetune.core.fleet import Launch, NodeKind, Task
from duetune.fleets.driver import NodeOrder
from duetune.fleets.engine_fleet import EngineFleet, EngineTimes
from duetune.fleets.node_files import NodeReport
from duetune.fleets.node_ledger import NodeLedger
from duetune.store.database import memory_database
from duetune.store.ledger_pages import LedgerPages
from duetune.testing.memory_driver import DriverFault, MemoryDriver

FAULTS = [
    ("start", DriverFault.UNHEARD),
    ("start", DriverFault.FORGOTTEN),
    ("start", DriverFault.REPLY_LOST),
    ("start", DriverFault.DELAYED),
    ("stop", DriverFault.UNHEARD),
    ("stop", DriverFault.FORGOTTEN),
    ("stop", DriverFault.REPLY_LOST),
    ("stop", DriverFault.DELAYED),
    ("list", DriverFault.EMPTY),
    ("list", DriverFault.STALE),
]
"""The verb of the engine that goes wrong, and how."""

TIMES = EngineTimes(look_s=1.0, withdraw_s=50.0, missing_s=30.0, silent_s=60.0)


class MemoryFiles:
    """The ``NodeFiles`` of nodes that run no process: reports are made by the test."""

    def __init__(self):
        self.reports = {}
        self.orders = {}
        self.leases = {}
        self.unsettled = set()

    def order(self, launch, name, withdraw_at):
        self.orders[name] = NodeOrder(
            name=name,
            job=launch.job,
            kind=launch.kind,
            command=("true",),
            gpus=launch.task.gpus,
            withdraw_at=withdraw_at,
        )
        return self.orders[name]

    def report(self, _launch, name):
        return self.reports.get(name)

    def settled(self, _launch, name):
        return name not in self.unsettled

    def withdraw(self, _launch, name):
        self.orders.pop(name, None)

    def lease(self, launch, until):
        self.leases[launch.job] = until


class MemoryPages:
    """The ``Pages`` of a ledger without a database, for tests that make many."""

    def __init__(self):
        self._pages = {}

    def read(self, job=None, *, only_open=False):
        found = [page for page in self._pages.values() if job in {None, page.job}]
        return [page for page in found if page.open or not only_open]

    def write(self, pages):
        for page in pages:
            key = (page.job, page.node)
            assert page.version == (self._pages[key].version if key in self._pages else 0)
            self._pages[key] = msgspec.structs.replace(page, version=page.version + 1)


class HourlyPrices:
    """Dollars per GPU-hour that never change."""

    def __init__(self, spot=1.0, on_demand=3.0):
        self._prices = {NodeKind.SPOT: spot, NodeKind.ON_DEMAND: on_demand}

    def dollars(self, kind, since, until):
        return self._prices[kind] * (until - since) / 3600

    def rate(self, kind):
        return self._prices[kind] / 3600


class EngineLab:
    """A fleet on an engine in memory."""

    def __init__(self, *, spot=2, on_demand=9, pages=None, **settings):
        self.driver = MemoryDriver(spot=spot, on_demand=on_demand, prefix="dt-", **settings)
        self.clock = self.driver.clock
        self.files = MemoryFiles()
        self.pages = pages or LedgerPages(memory_database(), "lab")
        self.fleet = self.new_fleet()

    def new_fleet(self, *, looks=True):
        """Return another fleet on the same engine and ledger, as after a restart."""
        return EngineFleet(
            self.driver,
            NodeLedger(self.pages),
            self.files,
            HourlyPrices(),
            self.clock,
            prefix="dt",
            times=TIMES,
            looks=looks,
        )

    def launch(self, node, *, job="job", kind=NodeKind.SPOT, epoch=1):
        """Launch one node."""
        self.fleet.apply([Launch(node, job, kind, epoch, Task(folder="/nowhere"))])

    def name(self, node, job="job"):
        """Return the name of a node in the engine."""
        return next(
            entry.name for entry in NodeLedger(self.pages).of_job(job) if entry.node.id == node
        )

    def node(self, node, job="job"):
        """Return a node as the fleet reports it."""
        return next(each for each in self.fleet.observe(job).nodes if each.id == node)

    def living(self):
        """Return the names of the nodes that run or wait in the engine."""
        self.driver.list()
        nodes = self.driver._nodes.values()
        return sorted(each.name for each in nodes if each.state != "ended")

    def beat(self, node, job="job", **changes):
        """Let a node report now."""
        name, now = self.name(node, job), self.clock.now()
        report = self.files.reports.get(name) or NodeReport(at=now, started_at=now)
        self.files.reports[name] = msgspec.structs.replace(report, at=now, **changes)

    def exit(self, fleet, node, code):
        """Let a node's process start, report its exit status, and end."""
        for _ in range(20):
            fleet.observe("job")
            if self.name(node) in {each.name for each in self.driver._nodes.values()}:
                break
            self.clock.advance(5.0)
        self.beat(node, code=code, ended_at=self.clock.now())
        self.driver.finish(self.name(node), code)

    def every_call(self, verb, fault):
        """Let ``fault`` say before every call of ``verb`` how it goes wrong."""
        driver, call = self.driver, self.driver._call

        def faulty(called, effect):
            found = fault() if called == verb else None
            if found is not None:
                driver.fail(found, verb=verb)
            return call(called, effect)

        driver._call = faulty

"""Fleets that others run: the driver of each engine by name, and the host of a fleet's file."""

from __future__ import annotations

import shlex
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from duetune.core.market import Pool
from duetune.fleets.driver import Driver, PriorityDriver
from duetune.fleets.engine_fleet import EngineFleet, EngineTimes
from duetune.fleets.engine_market import EngineMarket, FilePrices, believed_gpus
from duetune.fleets.fleet_file import prefix_of, read_fleet, token_of
from duetune.fleets.host import Connected
from duetune.fleets.node_files import EXCHANGE_S, StorageFiles
from duetune.fleets.node_ledger import NodeLedger
from duetune.fleets.real_time import RealClock
from duetune.jobs.market_keeper import MarketKeeper
from duetune.market.feeds.recorded_feed import RememberingFeed
from duetune.market.feeds.recording import recording_file
from duetune.registry.plugins import Kind, Listed
from duetune.store.store import has_store, opened_store

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.core.ports import MarketFeed
    from duetune.fleets.fleet_file import FleetFile
    from duetune.settings import Settings, SiteSettings
    from duetune.store.store import Store

FLEET_GROUP = "duetune.fleets"
"""The entry point group of fleets. An entry names a factory. As an engine it is called with a
``FleetFile`` and the prefix of the nodes' names, and returns a ``Driver``. As a fleet of its own it
is called with the settings and the texts behind the name, and returns a ``Connected`` or a
``FleetHost``.
"""

_LOOKS = 20
"""The least number of looks at an engine in a slot."""

SLURM, RAY, SKYPILOT = "slurm", "ray", "skypilot"

ENGINES = (
    Listed(SLURM, "a Slurm cluster, by its command line"),
    Listed(RAY, "a Ray cluster, by named actors"),
    Listed(SKYPILOT, "clouds, Kubernetes and Slurm, by clusters of SkyPilot"),
)


def driver_of(file: FleetFile, prefix: str) -> Driver:
    """Return the driver of a fleet's engine; ``prefix`` begins the names of its nodes."""
    if file.engine == SLURM:
        from duetune.fleets.slurm.slurm_driver import SlurmDriver
        from duetune.fleets.slurm.slurm_settings import SlurmSettings

        whole = file.gpus_per_node or 1
        return SlurmDriver(SlurmSettings.of(file.options), prefix=prefix, gpus_per_node=whole)
    if file.engine == RAY:
        from duetune.fleets.ray.ray_driver import RayDriver
        from duetune.fleets.ray.ray_settings import RaySettings

        return RayDriver(RaySettings.of({**file.options, "storage": file.storage}), prefix=prefix)
    if file.engine == SKYPILOT:
        from duetune.fleets.skypilot.skypilot_driver import SkypilotDriver
        from duetune.fleets.skypilot.skypilot_settings import SkypilotSettings

        settings = SkypilotSettings.of(file.options, file.accelerator)
        return SkypilotDriver(settings, prefix=prefix)
    return KIND.plugged(file.engine, (file, prefix))


def engines_listed() -> tuple[Listed, ...]:
    """Return every engine that can be named, plug-ins included."""
    return KIND.listed()


KIND: Kind[Driver] = Kind(
    "engine",
    FLEET_GROUP,
    ENGINES,
    lambda found: found if isinstance(found, Driver) else None,
    "a driver of duetune.fleets.driver",
)


class EngineHost:
    """The ``FleetHost`` of a fleet that others run, by its file. There is nothing to start."""

    def __init__(self, settings: Settings, path: Path) -> None:
        self.name, self.path = path.stem, path
        self.file = read_fleet(path)
        self._settings = settings
        self._token = token_of(path)
        self._clock = RealClock()

    @cached_property
    def driver(self) -> Driver:
        """Return the driver of the engine."""
        return driver_of(self.file, prefix_of(self._token))

    def running(self) -> Connected | None:
        """Return the fleet as its controller left it in the ledger; reading changes nothing.

        None means that the home has no database, so that no job ever ran.
        """
        if not has_store(self._settings):
            return None
        return self._connected(opened_store(self._settings), looks=False)

    def start(self) -> Connected:
        """Return the fleet, which follows the engine; the engine runs already."""
        return self._connected(opened_store(self._settings), looks=True)

    def revive(self) -> None:
        """Do nothing: only the engine's owner can repair it."""

    def feed(self) -> MarketFeed:
        """Return the market of the engine."""
        found = self.running()
        return self._market(None, keeps=False) if found is None else found.feed

    def by_priority(self) -> bool:
        """Return whether the engine serves requests by the priority of their jobs."""
        return isinstance(self.driver, PriorityDriver) and self.driver.by_priority()

    def site(self) -> SiteSettings:
        """Return the description of the fleet's GPUs and slots."""
        return msgspec.structs.replace(
            self._settings.site,
            accelerator=self.file.accelerator,
            memory_gb=self.file.memory_gb,
            max_gpus=self.file.max_gpus,
            gpus_per_node=self.file.gpus_per_node,
            startup_s=self.file.startup_s,
            resize_s=self.file.resize_s,
            speed=1.0,
        )

    def _connected(self, store: Store, *, looks: bool) -> Connected:
        file = self.file
        ledger = NodeLedger(store.ledger(self.name))
        market = self._market(ledger, keeps=looks)
        fleet = EngineFleet(
            self.driver,
            ledger,
            StorageFiles(
                node_command(file),
                self._token,
                every_s=min(EXCHANGE_S, 60 * file.slot_minutes / _LOOKS),
            ),
            FilePrices(file),
            self._clock,
            prefix=prefix_of(self._token),
            times=EngineTimes(
                look_s=min(EngineTimes().look_s, 60 * file.slot_minutes / _LOOKS),
                withdraw_s=60 * file.withdraw_minutes,
                lease_s=60 * file.lease_minutes,
            ),
            looks=looks,
        )
        clock = self._clock
        return Connected(fleet, market, clock, 1.0, clock.interrupt, fleet.unfinished)

    def _market(self, ledger: NodeLedger | None, *, keeps: bool) -> MarketFeed:
        """Return the market of the engine; ``keeps`` if this process records it."""
        market = EngineMarket(self.file, self.driver, ledger, self._clock)
        pool = Pool(self.name, self.file.accelerator or "GPU")
        path, believed = recording_file(self._settings.home, pool), believed_gpus(self.file)
        if keeps and ledger is not None:
            return MarketKeeper(market, pool, path, believed, ledger.nodes)
        return RememberingFeed(market, pool, path, believed)


def node_command(file: FleetFile) -> tuple[str, ...]:
    """Return the command that runs a node; the path or URL of its order is added to it."""
    command = (file.python, "-m", "duetune.cli", "node")
    if not file.setup:
        return command
    # "$@" is what follows: the order.
    return ("sh", "-c", f'{file.setup}\nexec {shlex.join(command)} "$@"', "duetune")

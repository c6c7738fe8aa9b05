"""What runs jobs, put together: the store, the embedded fleet, the controller."""

from __future__ import annotations

import logging
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.bootstrap.names import (
    SYNTHETIC_SLOTS,
    forecast_named,
    market_named,
    markets_from_file,
    policies_named,
    policy_named,
    selector_named,
)
from duetune.errors import FleetError, InvalidInput
from duetune.settings import HOME

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from duetune.control.loop import Controller
    from duetune.control.shares import Queue
    from duetune.core.events import Recorded
    from duetune.core.market import MarketTrace
    from duetune.core.ports import Forecaster, Policy
    from duetune.fleets.embedded.client import EmbeddedFleet
    from duetune.knowledge.source import KnowledgeSource
    from duetune.quote.site import Site
    from duetune.service.submission import Desk
    from duetune.settings import QueueSettings, Settings, SiteSettings
    from duetune.store.store import Store

SITE_FILE = "site.json"
POOL = "pool"
WEEK_HOURS = 168.0
LINGER_WALL_S = 30.0
FASTEST_POLL_S = 0.25
SLOWEST_POLL_S = 10.0

log = logging.getLogger(__name__)


def opened_store(settings: Settings) -> Store:
    """The store of the home, made if it is not there."""
    from duetune.store import open_store

    made_home(settings)
    return open_store(settings.database)


def made_home(settings: Settings) -> None:
    try:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInput(
            HOME, str(settings.home), f"a folder that can be made ({reason})"
        ) from None


def default_policies() -> tuple[Policy, ...]:
    """The pool that jobs with ``policy: auto`` choose from."""
    return policies_named(POOL)


def site_market(site: SiteSettings) -> MarketTrace:
    """The market that the embedded fleet is to replay."""
    if site.trace is not None:
        return markets_from_file(site.trace, pool=site.pool, slot_hours=site.slot_hours)[0]
    return market_named(
        site.market, seed=site.seed, slot_hours=site.slot_hours, slots=SYNTHETIC_SLOTS
    )


def history_slots(site: SiteSettings, trace: MarketTrace) -> int:
    """How much of the market is known before the replay begins: a week, at most half of it."""
    if site.history_slots is not None:
        if not 0 <= site.history_slots < trace.slots:
            allowed = f"from 0 to {trace.slots - 1}, within the trace of {trace.slots} slots"
            raise InvalidInput("history_slots", site.history_slots, allowed)
        return site.history_slots
    return min(round(WEEK_HOURS / trace.slot_hours), trace.slots // 2)


def start_fleet(settings: Settings, site: SiteSettings | None = None) -> EmbeddedFleet:
    """The home's embedded fleet: the running one, or a new one on ``site``."""
    from duetune.fleets.embedded import FleetSettings, start_provider
    from duetune.fleets.embedded.settings import DEFAULT_PRELOAD

    if site is None and (found := running_fleet(settings)) is not None:
        return found
    wanted = fleet_site(settings) if site is None else site
    if wanted.trace is not None:
        # It is to be found again from anywhere.
        wanted = msgspec.structs.replace(wanted, trace=str(Path(wanted.trace).absolute()))
    trace = site_market(wanted)
    made_home(settings)
    settings.fleet.mkdir(exist_ok=True, mode=0o700)
    fleet = start_provider(
        settings.fleet,
        FleetSettings(
            first_slot=history_slots(wanted, trace),
            wrap=True,
            speed=wanted.speed,
            grant_delay_s=wanted.grant_delay_s,
            notice_s=wanted.notice_s,
            silent_share=wanted.silent_share,
            on_demand_capacity=wanted.on_demand_capacity,
            seed=wanted.seed,
            preload=DEFAULT_PRELOAD if wanted.warm else "",
        ),
        trace,
    )
    site_file = settings.fleet / SITE_FILE
    temporary = site_file.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(wanted))
    temporary.replace(site_file)
    return fleet


def running_fleet(settings: Settings) -> EmbeddedFleet | None:
    from duetune.fleets.embedded import EmbeddedFleet, provider_status

    if provider_status(settings.fleet) is None:
        return None
    return EmbeddedFleet(settings.fleet)


def fleet_site(settings: Settings) -> SiteSettings:
    """That of the fleet that runs, or of the one that would be started now: jobs that are not over
    go on where they were, and without any it is the configured one.
    """
    if running_fleet(settings) is not None:
        return site_of(settings)
    if not (settings.fleet / SITE_FILE).is_file():
        return settings.site
    with opened_store(settings) as store:
        return site_of(settings) if store.active() else settings.site


def site_of(settings: Settings) -> SiteSettings:
    """The site that the home's fleet was started on; the configured one if it never was."""
    from duetune.settings import SiteSettings

    try:
        content = (settings.fleet / SITE_FILE).read_bytes()
        return msgspec.json.decode(content, type=SiteSettings)
    except (OSError, msgspec.MsgspecError):
        return settings.site


def desk(settings: Settings) -> Desk:
    """Where jobs are prepared: on the running fleet, or on the one that would be started."""
    from duetune.core.fleet import MarketReport
    from duetune.market.resample import slice_slots
    from duetune.service.submission import Desk

    check_names(settings)
    running = running_fleet(settings)
    site = fleet_site(settings)
    history: MarketTrace | None
    if running is not None:
        market = running.now()
        history = running.history(round(WEEK_HOURS * 3600 / market.slot_s))
    else:
        trace = site_market(site)
        first = history_slots(site, trace)
        now = time.time()
        slot_s = trace.slot_hours * 3600
        market = MarketReport(now, first, now, slot_s, trace.slot(first))
        history = slice_slots(trace, 0, first) if first else None
    return Desk(
        site=desk_site(settings),
        market=market,
        history=history,
        pool=default_policies(),
        policy_named=policy_named,
        learner=lambda arms: selector_named(settings.selector, arms, jobs=1000),
        knowledge=lambda store: live_knowledge(settings, store),
        queue=settings.queue,
    )


def desk_site(settings: Settings) -> Site:
    """What the home's fleet sells, as the quote wants to know it."""
    from duetune.profiling.wire import installed_software
    from duetune.quote.site import Site

    return Site.of(fleet_site(settings), installed_software())


def live_knowledge(settings: Settings, store: Store) -> KnowledgeSource:
    """What is known of configurations: what comes with duetune, and what was measured here."""
    from duetune.bootstrap.knowledge import site_history, site_source

    return site_source(settings, site_history(store))


def live_forecaster(name: str, slot_hours: float) -> Forecaster:
    """A forecaster that knows only what it was shown."""
    return forecast_named(name, seed=0).causal(slot_hours)


def check_names(settings: Settings) -> None:
    """Wrong ones are refused before anything is done."""
    live_forecaster(settings.forecast, 1.0)
    live_queue(settings.queue)


def live_queue(queue: QueueSettings) -> Queue:
    """What jobs share."""
    from duetune.bootstrap.planners import planner_named
    from duetune.control.shares import Queue

    try:
        planner = planner_named(queue.planner)
    except InvalidInput as error:
        raise InvalidInput("queue.planner", error.value, error.allowed) from None
    return Queue(planner, queue.gpus, queue.quotas)


class QueueFile:
    """The queue as ``config.toml`` has it now; the last good one where that is wrong. A change
    counts when it is seen for the second time: a file may be read while it is written.
    """

    def __init__(self, settings: Settings) -> None:
        self._home = str(settings.home)
        self._queue = live_queue(settings.queue)
        self._said = self._seen = self._read()

    def __call__(self) -> Queue:
        seen, self._seen = self._seen, self._read()
        if seen == self._seen and seen != self._said:
            self._said = seen
            if isinstance(seen, str):
                log.warning("the queue stays as it was: %s", seen)
            else:
                self._queue = live_queue(seen)
                log.info("the queue is now: %s", msgspec.json.encode(seen).decode())
        return self._queue

    def _read(self) -> QueueSettings | str:
        """Or what is wrong with it."""
        from duetune.settings import load_settings

        try:
            found = load_settings({HOME: self._home}).queue
            live_queue(found)
        except InvalidInput as error:
            return str(error)
        return found


def make_controller(settings: Settings, store: Store, fleet: EmbeddedFleet) -> Controller:
    from duetune.control import Books, Controller, World
    from duetune.control.crash_points import learning_with_crash_points, with_crash_points
    from duetune.control.learning import PoolLearning
    from duetune.control.reports import FolderReports

    speed, slot_hours = fleet.clock.speed, fleet.now().slot_s / 3600
    world, books = with_crash_points(
        World(
            fleet=fleet,
            feed=fleet,
            clock=fleet.clock,
            reports=FolderReports(settings.jobs, fleet.clock, speed),
            speed=speed,
            revive=lambda: _revive(settings),
        ),
        Books(store.journal, store.wishes, store.active),
    )
    slot_wall_s = fleet.now().slot_s / speed
    return Controller(
        world,
        books,
        policy_named=policy_named,
        forecaster=lambda: live_forecaster(settings.forecast, slot_hours),
        learning=learning_with_crash_points(
            PoolLearning(
                store.selector,
                default_policies(),
                lambda job, story: _settle(settings, store, job, story),
            )
        ),
        queue=QueueFile(settings),
        poll_wall_s=min(SLOWEST_POLL_S, max(FASTEST_POLL_S, slot_wall_s / 20)),
    )


def _settle(settings: Settings, store: Store, job: str, story: Sequence[Recorded]) -> None:
    """What is to be kept of a job that is over, and what is not."""
    from duetune.fleets.embedded.environment import SECRETS_FILE
    from duetune.service.observations import record_observations

    (settings.folder(job) / SECRETS_FILE).unlink(missing_ok=True)
    record_observations(store, site_of(settings), job, story)


def run_controller(settings: Settings) -> None:
    """The controller's process: until all jobs are over, or it is told to stop."""
    check_names(settings)
    store = opened_store(settings)
    fleet = start_fleet(settings)
    controller = make_controller(settings, store, fleet)
    stopping: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopping.append(number)
        fleet.clock.interrupt()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    log.info("controller of %s begins", settings.home)
    controller.run(linger_s=LINGER_WALL_S * fleet.clock.speed, stop=lambda: bool(stopping))
    log.info("controller of %s ends", settings.home)


def _revive(settings: Settings) -> None:
    """A fleet that died is started again; one that is merely slow is left alone."""
    if running_fleet(settings) is not None:
        return
    try:
        start_fleet(settings, site_of(settings))
    except (FleetError, InvalidInput) as error:
        log.warning("the fleet cannot be started again: %s", error)

"""The composition root: the store, the fleet and the controller, put together to run jobs."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import DuetuneError, InvalidInput, StoreError, StoreLost
from duetune.market.forecast.simple import WEEK_HOURS
from duetune.registry.engines import EngineHost
from duetune.registry.feeds import feed_named
from duetune.registry.fleets import fleet_named
from duetune.registry.markets import forecast_named
from duetune.registry.planners import planner_named
from duetune.registry.policies import policies_named, policy_named, selector_named
from duetune.settings import EMBEDDED, HOME, OF_FLEET
from duetune.store.store import opened_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from duetune.control.controller import Controller
    from duetune.control.queue import Queue
    from duetune.core.events import Recorded
    from duetune.core.ports import Forecaster, MarketFeed, Policy
    from duetune.fleets.host import Connected
    from duetune.jobs.site import Site
    from duetune.jobs.submit import Submitter
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource
    from duetune.settings import QueueSettings, Settings, SiteSettings
    from duetune.store.store import Store

POOL = "pool"
LINGER_WALL_S = 30.0
FASTEST_POLL_S = 0.25
SLOWEST_POLL_S = 10.0

log = logging.getLogger(__name__)


def default_policies() -> tuple[Policy, ...]:
    """The pool that jobs with ``policy: auto`` choose from."""
    return policies_named(POOL)


def running_fleet(settings: Settings) -> Connected | None:
    """Return the fleet of the settings with its market feed, if it is running."""
    found = fleet_named(settings).running()
    return None if found is None else _with_feed(settings, found)


def start_fleet(settings: Settings, site: SiteSettings | None = None) -> Connected:
    """Return the fleet of the settings; start it if it does not run, on ``site`` if given."""
    return _with_feed(settings, fleet_named(settings, site).start())


def _with_feed(settings: Settings, found: Connected) -> Connected:
    return found._replace(feed=feed_named(settings, lambda: found.feed))


def market_feed(settings: Settings) -> MarketFeed:
    """Return the market as jobs would find it now, whether a fleet is running or not."""
    return feed_named(settings, fleet_named(settings).feed)


def with_feed_named(settings: Settings, feed: str | None) -> Settings:
    """Return the settings with another market feed, if one is named; market commands call it."""
    if feed is None:
        return settings
    site = msgspec.structs.replace(settings.site, feed=feed)
    return msgspec.structs.replace(settings, site=site)


def on_demand_usd_h(settings: Settings) -> float:
    """Return the dollars that an on-demand GPU of the home's fleet costs in an hour, as of now."""
    report = market_feed(settings).now()
    return report.slot.on_demand_price * 3600 / report.slot_s


def desk(settings: Settings) -> Submitter:
    """Return where jobs are prepared: on the running fleet, or on the one that would be started."""
    from duetune.jobs.preflight import Machine
    from duetune.jobs.submit import Submitter

    check_names(settings)
    host = fleet_named(settings)
    feed = feed_named(settings, host.feed)
    market = feed.now()
    return Submitter(
        site=desk_site(settings),
        market=market,
        history=feed.history(round(WEEK_HOURS * 3600 / market.slot_s)),
        pool=default_policies(),
        policy_named=policy_named,
        learner=lambda arms: selector_named(settings.selector, arms, jobs=1000),
        knowledge=lambda store: live_knowledge(settings, store),
        machine=Machine(settings.jobs, own=runs_here(settings)),
        queue=settings.queue,
        by_priority=isinstance(host, EngineHost) and host.by_priority(),
    )


def runs_here(settings: Settings) -> bool:
    """Return whether jobs run on this machine, so that its files and packages matter to them."""
    return settings.fleet_name == EMBEDDED


def storage_of(settings: Settings) -> str:
    """Return where the fleet's nodes exchange files with the home; empty if they see the home."""
    host = fleet_named(settings)
    return host.file.storage if isinstance(host, EngineHost) else ""


def desk_site(settings: Settings) -> Site:
    """What the home's fleet sells, as the quote wants to know it."""
    from duetune.jobs.site import Site
    from duetune.jobs.trainer_facts import trainer_software

    return Site.of(fleet_named(settings).site(), trainer_software())


def live_knowledge(settings: Settings, store: Store) -> KnowledgeSource:
    """What is known of configurations: what comes with duetune, and what was measured here."""
    from duetune.registry.sources import site_history, site_source

    return site_source(settings, site_history(store))


def live_forecaster(name: str, slot_hours: float) -> Forecaster:
    """A forecaster that knows only what it was shown."""
    return forecast_named(name, seed=0).causal(slot_hours)


def check_names(settings: Settings) -> None:
    """Refuse wrong names in the settings; called before anything is done."""
    live_forecaster(settings.forecast, 1.0)
    live_queue(settings.queue)
    host = fleet_named(settings)
    if settings.site.feed != OF_FLEET:
        feed_named(settings, host.feed)


def live_queue(queue: QueueSettings) -> Queue:
    """What jobs share."""
    from duetune.control.queue import Queue

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


def make_controller(settings: Settings, store: Store, found: Connected) -> Controller:
    """Return the controller of the jobs on one fleet, connected to that fleet."""
    from duetune.control import Books, Controller, World
    from duetune.control.connections import FolderReports
    from duetune.control.crash_points import learning_with_crash_points, with_crash_points
    from duetune.control.learning import PoolLearning

    slot_s = found.feed.now().slot_s
    names = settings.names_in_rows
    world, books = with_crash_points(
        World(
            fleet=found.fleet,
            feed=found.feed,
            clock=found.clock,
            reports=FolderReports(settings.jobs, found.clock, found.speed),
            speed=found.speed,
            revive=lambda: _revive(settings),
        ),
        Books(store.journal, store.requests_of(names), lambda: store.active(names)),
    )
    return Controller(
        world,
        books,
        policy_named=policy_named,
        forecaster=lambda: live_forecaster(settings.forecast, slot_s / 3600),
        learning=learning_with_crash_points(
            PoolLearning(
                store.selector,
                default_policies(),
                lambda job, story: _settle(settings, store, job, story),
            )
        ),
        queue=QueueFile(settings),
        poll_wall_s=min(SLOWEST_POLL_S, max(FASTEST_POLL_S, slot_s / found.speed / 20)),
    )


def _settle(settings: Settings, store: Store, job: str, story: Sequence[Recorded]) -> None:
    """What is to be kept of a job that is over, and what is not."""
    from duetune.fleets.embedded.node_assignment import SECRETS_FILE
    from duetune.jobs.measured_runs import record_observations

    (settings.folder(job) / SECRETS_FILE).unlink(missing_ok=True)
    _forget_secrets(story)
    record_observations(store, fleet_named(settings).site(), job, story)


def _forget_secrets(story: Sequence[Recorded]) -> None:
    """Delete the secrets of a job from its storage, if it has one."""
    from duetune.core.events import Submitted
    from duetune.fleets.node_files import RETRY_S
    from duetune.storage import open_storage
    from duetune.storage.job_deposit import forget_secrets

    for each in story[:1]:
        if isinstance(each.event, Submitted) and each.event.task.storage:
            try:
                forget_secrets(open_storage(each.event.task.storage, retry_s=RETRY_S))
            except (DuetuneError, OSError) as error:
                log.warning("the secrets of the job may still be in its storage: %s", error)


def run_controller(settings: Settings) -> None:
    """The controller's process: until all jobs of the settings' fleet are over, or it must stop."""
    check_names(settings)
    try:
        store = opened_store(settings)
    except StoreLost:
        _release_jobs(settings, running_fleet(settings), ())
        raise
    fleet = start_fleet(settings)
    controller = make_controller(settings, store, fleet)
    stopping: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopping.append(number)
        fleet.interrupt()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    log.info("controller of %s on %s begins", settings.fleet_name, settings.home)
    try:
        while not stopping:
            controller.run(linger_s=LINGER_WALL_S * fleet.speed, stop=lambda: bool(stopping))
            if not fleet.unfinished():
                break
    except StoreLost as error:
        log.warning("%s; all nodes are released, so that nothing more is paid", error)
        _release_jobs(settings, fleet, controller.jobs)
        _rescue(settings, store)
        raise
    log.info("controller of %s on %s ends", settings.fleet_name, settings.home)


def _rescue(settings: Settings, store: Store) -> None:
    """Save the journal of a database whose file is gone, as long as it is still open."""
    try:
        log.warning("the journal is saved in %s", store.rescue(settings.home))
    except StoreError as error:
        log.warning("the journal could not be saved: %s", error)


def _release_jobs(settings: Settings, fleet: Connected | None, jobs: Sequence[str]) -> None:
    """Release the nodes of ``jobs`` and of every job that has a folder.

    It is called when the journal cannot say which jobs have nodes. The fleet knows no nodes of jobs
    on other fleets; their own controllers release those.
    """
    from duetune.control.disturbances import release_all

    if fleet is None:
        return
    folders = (path.name for path in settings.jobs.glob("*") if path.is_dir())
    left = release_all(fleet.fleet, fleet.clock, sorted({*jobs, *folders}))
    if left:
        log.error("the fleet does not answer; these jobs may still hold GPUs: %s", ", ".join(left))


def _revive(settings: Settings) -> None:
    """Have a fleet that died started again, where that is our business."""
    try:
        fleet_named(settings).revive()
    except (DuetuneError, OSError) as error:
        log.warning("the fleet cannot be started again: %s", error)

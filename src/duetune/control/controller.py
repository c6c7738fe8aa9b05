"""The controller: runs all jobs, turn by turn.

``Controller.tick`` shows the whole product: observe, forecast, share, decide, write, act, account,
learn. ``simulate.episode`` has the same steps in a simulated world.

The controller writes the journal before it calls the fleet. It keeps nothing in memory that a
replay of the journal would not restore.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from duetune.control.arbitration import left_by_others, sharing_now
from duetune.control.disturbances import TimeWatch
from duetune.control.market_watch import MarketMemory
from duetune.control.turn import Page, lifetimes, measured_pace, reported
from duetune.core.events import Disturbance, Disturbed, Learned, UserRequested
from duetune.core.fleet import Limit, Release
from duetune.engine.consultation import horizon
from duetune.engine.engine import Engine
from duetune.errors import DuetuneError, FleetError, StaleController, StoreError, StoreLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from duetune.control.arbitration import Sharing
    from duetune.control.connections import Books, Learning, World
    from duetune.control.queue import Queue
    from duetune.core.decision import Forecast
    from duetune.core.events import Event, Observed, UserRequest
    from duetune.core.ports import Forecaster, Policy

    Requests = Sequence[tuple[int, str, UserRequest]]

SETTLE_SHARE = 0.02
"""Wait this share of the slot before deciding: prices change at the start of a slot."""

LOOKS_PER_SLOT = 10
"""Take at least this many turns per slot, even if the polling interval is longer."""

SILENT_S = 2.0
"""A fleet whose calls fail for this many real seconds does not answer: that is an event."""

log = logging.getLogger(__name__)


class Controller:
    """Runs every job of the books that is not over.

    Several controllers may be started on the same books: the journal lets one of them write, and
    the others stop with ``StaleController``. ``queue`` is called in each turn. If the queue has a
    limit, the jobs share the GPUs; otherwise each job decides for itself. ``jobs`` are those of the
    last turn.
    """

    def __init__(
        self,
        world: World,
        books: Books,
        *,
        policy_named: Callable[[str], Policy],
        forecaster: Callable[[], Forecaster],
        learning: Learning | None = None,
        queue: Callable[[], Queue] | None = None,
        poll_wall_s: float = 10.0,
    ) -> None:
        self.world, self.books, self.learning = world, books, learning
        self.poll_s = poll_wall_s * world.speed
        self._policy_named = policy_named
        self._memory = MarketMemory(world.feed, forecaster)
        self._engines: dict[str, Engine] = {}
        self._written: dict[str, int] = {}
        self._queue = queue
        self._sharing: Sharing | None = None
        self._limits: dict[str, Limit] = {}
        self._released: set[str] = set()
        self.jobs: Sequence[str] = ()
        self._time = TimeWatch(world.clock, world.speed)
        self._turn_at = world.clock.now()
        self._failing: dict[str, float] = {}

    def run(self, *, linger_s: float = 0.0, stop: Callable[[], bool] = lambda: False) -> None:
        """Take turns until ``stop`` returns true or there was no job for ``linger_s`` seconds."""
        clock = self.world.clock
        last_busy = clock.now()
        while not stop():
            if self._turned():
                last_busy = clock.now()
            elif clock.now() - last_busy >= linger_s:
                return
            self._time.wait_until(self.next_turn(clock.now()))

    def _turned(self) -> bool:
        """Take a turn; a full disk or an unreachable database only delays the next one."""
        try:
            return self.turn()
        except StoreLost:
            raise
        except StoreError as error:
            log.warning("%s", error)
            self._engines.clear()
            return True

    def turn(self) -> bool:
        """Run one tick for all jobs; return whether there was a job."""
        # Requests are read first: one for a job that is submitted in between is not late.
        self._turn_at = self.world.clock.now()
        requests = self.books.requests.pending()
        self.jobs = streams = self.books.active()
        disturbances = self._time.disturbances()
        for stream in streams:
            with self._contained(stream):
                self._engine(stream)  # every job must see what the other jobs hold
                for what, seconds in disturbances:
                    self._disturbed(stream, what, seconds)
        self.tick(*streams, requests=requests)
        for stream in set(self._engines) - set(streams):
            del self._engines[stream]
        # Requests for jobs that are over have no effect and leave the inbox.
        if late := [number for number, job, _ in requests if job not in streams]:
            self.books.requests.taken(late)
        return bool(streams)

    def tick(self, *streams: str, requests: Requests = ()) -> None:
        """Do everything that is due for these jobs now.

        A job that fails in one step skips the other steps until the next turn; the other jobs
        continue.
        """
        try:
            pages = self._observe(streams, requests)
            pages = self._forecast(pages)
            pages = self._share(pages, streams)
            for page in pages:
                with self._contained(page.stream):
                    self._decide(page)
                    self._write(page)
                    self._act(page)
                    self._account(page)
                    self._learn(page.engine)
        finally:
            self._forget_unwritten()

    # --- The steps, in the order of a tick

    def _observe(self, streams: Sequence[str], requests: Requests) -> list[Page]:
        """Return a page for every job that is not over, with user requests and fleet news."""
        pages = []
        for stream in streams:
            with self._contained(stream):
                engine = self._engine(stream)
                if engine.is_over():
                    self._learn(engine)  # a crash came between its end and the learning
                    continue
                page = Page(engine, self.world.feed.now())
                fleet = self.world.fleet.observe(stream)
                self._answered(page)
                for number, job, request in requests:
                    if job == stream and number not in engine.state.user_requests:
                        page.happened(UserRequested(page.market.at, number, request))
                training = self.world.reports.read(stream)
                page.happened(reported(engine.state, fleet, training, released=self._released))
                pages.append(page)
        return pages

    def _forecast(self, pages: Sequence[Page]) -> list[Page]:
        """Add the forecast for every job that must decide."""
        able = []
        for page in pages:
            with self._contained(page.stream):
                if page.engine.state.slot_is_due(page.market.at):
                    page.forecast = self._expected(page)
                able.append(page)
        return able

    def _share(self, pages: list[Page], streams: Sequence[str]) -> list[Page]:
        """Set what each job may hold, where there are not enough GPUs for all."""
        queue = None if self._queue is None else self._queue()
        self._sharing = sharing_now(queue, self._engines.values(), self._sharing)
        if self._sharing is None:
            return pages
        self._sharing.begin(self._engines, unread=self._unread(streams))
        return self._sharing.settle(pages, self._observed, self._contained)

    def _decide(self, page: Page) -> None:
        """Decide what to hold and which nodes to request; end the job if it is done."""
        engine, at = page.engine, page.market.at
        if page.observed is None and engine.state.slot_is_due(at):
            page.observed = self._observed(page)
        if page.observed is not None:
            page.happened(page.observed)
            page.happened(engine.decide(page.observed))
        room = None if self._sharing is None else self._sharing.room(engine, page.market.slot)
        page.happened(engine.request(at, room=room))
        page.happened(engine.end(at))

    def _write(self, page: Page) -> None:
        """Append all events of the turn to the journal at once."""
        self._append(page.engine, page.events)

    def _act(self, page: Page) -> None:
        """Send the fleet the unconfirmed commands, unless they are only limits it already has."""
        if page.observed is not None:
            # A stale controller may have sent an older limit, so send ours again every slot.
            self._limits.pop(page.stream, None)
        commands = page.engine.outstanding()
        limits = {c.job: c for c in commands if isinstance(c, Limit)}
        if all(isinstance(c, Limit) for c in commands) and all(
            self._limits.get(job) == limit for job, limit in limits.items()
        ):
            return
        self.world.fleet.apply(commands)
        self._limits.update(limits)
        self._released.update(c.node for c in commands if isinstance(c, Release))

    def _account(self, page: Page) -> None:
        """Tell the workers how long nodes live: the shorter they live, the more often they save.

        Charges and progress are in the journal already; they came with the reports.
        """
        if page.observed is not None:
            state = page.engine.state
            lived, losses = lifetimes(state.nodes.values(), state.slot_began)
            self.world.reports.hazard(page.stream, lived, losses)

    def _learn(self, engine: Engine) -> None:
        """Learn from a job that is over, once, and forget its engine."""
        if not engine.is_over():
            return
        story = self.books.journal.read(engine.stream)
        if self.learning is not None and not isinstance(story[-1].event, Learned):
            lesson = self.learning.learn(engine.stream, story)
            engine.handle(lesson)
            self._append(engine, [lesson])
        self._engines.pop(engine.stream, None)

    # --- Helpers of the steps

    def _expected(self, page: Page) -> Forecast:
        policy = self._policy_named(page.engine.state.submitted.policy)
        return self._memory.forecast(page.market, horizon(policy))

    def _observed(self, page: Page) -> Observed:
        """Return the observation that the policy is shown: without the spot GPUs of other jobs."""
        engine, market = page.engine, page.market
        left = (
            self._sharing.left(engine, market.slot)
            if self._sharing is not None
            else left_by_others(engine, self._engines.values(), market.slot)
        )
        if page.forecast is None:
            page.forecast = self._expected(page)
        return engine.observed(
            at=market.at,
            market=left,
            forecast=page.forecast,
            outlook=engine.state.submitted.outlook,
            pace=measured_pace(engine.state, self.world.speed),
        )

    def _unread(self, streams: Sequence[str]) -> int:
        """Return the number of GPUs of jobs whose journal cannot be read."""
        count = 0
        for stream in set(streams) - set(self._engines):
            with self._contained(stream):
                nodes = self.world.fleet.observe(stream).nodes
                count += sum(node.gpus for node in nodes if node.state.alive)
        return count

    # --- Safety of a tick

    @contextmanager
    def _contained(self, stream: str) -> Iterator[None]:
        """Log the failure of one job, so that the other jobs still meet their deadlines."""
        try:
            yield
        except FleetError as error:
            # Nodes and workers continue; the next turn repeats the unconfirmed commands.
            log.warning("job %s: %s", stream, error)
            self._unanswered(stream, str(error))
            self.world.revive()
        except (StaleController, StoreError):
            raise
        except DuetuneError:
            log.exception("job %s cannot be served", stream)
            self._engines.pop(stream, None)

    def _unanswered(self, stream: str, message: str) -> None:
        """Journal that the fleet does not answer, once it has not done so for some seconds."""
        since = self._failing.setdefault(stream, self._turn_at)
        seconds = (self.world.clock.now() - since) / self.world.speed
        engine = self._engines.get(stream)
        if seconds >= SILENT_S and engine is not None and engine.state.silent_since is None:
            self._disturbed(stream, Disturbance.FLEET_SILENT, seconds, since, message)

    def _answered(self, page: Page) -> None:
        """Journal that the fleet answers again; called after each call that succeeded."""
        self._failing.pop(page.stream, None)
        since = page.engine.state.silent_since
        if since is not None:
            seconds = (page.market.at - since) / self.world.speed
            page.happened(Disturbed(page.market.at, Disturbance.FLEET_ANSWERS, seconds, since))

    def _disturbed(
        self,
        stream: str,
        what: Disturbance,
        seconds: float,
        since: float | None = None,
        message: str = "",
    ) -> None:
        """Write a disturbance into the journal of a job at once."""
        engine = self._engines[stream]
        # Events that are not written yet will be forgotten, so nothing may be written after them.
        if not engine.is_over() and engine.position == self._written[stream]:
            event = Disturbed(self.world.clock.now(), what, seconds, since, message)
            engine.handle(event)
            self._append(engine, [event])

    def _append(self, engine: Engine, events: Sequence[Event]) -> None:
        if events:
            before = self._written[engine.stream]
            self.books.journal.append(engine.stream, events, expected=before)
            self._written[engine.stream] = engine.position

    def _forget_unwritten(self) -> None:
        """Drop engines with events that were not written: the next turn replays the journal."""
        for stream, engine in list(self._engines.items()):
            if engine.position != self._written[stream]:
                del self._engines[stream]

    def _engine(self, stream: str) -> Engine:
        """Return the engine of a job, from memory or by replay of its journal."""
        if stream not in self._engines:
            engine = Engine(stream, self._policy_named)
            for recorded in self.books.journal.read(stream):
                engine.handle(recorded.event)
            self._engines[stream], self._written[stream] = engine, engine.position
        return self._engines[stream]

    def next_turn(self, now: float) -> float:
        """Return when to take the next turn: shortly into the next slot of a job, or sooner."""
        soon = now + self.poll_s
        for engine in self._engines.values():
            state = engine.state
            slot_s = state.submitted.slot_s
            opens = state.moment(state.slot_at(now)) + SETTLE_SHARE * slot_s
            soon = min(soon, opens, now + slot_s / LOOKS_PER_SLOT)
        return soon

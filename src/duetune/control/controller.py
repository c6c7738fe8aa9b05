"""The controller: level-triggered, the journal before the fleet, nothing in memory that a replay
would not give back.

``Controller.tick`` is the product in one function: observe, forecast, share, decide, write, act,
account, learn. ``simulate.episode`` has the same verbs in a simulated world.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from duetune.control.arbitration import left_by_others, sharing_now
from duetune.control.fleet_changes import lifetimes, measured_pace, reported
from duetune.control.market_watch import MarketMemory
from duetune.control.turn import Page
from duetune.core.events import Learned, UserRequested
from duetune.core.fleet import Limit, Release
from duetune.engine.engine import Engine, lookahead
from duetune.errors import DuetuneError, FleetError, StaleController, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from duetune.control.arbitration import Sharing
    from duetune.control.connections import Books, Learning, World
    from duetune.control.queue import Queue
    from duetune.core.decision import Forecast
    from duetune.core.events import Event, Observed, UserRequest
    from duetune.core.ports import Forecaster, Policy

    Wishes = Sequence[tuple[int, str, UserRequest]]

USUAL_HORIZON = 24
"""Slots of forecast that a policy is shown, unless it is known to use more."""

SETTLE_SHARE = 0.02
"""Wait this share of the slot before deciding: prices change at the start of a slot."""

LOOKS_PER_SLOT = 10
"""Look around at least this often in a slot, however long the polling interval."""

log = logging.getLogger(__name__)


class Controller:
    """Runs every job of the books that is not over. Any number may be started on the same books:
    the journal lets one of them write, the others stop with ``StaleController``. Where ``queue``,
    asked anew in each turn, has a limit, the jobs share what there is; else each decides for
    itself.
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

    def run(self, *, linger_s: float = 0.0, stop: Callable[[], bool] = lambda: False) -> None:
        """Take turns until ``stop`` says so, or nothing was to do for ``linger_s`` seconds."""
        clock = self.world.clock
        last_busy = clock.now()
        while not stop():
            if self._turned():
                last_busy = clock.now()
            elif clock.now() - last_busy >= linger_s:
                return
            clock.wait_until(self.next_turn(clock.now()))

    def _turned(self) -> bool:
        """A disk that is full or a database that is away is waited for."""
        try:
            return self.turn()
        except StoreError as error:
            log.warning("%s", error)
            self._engines.clear()
            return True

    def turn(self) -> bool:
        """One tick for all jobs; returns whether there was a job."""
        # In this order: what is wished for a job that comes in between is not late.
        wishes = self.books.wishes.pending()
        streams = self.books.active()
        for stream in streams:
            with self._contained(stream):
                self._engine(stream)  # each job is shown what the others leave
        self.tick(*streams, wishes=wishes)
        for stream in set(self._engines) - set(streams):
            del self._engines[stream]
        self._refuse_late(wishes, set(streams))
        return bool(streams)

    def tick(self, *streams: str, wishes: Wishes = ()) -> None:
        """Everything that happens to these jobs now. A job that fails at one verb is out of the
        others until the next turn; the other jobs go on.
        """
        try:
            pages = self._observe(streams, wishes)
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

    # --- The verbs, in the order of a tick

    def _observe(self, streams: Sequence[str], wishes: Wishes) -> list[Page]:
        """A page for every job that is not over: what was wished, and what is new about its nodes
        and training.
        """
        pages = []
        for stream in streams:
            with self._contained(stream):
                engine = self._engine(stream)
                if engine.is_over():
                    self._learn(engine)  # a crash came between its end and this
                    continue
                page = Page(engine, self.world.feed.now())
                fleet = self.world.fleet.observe(stream)
                for number, job, wish in wishes:
                    if job == stream and number not in engine.state.wishes:
                        page.happened(UserRequested(page.market.at, number, wish))
                training = self.world.reports.read(stream)
                page.happened(reported(engine.state, fleet, training, released=self._released))
                pages.append(page)
        return pages

    def _forecast(self, pages: Sequence[Page]) -> list[Page]:
        """The market to come, for every job that has to decide."""
        able = []
        for page in pages:
            with self._contained(page.stream):
                if page.engine.state.slot_is_due(page.market.at):
                    page.forecast = self._expected(page)
                able.append(page)
        return able

    def _share(self, pages: list[Page], streams: Sequence[str]) -> list[Page]:
        """What each job may hold, where there is not enough for all."""
        queue = None if self._queue is None else self._queue()
        self._sharing = sharing_now(queue, self._engines.values(), self._sharing)
        if self._sharing is None:
            return pages
        self._sharing.begin(self._engines, unread=self._unread(streams))
        return self._sharing.settle(pages, self._observed, self._contained)

    def _decide(self, page: Page) -> None:
        """What to hold, and what to ask of the fleet for it. The end, if it has come."""
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
        """All that happened to the job in this turn enters the journal, as one."""
        self._append(page.engine, page.events)

    def _act(self, page: Page) -> None:
        """Tell the fleet what it has not confirmed, unless it would only hear the same limits."""
        if page.observed is not None:
            # A sleeper that woke up late may have told the fleet an older one.
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
        """Charges and progress came with the reports and are written. What nodes lived and lost is
        told to the workers: they save the more often the shorter nodes live.
        """
        if page.observed is not None:
            state = page.engine.state
            lived, losses = lifetimes(state.nodes.values(), state.slot_began)
            self.world.reports.hazard(page.stream, lived, losses)

    def _learn(self, engine: Engine) -> None:
        """Once a job is over, and then once."""
        if not engine.is_over():
            return
        story = self.books.journal.read(engine.stream)
        if self.learning is not None and not isinstance(story[-1].event, Learned):
            lesson = self.learning.learn(engine.stream, story)
            engine.handle(lesson)
            self._append(engine, [lesson])
        self._engines.pop(engine.stream, None)

    # --- What the verbs need

    def _expected(self, page: Page) -> Forecast:
        policy = self._policy_named(page.engine.state.submitted.policy)
        return self._memory.forecast(page.market, max(USUAL_HORIZON, lookahead(policy)))

    def _observed(self, page: Page) -> Observed:
        """The slot as the policy will be shown it: the market now, less the spot that our other
        jobs hold, and what it may become.
        """
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
        """Nodes of jobs whose journal cannot be read."""
        count = 0
        for stream in set(streams) - set(self._engines):
            with self._contained(stream):
                nodes = self.world.fleet.observe(stream).nodes
                count += sum(node.state.alive for node in nodes)
        return count

    # --- What keeps a tick safe

    @contextmanager
    def _contained(self, stream: str) -> Iterator[None]:
        """What one job cannot do must not cost the others their deadlines."""
        try:
            yield
        except FleetError as error:
            # Nodes and workers go on; what was asked for is asked for again.
            log.warning("job %s: %s", stream, error)
            self.world.revive()
        except (StaleController, StoreError):
            raise
        except DuetuneError:
            log.exception("job %s cannot be served", stream)
            self._engines.pop(stream, None)

    def _append(self, engine: Engine, events: Sequence[Event]) -> None:
        if events:
            before = self._written[engine.stream]
            self.books.journal.append(engine.stream, events, expected=before)
            self._written[engine.stream] = engine.position

    def _forget_unwritten(self) -> None:
        """What was not written did not happen: the next turn begins from the journal."""
        for stream, engine in list(self._engines.items()):
            if engine.position != self._written[stream]:
                del self._engines[stream]

    def _engine(self, stream: str) -> Engine:
        """From memory, or by replay."""
        if stream not in self._engines:
            engine = Engine(stream, self._policy_named)
            for recorded in self.books.journal.read(stream):
                engine.handle(recorded.event)
            self._engines[stream], self._written[stream] = engine, engine.position
        return self._engines[stream]

    def _refuse_late(self, wishes: Wishes, active: set[str]) -> None:
        """Wishes for jobs that are over have no effect and are not asked again."""
        late = [number for number, job, _ in wishes if job not in active]
        if late:
            self.books.wishes.taken(late)

    def next_turn(self, now: float) -> float:
        """When to take the next turn: a moment into the next slot of any job, or sooner."""
        soon = now + self.poll_s
        for engine in self._engines.values():
            state = engine.state
            slot_s = state.submitted.slot_s
            opens = state.moment(state.slot_at(now)) + SETTLE_SHARE * slot_s
            soon = min(soon, opens, now + slot_s / LOOKS_PER_SLOT)
        return soon

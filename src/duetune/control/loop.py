"""The controller: level-triggered, the journal before the fleet, nothing in memory that a replay
would not give back.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from duetune.control.memory import MarketMemory
from duetune.control.page import Page
from duetune.control.sharing import ROUNDS, Sharing
from duetune.core.events import Learned, Reported, Wished
from duetune.core.fleet import Limit, NodeKind, NodeState, Release
from duetune.engine.deciding import lookahead
from duetune.engine.engine import Engine
from duetune.errors import DuetuneError, FleetError, StaleController, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from duetune.control.shares import Queue
    from duetune.control.world import Books, Learning, World
    from duetune.core.events import Event, Observed, Wish
    from duetune.core.fleet import FleetReport, Node
    from duetune.core.market import Slot
    from duetune.core.ports import Forecaster, Policy

USUAL_HORIZON = 24
PROGRESS_SHARE = 0.25
"""Progress enters the journal at least after this share of a slot."""

SETTLE_SHARE = 0.02
"""So much of a slot is waited into it, that the market may turn first."""

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
        """Until ``stop`` says so, or nothing was to do for ``linger_s`` seconds."""
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
        """One tick for every job; whether there was one."""
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

    def tick(self, *streams: str, wishes: Sequence[tuple[int, str, Wish]] = ()) -> None:
        """Observe, forecast, share, decide; write it down; act. Once over: account, learn."""
        pages: list[Page] = []
        try:
            for stream in streams:
                with self._contained(stream):
                    pages += self._looked(stream, wishes)
            self._sharing = self._sharing_now()
            if self._sharing is not None:
                self._sharing.begin(self._engines, unread=self._unread(streams))
                pages = self._shared(self._sharing, pages)
            for page in pages:
                with self._contained(page.stream):
                    self._decide(page)
        finally:
            self._forget_unwritten()

    def _sharing_now(self) -> Sharing | None:
        """None where nothing limits jobs and none is told a share that it had to keep to."""
        queue = None if self._queue is None else self._queue()
        told = any(engine.state.share is not None for engine in self._engines.values())
        if queue is None or not (queue.limited or told):
            return None
        same = self._sharing is not None and self._sharing.queue is queue
        return self._sharing if same else Sharing(queue)

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

    def _looked(self, stream: str, wishes: Sequence[tuple[int, str, Wish]]) -> list[Page]:
        """What was wished, and what has become of nodes and training; no page if it is over."""
        engine = self._engine(stream)
        if engine.is_over():
            self._learn(engine)
            return []
        market = self.world.feed.now()
        fleet = self.world.fleet.observe(stream)
        page = Page(engine, market)
        for number, job, wish in wishes:
            if job == stream and number not in engine.state.wishes:
                page.happened(Wished(market.at, number, wish))
        page.happened(self._report(engine, fleet))
        return [page]

    def _shared(self, sharing: Sharing, pages: Sequence[Page]) -> list[Page]:
        """With what each job may hold, where there is not enough for all."""
        asked = sharing.in_order(pages)
        for _ in range(ROUNDS):
            asking, asked = asked, []
            for page in asking:
                with self._contained(page.stream):
                    sharing.ask(page, self._observed)
                    asked.append(page)
            if not sharing.plan([page for page in pages if page in asked]):
                break
        served = []
        for page in asked:
            with self._contained(page.stream):
                sharing.tell(page, self._observed)
                served.append(page)
        return served

    def _unread(self, streams: Sequence[str]) -> int:
        """Nodes of jobs whose journal cannot be read."""
        count = 0
        for stream in set(streams) - set(self._engines):
            with self._contained(stream):
                nodes = self.world.fleet.observe(stream).nodes
                count += sum(node.state.alive for node in nodes)
        return count

    def _decide(self, page: Page) -> None:
        engine, at = page.engine, page.market.at
        if page.observed is None and engine.state.slot_is_due(at):
            page.observed = self._observed(page)
        if page.observed is not None:
            page.happened(page.observed)
            if engine.state.ending is None:
                page.happened(engine.decide(page.observed))
        room = None if self._sharing is None else self._sharing.room(engine, page.market.slot)
        page.happened(engine.request(at, room=room))
        page.happened(engine.end(at))
        self._write(engine, page.events)
        if page.observed is not None:
            # A sleeper that woke up late may have told the fleet an older one.
            self._limits.pop(page.stream, None)
        self._act(engine)
        if page.observed is not None:
            self._warn_workers(engine)
        if engine.is_over():
            self._learn(engine)

    def _write(self, engine: Engine, events: Sequence[Event]) -> None:
        """All that happened to a job in a turn, as one."""
        if events:
            before = self._written[engine.stream]
            self.books.journal.append(engine.stream, events, expected=before)
            self._written[engine.stream] = engine.position

    def _forget_unwritten(self) -> None:
        """What was not written did not happen: the next turn begins from the journal."""
        for stream, engine in list(self._engines.items()):
            if engine.position != self._written[stream]:
                del self._engines[stream]

    def next_turn(self, now: float) -> float:
        """The next slot of any job, a moment in, or the next look around."""
        soon = now + self.poll_s
        for engine in self._engines.values():
            state = engine.state
            slot_s = state.submitted.slot_s
            opens = state.moment(state.slot_at(now)) + SETTLE_SHARE * slot_s
            soon = min(soon, opens, now + slot_s / 10)
        return soon

    def _engine(self, stream: str) -> Engine:
        """From memory, or by replay."""
        if stream not in self._engines:
            engine = Engine(stream, self._policy_named)
            for recorded in self.books.journal.read(stream):
                engine.handle(recorded.event)
            self._engines[stream], self._written[stream] = engine, engine.position
        return self._engines[stream]

    def _report(self, engine: Engine, fleet: FleetReport) -> Reported | None:
        """What is new. Bills of living nodes and steps are written down now and then only."""
        state = engine.state
        due = state.slot_is_due(fleet.at) or state.ending is not None
        nodes = []
        for node in fleet.nodes:
            known = state.nodes.get(node.id)
            if known is None or not (known.state.alive and node.state.alive) or due:
                changed = node != known
            else:
                changed = (node.state, node.notice_at) != (known.state, known.notice_at)
            if changed:
                nodes.append(node)
        nodes += self._never_launched(engine, fleet)
        report = self.world.reports.read(engine.stream)
        progress = progress_at = None
        if report is not None and report[0] != state.progress and not state.progress.phase.final:
            waited = fleet.at - (state.progress_at or 0.0)
            stale = waited >= PROGRESS_SHARE * state.submitted.slot_s
            if due or stale or nodes or report[0].phase is not state.progress.phase:
                progress, progress_at = report
        if not nodes and progress is None:
            return None
        return Reported(fleet.at, tuple(nodes), progress, progress_at)

    def _never_launched(self, engine: Engine, fleet: FleetReport) -> list[Node]:
        """Nodes given back before the fleet had heard of them: it will refuse them from now on."""
        known = {node.id for node in fleet.nodes}
        state = engine.state
        return [
            msgspec.structs.replace(
                state.nodes[node],
                state=NodeState.RELEASED,
                ended_at=fleet.at,
                reason="not launched",
            )
            for node in sorted(state.releasing & self._released)
            if state.nodes[node].state.alive and node not in known
        ]

    def _observed(self, page: Page) -> Observed:
        """The slot as the policy will be shown it: the market now, and what it may become."""
        engine, market = page.engine, page.market
        state = engine.state
        horizon = max(USUAL_HORIZON, lookahead(self._policy_named(state.submitted.policy)))
        pace = {}
        if state.progress.step_s and state.progress.world > 0:
            slot_wall_s = state.submitted.slot_s / self.world.speed
            pace[state.progress.world] = slot_wall_s / state.progress.step_s
        return engine.observed(
            at=market.at,
            market=self._left_by_others(engine, market.slot),
            forecast=self._memory.forecast(market, horizon),
            outlook=state.submitted.outlook,
            pace=pace,
        )

    def _left_by_others(self, engine: Engine, market: Slot) -> Slot:
        """The market less the spot that our other jobs hold: they would be refused for it."""
        if self._sharing is not None:
            return self._sharing.left(engine, market)
        own = len(engine.state.alive(NodeKind.SPOT))
        taken = sum(
            len(other.state.alive(NodeKind.SPOT))
            for other in self._engines.values()
            if other is not engine
        )
        left = max(own, market.available - taken)
        return msgspec.structs.replace(market, available=min(market.available, left))

    def _act(self, engine: Engine) -> None:
        commands = engine.outstanding()
        limits = {c.job: c for c in commands if isinstance(c, Limit)}
        if all(isinstance(c, Limit) for c in commands) and all(
            self._limits.get(job) == limit for job, limit in limits.items()
        ):
            return
        self.world.fleet.apply(commands)
        self._limits.update(limits)
        self._released.update(c.node for c in commands if isinstance(c, Release))

    def _warn_workers(self, engine: Engine) -> None:
        """Workers save the more often the shorter nodes live."""
        lived, losses = 0.0, 0
        for node in engine.state.nodes.values():
            if node.started_at is not None:
                end = node.ended_at if node.ended_at is not None else engine.state.slot_began
                lived += max(0.0, end - node.started_at)
                losses += node.state is NodeState.LOST
        self.world.reports.hazard(engine.stream, lived, losses)

    def _learn(self, engine: Engine) -> None:
        story = self.books.journal.read(engine.stream)
        if self.learning is not None and not isinstance(story[-1].event, Learned):
            lesson = self.learning.learn(engine.stream, story)
            engine.handle(lesson)
            self._write(engine, [lesson])
        self._engines.pop(engine.stream, None)

    def _refuse_late(self, wishes: Sequence[tuple[int, str, Wish]], active: set[str]) -> None:
        """Wishes for jobs that are over have no effect and are not asked again."""
        late = [number for number, job, _ in wishes if job not in active]
        if late:
            self.books.wishes.taken(late)

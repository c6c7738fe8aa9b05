"""The controller: level-triggered, the journal before the fleet, nothing in memory that a replay
would not give back.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from duetune.control.memory import MarketMemory
from duetune.core.events import Event, Learned, Reported, Wished
from duetune.core.fleet import Limit, NodeKind, NodeState, Release
from duetune.engine.deciding import lookahead
from duetune.engine.engine import Engine
from duetune.errors import DuetuneError, FleetError, StaleController, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from duetune.control.world import Books, Learning, World
    from duetune.core.events import Observed, Wish
    from duetune.core.fleet import FleetReport, MarketReport, Node
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
    the journal lets one of them write, the others stop with ``StaleController``.
    """

    def __init__(
        self,
        world: World,
        books: Books,
        *,
        policy_named: Callable[[str], Policy],
        forecaster: Callable[[], Forecaster],
        learning: Learning | None = None,
        poll_wall_s: float = 10.0,
    ) -> None:
        self.world, self.books, self.learning = world, books, learning
        self.poll_s = poll_wall_s * world.speed
        self._policy_named = policy_named
        self._memory = MarketMemory(world.feed, forecaster)
        self._engines: dict[str, Engine] = {}
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
        for stream in streams:
            with self._contained(stream):
                self.tick(stream, [(number, wish) for number, job, wish in wishes if job == stream])
        for stream in set(self._engines) - set(streams):
            del self._engines[stream]
        self._refuse_late(wishes, set(streams))
        return bool(streams)

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

    def tick(self, stream: str, wishes: Sequence[tuple[int, Wish]] = ()) -> None:
        """Observe, forecast, decide; write it down; act. Once over: account, learn."""
        engine = self._engine(stream)
        if engine.is_over():
            self._learn(engine)
            return
        market = self.world.feed.now()
        fleet = self.world.fleet.observe(stream)
        with self._written(engine) as happened:
            for number, wish in wishes:
                if number not in engine.state.wishes:
                    happened(Wished(market.at, number, wish))
            happened(self._report(engine, fleet))
            slot_is_due = engine.state.slot_is_due(market.at)
            if slot_is_due:
                observed = self._observe(engine, market)
                happened(observed)
                if engine.state.ending is None:
                    happened(engine.decide(observed))
            happened(engine.request(market.at))
            happened(engine.end(market.at))
        if slot_is_due:
            # A sleeper that woke up late may have told the fleet an older one.
            self._limits.pop(stream, None)
        self._act(engine)
        if slot_is_due:
            self._warn_workers(engine)
        if engine.is_over():
            self._learn(engine)

    @contextmanager
    def _written(self, engine: Engine) -> Iterator[Callable[[Event | None], None]]:
        """Collects what happened and appends it as one; what was not written did not happen."""
        before = engine.position
        events: list[Event] = []

        def happened(event: Event | None) -> None:
            if event is not None:
                engine.handle(event)
                events.append(event)

        try:
            yield happened
            if events:
                self.books.journal.append(engine.stream, events, expected=before)
        except BaseException:
            self._engines.pop(engine.stream, None)  # the next turn begins from the journal
            raise

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
            self._engines[stream] = engine
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

    def _observe(self, engine: Engine, market: MarketReport) -> Observed:
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
            with self._written(engine) as happened:
                happened(self.learning.learn(engine.stream, story))
        self._engines.pop(engine.stream, None)

    def _refuse_late(self, wishes: Sequence[tuple[int, str, Wish]], active: set[str]) -> None:
        """Wishes for jobs that are over have no effect and are not asked again."""
        late = [number for number, job, _ in wishes if job not in active]
        if late:
            self.books.wishes.taken(late)

"""The step of a turn that shares a finite fleet among jobs.

Every job is asked how many members it would hold alone. The planner (through ``queue.shares``)
divides the GPUs, and each job decides within its share. Launches are limited to GPUs that are
really free: nodes that are still being released count as used. A node is a member of a job, with
one GPU or several; jobs count members, limits and the market count GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.control.queue import Contender, shares
from duetune.core.events import Status
from duetune.core.fleet import NodeKind
from duetune.engine.node_requests import Room, late_in_slot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from duetune.control.queue import Queue, Share
    from duetune.control.turn import Page
    from duetune.core.events import Observed
    from duetune.core.market import Slot
    from duetune.engine.engine import Engine


ROUNDS = 3
"""Maximum rounds of re-asking jobs before unclaimed spot capacity is left unallocated."""


class Sharing:
    """Shares GPUs among jobs. Between turns it keeps only the last plan, to reuse it.

    ``_hoped``: spot members that each job is expected to take in this turn.
    ``_most``: the most members that each job can use of its share.
    ``_spot_words``: why a job sees less spot capacity than the market has.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._engines: dict[str, Engine] = {}
        self._unread = 0
        self._hoped: dict[str, int] = {}
        self._most: dict[str, int] = {}
        self._spot_words: dict[str, str] = {}
        self._planned_for: object = None
        self._shares: dict[str, Share] = {}

    def begin(self, engines: Mapping[str, Engine], *, unread: int = 0) -> None:
        """Begin a turn with all jobs; jobs whose journal cannot be read hold ``unread`` GPUs."""
        self._engines, self._unread = dict(engines), unread
        self._hoped, self._most, self._spot_words = {}, {}, {}

    def settle(
        self,
        pages: Sequence[Page],
        observed: Callable[[Page], Observed],
        contained: Callable[[str], AbstractContextManager[None]],
    ) -> list[Page]:
        """Ask all jobs, plan, and tell each job its share; called once per turn.

        Returns the pages of the jobs that can be served. ``observed`` makes the observation that a
        policy is shown. ``contained`` keeps the failure of one job from the others.
        """
        # Higher priorities first, because the other jobs see the spot capacity that they leave.
        asked = sorted(pages, key=lambda page: -page.engine.state.priority)
        for _ in range(ROUNDS):
            asking, asked = asked, []
            for page in asking:
                with contained(page.stream):
                    self.ask(page, observed)
                    asked.append(page)
            if not self.plan([page for page in pages if page in asked]):
                break
        served = []
        for page in asked:
            with contained(page.stream):
                self.tell(page, observed)
                served.append(page)
        return served

    def ask(self, page: Page, observed: Callable[[Page], Observed]) -> None:
        """Note what the job would hold alone, if it must decide in this turn."""
        if page.engine.state.slot_is_due(page.market.at):
            seen = observed(page)
            wish = page.engine.wish(seen)
            self._hoped[page.stream] = min(wish.spot, self._most.get(page.stream, wish.spot))
            page.observed = msgspec.structs.replace(
                seen, wish=wish.total, share_reason=self._spot_words.get(page.stream, "")
            )

    def plan(self, pages: Sequence[Page]) -> bool:
        """Compute the shares, unless nothing has changed; return whether jobs must be asked again.

        They must if a job gets less than the spot GPUs it was expected to take: other jobs can then
        use the rest.
        """
        jobs = [Contender(page.engine.state, _wish(page)) for page in pages if _competes(page)]
        asked = {page.stream for page in pages}
        taken = self._unread + sum(
            max(len(engine.state.alive()), engine.state.wanted.total) * _member(engine)
            for stream, engine in self._engines.items()
            if stream not in asked
        )
        planned_for = (taken, [(job.state.stream, job.members) for job in jobs])
        if planned_for != self._planned_for or any(page.observed for page in pages):
            now = max((page.market.at for page in pages), default=0.0)
            self._shares = shares(self.queue, jobs, now, taken=taken)
            self._planned_for = planned_for
        again = False
        for page in pages:
            if page.observed is not None and page.stream in self._shares:
                most = _runnable(page, self._shares[page.stream].gpus // _member(page.engine))
                again |= most < self._hoped[page.stream]
                self._most[page.stream] = most
        return again

    def tell(self, page: Page, observed: Callable[[Page], Observed]) -> None:
        """Put the share into the job's observation.

        A job whose share has changed decides again at once, unless it could only grow and the slot
        is nearly over.
        """
        if not _competes(page):
            return
        state, share, wish = page.engine.state, self._shares.get(page.stream), _wish(page)
        given = wish if share is None else min(wish, share.gpus // _member(page.engine))
        most = _runnable(page, given)
        if page.observed is None:
            if most == min(wish, wish if state.share is None else state.share):
                return
            if most > state.wanted.total and late_in_slot(state, page.market.at):
                return
            # The wish stays fixed within a slot; otherwise every turn could cause a new plan.
            page.observed = msgspec.structs.replace(observed(page), wish=wish)
            wish = max(wish, page.engine.wish(page.observed).total)
        if wish > most:
            reason = "what it asked for in this slot" if share is None else share.reason
            page.observed = msgspec.structs.replace(page.observed, share=most, share_reason=reason)
            self._hoped[page.stream] = min(most, self._hoped.get(page.stream, most))

    def left(self, engine: Engine, market: Slot) -> Slot:
        """Return the market without the spot GPUs of other jobs of the same or a higher priority.

        A job keeps the spot GPUs that it holds against jobs of the same priority. Jobs of lower
        priority must make room.
        """
        own, size = engine.state, _member(engine)
        priority = own.priority
        spot = {
            other: _member(other)
            * self._hoped.get(other.stream, len(other.state.alive(NodeKind.SPOT)))
            for other in self._engines.values()
            if other is not engine and other.state.priority >= priority
        }
        higher = sum(count for other, count in spot.items() if other.state.priority > priority)
        first = max(0, market.available - higher)
        left = max(min(first, _spot_gpus(engine)), market.available - sum(spot.values()))
        self._spot_words[engine.stream] = (
            ""
            if left >= min(market.available, own.job.max_gpus * size)
            else f"other jobs have {market.available - left} of {market.available} spot GPUs"
        )
        return msgspec.structs.replace(market, available=left)

    def room(self, engine: Engine, market: Slot) -> Room:
        """Return how many nodes the job may launch beside all live ones, those being released
        included.
        """
        queue, project = self.queue, engine.state.submitted.project
        alive, alive_in_project, spot = self._unread, 0, 0
        for other in self._engines.values():
            nodes = [node for node in other.state.nodes.values() if node.state.alive]
            held = sum(node.gpus for node in nodes)
            alive += held
            alive_in_project += held * (other.state.submitted.project == project)
            spot += sum(node.gpus for node in nodes if node.kind is NodeKind.SPOT)
        size = _member(engine)
        left = engine.state.wanted.total * size if queue.gpus is None else queue.gpus - alive
        if project in queue.quotas:
            left = min(left, queue.quotas[project] - alive_in_project)
        unused = msgspec.structs.replace(market, available=max(0, market.available - spot))
        return Room(max(0, left // size), unused.in_members(size).available)


def sharing_now(
    queue: Queue | None, engines: Collection[Engine], before: Sharing | None
) -> Sharing | None:
    """Return the sharing of this turn, given that of the last turn (``before``).

    None if there is no limit and no job has a share from an earlier limit.
    """
    shared = any(engine.state.share is not None for engine in engines)
    if queue is None or not (queue.limited or shared):
        return None
    return before if before is not None and before.queue is queue else Sharing(queue)


def left_by_others(engine: Engine, engines: Collection[Engine], market: Slot) -> Slot:
    """Return the market without the spot GPUs that our other jobs hold; used without a queue.

    The fleet would refuse these GPUs.
    """
    own = _spot_gpus(engine)
    taken = sum(_spot_gpus(each) for each in engines if each is not engine)
    left = max(own, market.available - taken)
    return msgspec.structs.replace(market, available=min(market.available, left))


def _spot_gpus(engine: Engine) -> int:
    return sum(node.gpus for node in engine.state.alive(NodeKind.SPOT))


def _competes(page: Page) -> bool:
    state = page.engine.state
    return state.ending is None and state.status is not Status.PAUSED


def _member(engine: Engine) -> int:
    """Return the GPUs of one member of a job."""
    return engine.state.submitted.task.gpus


def _runnable(page: Page, members: int) -> int:
    return members if members >= page.engine.state.job.min_gpus else 0


def _wish(page: Page) -> int:
    """Return how many members the job would hold alone in this slot."""
    state = page.engine.state
    known = state.wish if page.observed is None else page.observed.wish
    return state.wanted.total if known is None else known

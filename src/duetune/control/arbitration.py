"""The part of a turn in which jobs on a finite fleet make room for each other.

Every job is asked what it would hold alone, the planner shares what there is, and each job is told
its share, which its decision keeps to. What is launched keeps to what is really free: nodes that
are still on their way out count.
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
    """Remembers the last plan only, so as not to plan anew before something has changed."""

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
        """A turn, with all jobs that there are; those that cannot be read hold ``unread`` nodes."""
        self._engines, self._unread = dict(engines), unread
        self._hoped, self._most, self._spot_words = {}, {}, {}

    def settle(
        self,
        pages: Sequence[Page],
        observed: Callable[[Page], Observed],
        contained: Callable[[str], AbstractContextManager[None]],
    ) -> list[Page]:
        """Ask, plan and tell: returns the pages of the jobs that can be served, each with what the
        job may hold. ``observed`` makes the observation that a policy is shown; ``contained``
        keeps the failure of one job from the others.
        """
        # The higher priority first: others see the spot that it leaves.
        asked = sorted(pages, key=lambda page: -page.engine.state.submitted.priority)
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
        """What the job would hold alone, if it is to decide in this turn."""
        if page.engine.state.slot_is_due(page.market.at):
            seen = observed(page)
            wish = page.engine.wish(seen)
            self._hoped[page.stream] = min(wish.spot, self._most.get(page.stream, wish.spot))
            page.observed = msgspec.structs.replace(
                seen, wish=wish.total, share_reason=self._spot_words.get(page.stream, "")
            )

    def plan(self, pages: Sequence[Page]) -> bool:
        """The shares from now on, those that there are if nothing has changed. Whether jobs have to
        be asked again: one that waits takes no spot from others, however much it would like to.
        """
        jobs = [Contender(page.engine.state, _wish(page)) for page in pages if _competes(page)]
        asked = {page.stream for page in pages}
        taken = self._unread + sum(
            max(len(engine.state.alive()), engine.state.wanted.total)
            for stream, engine in self._engines.items()
            if stream not in asked
        )
        planned_for = (taken, [(job.state.stream, job.wish) for job in jobs])
        if planned_for != self._planned_for or any(page.observed for page in pages):
            now = max((page.market.at for page in pages), default=0.0)
            self._shares = shares(self.queue, jobs, now, taken=taken)
            self._planned_for = planned_for
        again = False
        for page in pages:
            if page.observed is not None and page.stream in self._shares:
                most = _runnable(page, self._shares[page.stream].gpus)
                again |= most < self._hoped[page.stream]
                self._most[page.stream] = most
        return again

    def tell(self, page: Page, observed: Callable[[Page], Observed]) -> None:
        """A job whose share has changed decides anew at once, unless it could only grow at the end
        of a slot.
        """
        if not _competes(page):
            return
        state, share, wish = page.engine.state, self._shares.get(page.stream), _wish(page)
        most = _runnable(page, wish if share is None else min(wish, share.gpus))
        if page.observed is None:
            if most == min(wish, wish if state.share is None else state.share):
                return
            if most > state.wanted.total and late_in_slot(state, page.market.at):
                return
            # The wish of the slot stays: else every look might be a reason to plan anew.
            page.observed = msgspec.structs.replace(observed(page), wish=wish)
            wish = max(wish, page.engine.wish(page.observed).total)
        if wish > most:
            reason = "as wished for in this slot" if share is None else share.reason
            page.observed = msgspec.structs.replace(page.observed, share=most, share_reason=reason)
            self._hoped[page.stream] = min(most, self._hoped.get(page.stream, most))

    def left(self, engine: Engine, market: Slot) -> Slot:
        """The market less the spot of our other jobs, those of lower priority aside: they have to
        make room. What it holds itself no job of the same priority takes away.
        """
        own = engine.state
        priority = own.submitted.priority
        spot = {
            other: self._hoped.get(other.stream, len(other.state.alive(NodeKind.SPOT)))
            for other in self._engines.values()
            if other is not engine and other.state.submitted.priority >= priority
        }
        higher = sum(
            count for other, count in spot.items() if other.state.submitted.priority > priority
        )
        first = max(0, market.available - higher)
        left = max(min(first, len(own.alive(NodeKind.SPOT))), market.available - sum(spot.values()))
        self._spot_words[engine.stream] = (
            ""
            if left >= min(market.available, own.job.max_gpus)
            else f"other jobs have {market.available - left} of {market.available} spot GPUs"
        )
        return msgspec.structs.replace(market, available=left)

    def room(self, engine: Engine, market: Slot) -> Room:
        """What may be launched beside all nodes that there are, those on their way out included."""
        queue, project = self.queue, engine.state.submitted.project
        alive, alive_in_project, spot = self._unread, 0, 0
        for other in self._engines.values():
            nodes = [node for node in other.state.nodes.values() if node.state.alive]
            alive += len(nodes)
            alive_in_project += len(nodes) * (other.state.submitted.project == project)
            spot += sum(node.kind is NodeKind.SPOT for node in nodes)
        wanted = engine.state.wanted.total
        nodes_left = wanted if queue.gpus is None else queue.gpus - alive
        if project in queue.quotas:
            nodes_left = min(nodes_left, queue.quotas[project] - alive_in_project)
        return Room(max(0, nodes_left), max(0, market.available - spot))


def sharing_now(
    queue: Queue | None, engines: Collection[Engine], before: Sharing | None
) -> Sharing | None:
    """How jobs share in this turn; ``before`` is how they did in the last. None where nothing
    limits jobs and none is told a share that it had to keep to.
    """
    told = any(engine.state.share is not None for engine in engines)
    if queue is None or not (queue.limited or told):
        return None
    return before if before is not None and before.queue is queue else Sharing(queue)


def left_by_others(engine: Engine, engines: Collection[Engine], market: Slot) -> Slot:
    """Where nothing is shared: the market less the spot that our other jobs hold, since the fleet
    would refuse it.
    """
    own = len(engine.state.alive(NodeKind.SPOT))
    taken = sum(len(each.state.alive(NodeKind.SPOT)) for each in engines if each is not engine)
    left = max(own, market.available - taken)
    return msgspec.structs.replace(market, available=min(market.available, left))


def _competes(page: Page) -> bool:
    state = page.engine.state
    return state.ending is None and state.status is not Status.PAUSED


def _runnable(page: Page, gpus: int) -> int:
    return gpus if gpus >= page.engine.state.job.min_gpus else 0


def _wish(page: Page) -> int:
    """How many GPUs the job would hold alone in this slot."""
    state = page.engine.state
    known = state.wish if page.observed is None else page.observed.wish
    return state.wanted.total if known is None else known

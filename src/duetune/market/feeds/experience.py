"""What our own jobs have learned about availability: their grants, refusals and losses.

Nobody publishes how many spot GPUs there are. GPUs that jobs held were there, at least. If a
request was refused or a GPU was taken for lack of capacity, there were no more than jobs still
held. Where nothing was asked for and nothing held, nothing is known.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from duetune.core.events import Observed, Reported, Submitted
from duetune.core.fleet import NodeEnd, NodeKind, NodeState
from duetune.market.feeds.recording import RecordedSlot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from duetune.core.events import Event
    from duetune.core.fleet import Node

    Prices = dict[int, tuple[float, float]]


class Experience:
    """Collects the spot nodes of jobs, and the prices that the jobs were told.

    Slots have ``slot_s`` seconds and are numbered from the moment ``start`` on.
    """

    def __init__(self, slot_s: float, start: float = 0.0) -> None:
        self._slot_s, self._start = slot_s, start
        self._nodes: dict[tuple[str, str], Node] = {}
        self._prices: Prices = {}
        self._until = -math.inf

    def add(self, story: Iterable[Event]) -> None:
        """Take in the events of one job; called for every job of a home."""
        slot_hours, gpus = 1.0, 1
        for event in story:
            self._until = max(self._until, event.at)
            if isinstance(event, Submitted):
                slot_hours, gpus = event.slot_s / 3600, event.task.gpus
            elif isinstance(event, Reported):
                for node in event.nodes:
                    if node.kind is NodeKind.SPOT:
                        self._nodes[node.job, node.id] = node
            elif isinstance(event, Observed):
                # The market of a job is counted in members of several GPUs.
                told = (event.market.spot_price, event.market.on_demand_price)
                spot, on_demand = (price / gpus / slot_hours for price in told)
                self._prices[self._number(event.at)] = (spot, on_demand)

    def add_nodes(self, nodes: Iterable[Node], at: float, prices: tuple[float, float]) -> None:
        """Take in nodes of all jobs as they are at this moment, as a fleet's ledger has them.

        ``prices``: of spot and on-demand, in dollars per GPU-hour, for slots without a price.
        """
        self._until = max(self._until, at)
        for node in nodes:
            if node.kind is NodeKind.SPOT:
                self._nodes[node.job, node.id] = node
                self._prices.setdefault(self._number(node.requested_at), prices)

    def slots(self) -> dict[int, RecordedSlot]:
        """Return the slots of which something is known, with the last price that jobs were told."""
        found = {}
        told = sorted(self._prices)
        for number, (available, at_least) in self._counts().items():
            place = bisect_right(told, number)
            if place:
                prices = self._prices[told[place - 1]]
                found[number] = RecordedSlot(*prices, available, at_least)
        return found

    def _counts(self) -> dict[int, tuple[int, bool]]:
        """Return, by slot, a number of GPUs, and whether it is only a lower bound."""
        nodes = list(self._nodes.values())
        scarce: dict[int, list[float]] = {}
        within: dict[int, list[Node]] = {}
        for node in nodes:
            if _scarce(node):
                moment = node.requested_at if node.ended_at is None else node.ended_at
                scarce.setdefault(self._number(moment), []).append(moment)
            for number in self._held(node):
                within.setdefault(number, []).append(node)
        counts = {}
        for number in sorted({*within, *scarce}):
            running = within.get(number, [])
            if number in scarce:
                left = (self._running(running, moment) for moment in scarce[number])
                counts[number] = (min(left), False)
            else:
                begins = (node.started_at or 0.0 for node in running)
                most = max(self._running(running, moment) for moment in begins)
                counts[number] = (most, True)
        return counts

    def _held(self, node: Node) -> Sequence[int]:
        """Return the slots in which the node ran."""
        if node.started_at is None:
            return ()
        last = self._until if node.ended_at is None else node.ended_at
        first = self._number(node.started_at)
        stop = math.ceil((last - self._start) / self._slot_s - 1e-9)
        return range(first, max(first + 1, stop))

    def _running(self, nodes: Sequence[Node], moment: float) -> int:
        """Return the GPUs of the nodes that run just after this moment."""
        return sum(
            node.gpus
            for node in nodes
            if node.started_at is not None
            and node.started_at <= moment
            and (node.ended_at is None or moment < node.ended_at)
        )

    def _number(self, moment: float) -> int:
        return math.floor((moment - self._start) / self._slot_s + 1e-9)


def _scarce(node: Node) -> bool:
    """Return whether the node's end shows that there were no more GPUs."""
    ended = node.state in {NodeState.REFUSED, NodeState.LOST}
    return ended and node.end is NodeEnd.CAPACITY

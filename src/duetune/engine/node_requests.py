"""Which nodes to launch and to release: compares the wanted allocation with the nodes there are.

Nothing here keeps state between calls, so a lost or repeated call does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from duetune.core.events import NodeRequest, Requested
from duetune.core.fleet import NodeEnd, NodeKind, NodeState

if TYPE_CHECKING:
    from duetune.core.fleet import Node
    from duetune.engine.state import JobState

GRANT_PATIENCE = 0.5
"""A node request that is not granted within this share of a slot is withdrawn."""

MOST_DOUBLINGS = 4
"""Each withdrawn request doubles the waiting time for the next one, at most this many times."""

RETRY_SHARE = 0.05
"""Wait this share of a slot after a refusal or a loss before asking again; then double it."""

SAY_NOTHING = frozenset({NodeEnd.DIED, NodeEnd.RESTARTED})
"""Ends that say nothing about the next node: after the first loss, ask again without waiting."""

MOST_RETRY_DOUBLINGS = 6
"""The wait is doubled at most this many times, to about 3 slots."""

LATE_SHARE = 0.25
"""Launch nothing in this last share of a slot: the next decision is near."""


class Room(NamedTuple):
    """The number of nodes that a job may launch now beside other jobs, and how many may be spot."""

    nodes: int
    spot: int


def requested(state: JobState, at: float, *, room: Room | None = None) -> Requested | None:
    """Return the nodes to launch and to release now; None if there are none.

    ``room`` limits the launches where jobs compete; None means no limit.
    """
    # ``wanted`` is empty for a job that is stopping, so all its nodes are released.
    left = Room(state.wanted.total, state.wanted.spot) if room is None else room
    if room is not None and len(state.alive()) + room.nodes < state.job.min_gpus:
        left = Room(0, 0)  # too few to run on
    launches: list[NodeRequest] = []
    releases: list[str] = []
    epoch = state.position + 1
    for kind, want in (
        (NodeKind.ON_DEMAND, state.wanted.on_demand),
        (NodeKind.SPOT, state.wanted.spot),
    ):
        alive = state.alive(kind)
        waiting_too_long = [node for node in alive if _given_up(state, node, at)]
        alive = [node for node in alive if node not in waiting_too_long]
        releases += [node.id for node in waiting_too_long]
        if len(alive) > want:
            surplus = sorted(alive, key=_worth_keeping)[: len(alive) - want]
            releases += [node.id for node in surplus]
        elif len(alive) < want and _may_launch(state, kind, at):
            more = min(want - len(alive), left.nodes - len(launches))
            more = min(more, left.spot) if kind is NodeKind.SPOT else more
            launches += [
                NodeRequest(f"{state.stream}-{epoch:05d}-{len(launches) + number}", kind, epoch)
                for number in range(1, more + 1)
            ]
    if not launches and not releases:
        return None
    return Requested(at=at, launches=tuple(launches), releases=tuple(releases))


def _too_late(state: JobState, at: float) -> bool:
    """A node that comes at the end of a slot pays for little more than its start: do not ask."""
    return at > state.slot_began and late_in_slot(state, at)


def late_in_slot(state: JobState, at: float) -> bool:
    """Return whether ``at`` is in the last ``LATE_SHARE`` of a slot."""
    left = state.moment(state.slot_at(at)) - at
    return left < LATE_SHARE * state.submitted.slot_s


def _given_up(state: JobState, node: Node, at: float) -> bool:
    """Return whether the request for ``node`` has waited too long and is withdrawn."""
    given_up = sum(
        other.kind is node.kind and other.id in state.releasing and other.started_at is None
        for other in state.nodes.values()
    )
    # A fleet that grants slowly gets twice the time at the next try.
    patience = GRANT_PATIENCE * state.submitted.slot_s * 2.0 ** min(given_up, MOST_DOUBLINGS)
    return node.state is NodeState.REQUESTED and at - node.requested_at > patience


def _worth_keeping(node: Node) -> tuple[bool, bool, float]:
    """Return a sort key, least valuable first: not yet running, about to be taken, youngest."""
    return (node.state is NodeState.RUNNING, node.notice_at is None, -node.requested_at)


def _may_launch(state: JobState, kind: NodeKind, at: float) -> bool:
    """Return whether nodes of ``kind`` may be asked for now, after failures in this slot.

    The delay doubles with every failure; nodes that were asked for together count as one failure.
    Nodes that failed the job count until its next step, whatever their kind and slot.
    """
    failures = {
        node.id: node.ended_at
        for node in state.nodes.values()
        if node.kind is kind
        and _failed(state, node)
        and node.ended_at is not None
        and node.ended_at > state.slot_began
    } | {node.id: node.ended_at or 0.0 for node in state.crashed()}
    if not failures:
        return not _too_late(state, at)
    rounds = len({state.epochs[node] for node in failures})
    if rounds == 1 and {state.nodes[node].end for node in failures} <= SAY_NOTHING:
        return True
    delay = RETRY_SHARE * state.submitted.slot_s * 2.0 ** min(rounds - 1, MOST_RETRY_DOUBLINGS)
    return at >= max(failures.values()) + delay and not _too_late(state, at)


def _failed(state: JobState, node: Node) -> bool:
    """Return whether the node was refused, was lost or left by itself: the next may do the same."""
    left = node.state is NodeState.RELEASED and node.id not in state.releasing
    return left or node.state in {NodeState.REFUSED, NodeState.LOST}

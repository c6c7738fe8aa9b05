"""One job in one turn of the controller: its events, and the reports that cause them.

Bills of running nodes and training steps change all the time, so they enter the journal only now
and then. The end of a node or of a training phase enters it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.events import Reported
from duetune.core.fleet import NodeEnd, NodeState

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from duetune.core.decision import Forecast
    from duetune.core.events import Event, Observed
    from duetune.core.fleet import FleetReport, MarketReport, Node
    from duetune.core.progress import Progress
    from duetune.engine.engine import Engine
    from duetune.engine.state import JobState

PROGRESS_SHARE = 0.25
"""Progress enters the journal at least once in this share of a slot."""

LEAST_STEPS = 5
"""Fewer steps say too little about the pace of a command."""


class Page:
    """The events of one job in one turn, until they are appended to the journal together.

    ``forecast``: the expected market, if the job must decide.
    ``observed``: the observation that the policy will be shown, if the job must decide.
    """

    def __init__(self, engine: Engine, market: MarketReport) -> None:
        self.engine, self.market = engine, market
        self.stream = engine.stream
        self.events: list[Event] = []
        self.forecast: Forecast | None = None
        self.observed: Observed | None = None

    def happened(self, event: Event | None) -> None:
        """Let the engine handle ``event`` and keep it for the journal; None is ignored."""
        if event is not None:
            self.engine.handle(event)
            self.events.append(event)


def reported(
    state: JobState,
    fleet: FleetReport,
    training: tuple[Progress, float] | None,
    *,
    released: AbstractSet[str],
) -> Reported | None:
    """Return the event with the news about nodes and training; None if there are none.

    ``training``: the workers' latest report and its time.
    ``released``: ids of nodes that the fleet was told to release.
    """
    due = state.slot_is_due(fleet.at) or state.ending is not None
    nodes = [node for node in fleet.nodes if _is_news(node, state.nodes.get(node.id), due=due)]
    nodes += _never_launched(state, fleet, released)
    progress = progress_at = None
    if training is not None and training[0] != state.progress and not state.progress.phase.final:
        waited = fleet.at - (state.progress_at or 0.0)
        stale = waited >= PROGRESS_SHARE * state.submitted.slot_s
        if due or stale or nodes or training[0].phase is not state.progress.phase:
            progress, progress_at = training
    if not nodes and progress is None:
        return None
    return Reported(fleet.at, tuple(nodes), progress, progress_at)


def measured_pace(state: JobState, speed: float) -> dict[int, float]:
    """Return the measured steps per slot without a resize, by number of GPUs; empty if unknown.

    A command that reports no time per step is measured by the steps that the same nodes did since
    the last measurement, over as many slots as it takes.
    ``speed`` is the number of seconds of the fleet's clock per wall second.
    """
    progress = state.progress
    world = progress.world or len(state.alive())
    if not world:
        return {}
    if progress.step_s:
        return {world: state.submitted.slot_s / speed / progress.step_s}
    if state.steady_at is None or state.progress_at is None:
        return {}
    steps, elapsed = progress.step - state.steady_step, state.progress_at - state.steady_at
    if steps < LEAST_STEPS or elapsed <= 0:
        return {}
    return {world: steps / elapsed * state.submitted.slot_s}


def lifetimes(nodes: Iterable[Node], now: float) -> tuple[float, int]:
    """Return how many seconds the nodes ran in all until ``now``, and how many were lost."""
    lived, losses = 0.0, 0
    for node in nodes:
        if node.started_at is not None:
            end = node.ended_at if node.ended_at is not None else now
            lived += max(0.0, end - node.started_at)
            losses += node.state is NodeState.LOST
    return lived, losses


def _is_news(node: Node, known: Node | None, *, due: bool) -> bool:
    if known is None or not (known.state.alive and node.state.alive) or due:
        return node != known
    return (node.state, node.notice_at) != (known.state, known.notice_at)


def _never_launched(state: JobState, fleet: FleetReport, released: AbstractSet[str]) -> list[Node]:
    """Return nodes that were released before the fleet got their launch.

    If the launch still arrives, the fleet refuses it.
    """
    known = {node.id for node in fleet.nodes}
    return [
        msgspec.structs.replace(
            state.nodes[node],
            state=NodeState.RELEASED,
            ended_at=fleet.at,
            reason=NodeEnd.NOT_LAUNCHED.value,
            end=NodeEnd.NOT_LAUNCHED,
        )
        for node in sorted(state.releasing & released)
        if state.nodes[node].state.alive and node not in known
    ]

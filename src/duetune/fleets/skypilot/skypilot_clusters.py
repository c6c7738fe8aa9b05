"""What SkyPilot knows of a fleet, and what it means for the nodes.

SkyPilot deletes the row of a cluster that is gone, whoever ended it. So a node is judged by its
cluster, the request that launched it, the request that ended it, and the state of its command.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import NodeEnd
from duetune.fleets.driver import EngineNode, EngineState

if TYPE_CHECKING:
    from collections.abc import Mapping

LAUNCH, DOWN = "sky.launch", "sky.down"
_ACTIVE = {"PENDING", "RUNNING", "WAITING"}
_COMMAND_RUNS = {"INIT", "PENDING", "SETTING_UP", "RUNNING"}


class ClusterStatus(StrEnum):
    """The states of a cluster in SkyPilot that mean something here."""

    INIT = "INIT"
    UP = "UP"
    STOPPED = "STOPPED"


class SkyCluster(msgspec.Struct, frozen=True):
    """A cluster in SkyPilot's table; ``launched_at`` is when it was last made or found ready."""

    name: str
    status: str
    launched_at: float | None = None


class SkyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A launch or an end of a cluster that SkyPilot's server was asked for."""

    name: str
    cluster_name: str
    status: str
    created_at: float
    finished_at: float | None = None
    error: str = ""

    @property
    def active(self) -> bool:
        """Return whether the server still works on it."""
        return self.status in _ACTIVE


class SkyJob(msgspec.Struct, frozen=True):
    """The command of a node, in SkyPilot's words."""

    status: str
    start_at: float | None = None
    end_at: float | None = None


class SkyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that SkyPilot knows of a fleet at one moment, in seconds since the epoch."""

    clusters: list[SkyCluster]
    requests: list[SkyRequest]
    jobs: dict[str, SkyJob]
    now: float


def nodes_of(facts: SkyFacts, since: Mapping[str, float]) -> dict[str, EngineNode]:
    """Return the nodes of the fleet by name. ``since`` has those that were seen running before,
    with their starts.
    """
    clusters = {each.name: each for each in facts.clusters}
    launches = _last(facts, LAUNCH)
    downs = _last(facts, DOWN)
    found = {}
    for name in clusters.keys() | launches.keys() | since.keys():
        started_at = since.get(name)
        launch, down = launches.get(name), downs.get(name)
        if name in clusters:
            job = facts.jobs.get(name)
            found[name] = _present(clusters[name], launch, job, started_at, facts.now)
        else:
            found[name] = _absent(name, launch, down, started_at, facts.now)
    return found


def _last(facts: SkyFacts, verb: str) -> dict[str, SkyRequest]:
    """Return the last request of a verb for each cluster; a refused end is none."""
    asked = (each for each in facts.requests if each.name == verb)
    found = sorted(asked, key=lambda each: each.created_at)
    return {each.cluster_name: each for each in found if verb != DOWN or each.status != "FAILED"}


def _present(
    cluster: SkyCluster,
    launch: SkyRequest | None,
    job: SkyJob | None,
    started_at: float | None,
    now: float,
) -> EngineNode:
    """Return the node of a cluster that SkyPilot lists."""
    name, status = cluster.name, cluster.status
    over, end, reason = False, None, ""
    launched = launch is not None and launch.status == "SUCCEEDED"
    if status == ClusterStatus.INIT and started_at is None and not launched:
        if launch is not None and launch.active:
            return EngineNode(name=name, state=EngineState.WAITING)
        return EngineNode(
            name=name,
            state=EngineState.ENDED,
            ended_at=now,
            end=NodeEnd.CAPACITY,
            reason=(launch.error if launch is not None else "") or "the launch did not succeed",
        )
    started_at = cluster.launched_at if started_at is None else started_at
    if job is not None and job.status not in _COMMAND_RUNS:
        over, reason = True, f"the command ended: {job.status}"
    elif status == ClusterStatus.INIT:
        over, end, reason = True, NodeEnd.DIED, "SkyPilot no longer reaches the machine"
    elif status == ClusterStatus.STOPPED:
        over, end, reason = True, NodeEnd.CAPACITY, "the machine was stopped"
    if not over:
        return EngineNode(name=name, state=EngineState.RUNNING, started_at=started_at)
    ended_at = now if job is None or job.end_at is None else job.end_at
    return EngineNode(
        name=name,
        state=EngineState.ENDED,
        started_at=started_at,
        ended_at=max(ended_at, started_at or ended_at),
        end=end,
        reason=reason,
    )


def _absent(
    name: str,
    launch: SkyRequest | None,
    down: SkyRequest | None,
    started_at: float | None,
    now: float,
) -> EngineNode:
    """Return the node of a cluster that SkyPilot does not list, or no longer."""
    if launch is not None and launch.active:
        return EngineNode(name=name, state=EngineState.WAITING)
    if started_at is None and launch is not None and launch.status != "SUCCEEDED":
        return EngineNode(
            name=name,
            state=EngineState.ENDED,
            ended_at=launch.finished_at or now,
            end=NodeEnd.CAPACITY,
            reason=launch.error or f"the launch is over: {launch.status}",
        )
    if started_at is None and launch is not None:
        started_at = launch.finished_at
    ended_at = now if down is None else down.created_at
    return EngineNode(
        name=name,
        state=EngineState.ENDED,
        started_at=started_at,
        ended_at=max(ended_at, started_at or ended_at),
        # Whatever nobody gave back was taken; SkyPilot does not know more.
        end=NodeEnd.CAPACITY if down is None else None,
        reason="SkyPilot no longer finds the machine" if down is None else "stopped",
    )

"""Reads the tables of a Ray cluster's head (its GCS): actors, machines, drains, free resources.

Ray's public ``ray.util.state`` needs the dashboard and a second to answer, and nothing public
tells which machines are drained. The accessor here is what Ray's own libraries use: it answers in
2 ms and needs no ``ray.init``. It waits for a head that is away, so callers need a time limit.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from ray._raylet import GcsClientOptions, GlobalStateAccessor
from ray.core.generated import common_pb2, gcs_pb2

from duetune.core.fleet import NodeEnd
from duetune.fleets.driver import EngineNode, EngineState

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATES = gcs_pb2.ActorTableData.ActorState
_REASONS = common_pb2.ActorDiedErrorContext
_EXIT = re.compile(r"exits with an exit code (\d+)")


class Machine(msgspec.Struct, frozen=True):
    """A machine of the cluster, and all its resources by Ray's names."""

    address: str
    alive: bool
    labels: dict[str, str]
    total: dict[str, float]


class ClusterTables:
    """The tables of the cluster with this address."""

    def __init__(self, address: str) -> None:
        self._accessor = GlobalStateAccessor(
            GcsClientOptions.create(
                address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
            )
        )
        if not self._accessor.connect():
            raise ConnectionError(f"no Ray head answers at {address}")

    def nodes(self, namespace: str) -> list[EngineNode]:
        """Return the nodes of a namespace, ended ones too: the head remembers the last 100,000."""
        draining = self.draining()
        rows = map(gcs_pb2.ActorTableData.FromString, self._accessor.get_actor_table(None, None))
        return [
            node_of(row, draining) for row in rows if row.ray_namespace == namespace and row.name
        ]

    def machines(self) -> dict[str, Machine]:
        """Return the machines by id, those that are gone too."""
        return {
            row["NodeID"]: Machine(
                address=row["NodeManagerAddress"],
                alive=row["Alive"],
                labels=dict(row["Labels"]),
                total=dict(row["Resources"]),
            )
            for row in self._accessor.get_node_table()
        }

    def draining(self) -> dict[str, float | None]:
        """Return when drained machines will go, in seconds since the epoch; None if unknown."""
        found = self._accessor.get_draining_nodes()
        return {machine: at / 1000 if at else None for machine, at in found.items()}

    def free(self) -> dict[str, dict[str, float]]:
        """Return the resources that are free now, by machine."""
        rows = map(
            gcs_pb2.AvailableResources.FromString, self._accessor.get_all_available_resources()
        )
        return {row.node_id.hex(): dict(row.resources_available) for row in rows}


def node_of(row: gcs_pb2.ActorTableData, draining: Mapping[str, float | None]) -> EngineNode:
    """Return what a row of the actor table says of a node; ``draining`` has the time at which each
    machine will be taken.
    """
    started_at = row.start_time / 1000 or None
    if row.state == _STATES.ALIVE:
        return EngineNode(
            name=row.name,
            state=EngineState.RUNNING,
            started_at=started_at,
            notice_at=draining.get(row.node_id.hex()),
        )
    if row.state != _STATES.DEAD:
        return EngineNode(name=row.name, state=EngineState.WAITING)
    # Ray marks an actor when the market is about to take its machine.
    end, reason = _end(row.death_cause, taken=row.preempted)
    return EngineNode(
        name=row.name,
        state=EngineState.ENDED,
        started_at=started_at,
        ended_at=row.end_time / 1000,
        end=end,
        reason=reason,
    )


def _end(cause: common_pb2.ActorDeathCause, *, taken: bool) -> tuple[NodeEnd | None, str]:
    """Return why an actor ended; ``taken`` if the market took its machine, or was about to."""
    died = cause.actor_died_error_context
    said = re.sub(r"^The actor (is dead|died) because ", "", died.error_message)
    if exited := _EXIT.search(said):
        reason = f"the command exited with status {exited.group(1)}"
        return (NodeEnd.CAPACITY if taken else None), reason
    match cause.WhichOneof("context"):
        case "actor_unschedulable_context":
            return NodeEnd.CAPACITY, cause.actor_unschedulable_context.error_message
        case "runtime_env_failed_context":
            return None, cause.runtime_env_failed_context.error_message
        case "creation_task_failure_context":
            failure = cause.creation_task_failure_context.formatted_exception_string
            return None, failure.strip().rpartition("\n")[2]
        case "oom_context":
            return NodeEnd.DIED, cause.oom_context.error_message
    if died.reason == _REASONS.RAY_KILL:
        return (NodeEnd.CAPACITY if died.never_started else None), "stopped"
    return (NodeEnd.CAPACITY if taken else NodeEnd.DIED), said.partition(". ")[0]

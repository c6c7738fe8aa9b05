"""What the rows of Ray's actor table mean."""

from __future__ import annotations

import pytest

from duetune.core.fleet import NodeEnd
from duetune.fleets.driver import EngineState
from support.later import later

common = later("ray.core.generated.common_pb2")
gcs = later("ray.core.generated.gcs_pb2")
tables = later("duetune.fleets.ray.cluster_tables")

MACHINE = bytes(28)
EXIT = "The actor is dead because its worker process has died. Worker exits with an exit code {}."


def told(state, draining=None, **fields):
    number = gcs.ActorTableData.ActorState.Value(state)
    row = gcs.ActorTableData(name="a", node_id=MACHINE, state=number, **fields)
    return tables.node_of(row, draining or {})


def dead(message="", reason="WORKER_DIED", *, never_started=False, preempted=False):
    died = common.ActorDiedErrorContext(
        error_message=message,
        reason=common.ActorDiedErrorContext.Reason.Value(reason),
        never_started=never_started,
    )
    cause = common.ActorDeathCause(actor_died_error_context=died)
    return told("DEAD", start_time=1000, end_time=3000, death_cause=cause, preempted=preempted)


@pytest.mark.parametrize("state", ["DEPENDENCIES_UNREADY", "PENDING_CREATION"])
def test_an_actor_without_a_machine_waits(state):
    node = told(state)
    assert (node.state, node.started_at) == (EngineState.WAITING, None)


def test_an_actor_on_a_drained_machine_has_a_notice():
    node = told("ALIVE", {MACHINE.hex(): 60.0}, start_time=1500)
    assert (node.state, node.started_at, node.notice_at) == (EngineState.RUNNING, 1.5, 60.0)


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_that_ended_by_itself_has_no_end(code):
    node = dead(EXIT.format(code))
    assert (node.end, node.reason) == (None, f"the command exited with status {code}")
    assert (node.started_at, node.ended_at) == (1.0, 3.0)


def test_a_command_that_left_a_taken_machine_has_lost_its_capacity():
    assert dead(EXIT.format(0), preempted=True).end is NodeEnd.CAPACITY


@pytest.mark.parametrize(
    ("reason", "preempted", "end"),
    [
        ("NODE_DIED", False, NodeEnd.DIED),
        ("NODE_DIED", True, NodeEnd.CAPACITY),
        ("WORKER_DIED", False, NodeEnd.DIED),
        ("RAY_KILL", False, None),
    ],
)
def test_who_ended_an_actor_is_told(reason, preempted, end):
    node = dead("The actor died because its node has died. More.", reason, preempted=preempted)
    assert node.end is end
    assert node.reason == ("stopped" if reason == "RAY_KILL" else "its node has died")


def test_a_withdrawn_request_was_never_granted():
    node = dead(reason="RAY_KILL", never_started=True)
    assert node.end is NodeEnd.CAPACITY

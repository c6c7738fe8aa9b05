"""What the rows of Ray's actor table mean."""

from __future__ import annotations

import pytest

from duetune.core.fleet import NodeEnd
from duetune.fleets.driver import EngineState

pytest.importorskip("ray", reason="Ray is not installed: 'make ray' installs it")

from ray.core.generated import common_pb2, gcs_pb2

from duetune.fleets.ray.cluster_tables import _node

MACHINE = bytes(28)
STATES = gcs_pb2.ActorTableData.ActorState
REASONS = common_pb2.ActorDiedErrorContext
EXIT = "The actor is dead because its worker process has died. Worker exits with an exit code {}."


def row(state, **fields):
    return gcs_pb2.ActorTableData(name="a", node_id=MACHINE, state=state, **fields)


def dead(message="", reason=REASONS.WORKER_DIED, *, never_started=False, preempted=False):
    died = common_pb2.ActorDiedErrorContext(
        error_message=message, reason=reason, never_started=never_started
    )
    cause = common_pb2.ActorDeathCause(actor_died_error_context=died)
    return _node(
        row(STATES.DEAD, start_time=1000, end_time=3000, death_cause=cause, preempted=preempted), {}
    )


@pytest.mark.parametrize("state", [STATES.DEPENDENCIES_UNREADY, STATES.PENDING_CREATION])
def test_an_actor_without_a_machine_waits(state):
    node = _node(row(state), {})
    assert (node.state, node.started_at) == (EngineState.WAITING, None)


def test_an_actor_on_a_drained_machine_has_a_notice():
    node = _node(row(STATES.ALIVE, start_time=1500), {MACHINE.hex(): 60.0})
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
        (REASONS.NODE_DIED, False, NodeEnd.DIED),
        (REASONS.NODE_DIED, True, NodeEnd.CAPACITY),
        (REASONS.WORKER_DIED, False, NodeEnd.DIED),
        (REASONS.RAY_KILL, False, None),
    ],
)
def test_who_ended_an_actor_is_told(reason, preempted, end):
    node = dead("The actor died because its node has died. More.", reason, preempted=preempted)
    assert node.end is end
    assert node.reason == ("stopped" if reason == REASONS.RAY_KILL else "its node has died")


def test_a_withdrawn_request_was_never_granted():
    node = dead(reason=REASONS.RAY_KILL, never_started=True)
    assert node.end is NodeEnd.CAPACITY

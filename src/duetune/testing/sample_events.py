"""One event of every kind with every field set: what a journal must return unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.decision import Allocation, Outlook
from duetune.core.events import (
    Amend,
    Cancel,
    Decided,
    Disturbance,
    Disturbed,
    Ended,
    Learned,
    NodeRequest,
    Observed,
    Pause,
    Reported,
    Requested,
    Resume,
    Status,
    Submitted,
    UserRequested,
)
from duetune.core.fleet import Node, NodeEnd, NodeKind, NodeState, Task
from duetune.core.job import Job, linear_throughput
from duetune.core.market import Slot
from duetune.core.progress import Phase, Progress

if TYPE_CHECKING:
    from duetune.core.events import Event

_ORIGIN = 1_700_000_000.0
_SLOT_S = 1800.0


def submission(*, name: str = "tuning", spec: str = "{}") -> Submitted:
    """Return the submission of a job of 30 steps in 10 slots."""
    return Submitted(
        at=_ORIGIN + 7.5,
        spec=spec,
        job=Job(
            work=30.0,
            deadline=10,
            value=60.0,
            throughput=linear_throughput(6),
            budget=40.0,
            name=name,
        ),
        task=Task(
            folder="/jobs/tuning",
            module="duetune.training.worker",
            environment={"LANG": "C"},
            coordinated=True,
        ),
        policy="ahap",
        origin=_ORIGIN,
        slot_s=_SLOT_S,
        chosen="weight 0.8 of 112",
        max_price=2.5,
        outlook=Outlook(available=5.25, spot_price=0.31),
        stop_at=_ORIGIN + 40 * _SLOT_S,
    )


def decision(slot: int, *, reason: str = "spot is cheap") -> Decided:
    """Return a small decision that differs from slot to slot."""
    return Decided(
        at=_ORIGIN + slot * _SLOT_S,
        slot=slot,
        allocation=Allocation(spot=slot % 5, on_demand=slot % 3),
        reason=reason,
        memo=(0.1, float(slot)),
    )


def story() -> tuple[Event, ...]:
    """Return the events of a whole job in which every kind of event occurs."""
    node = Node(
        id="tuning-n1",
        job="tuning",
        kind=NodeKind.SPOT,
        state=NodeState.RUNNING,
        requested_at=_ORIGIN + 10,
        started_at=_ORIGIN + 20,
        billed=0.125,
    )
    taken = msgspec.structs.replace(
        node,
        state=NodeState.LOST,
        ended_at=_ORIGIN + 4000,
        notice_at=_ORIGIN + 3970,
        billed=1.75,
        reason="taken by the market",
        end=NodeEnd.CAPACITY,
    )
    released = Node(
        id="tuning-n2",
        job="tuning",
        kind=NodeKind.ON_DEMAND,
        state=NodeState.RELEASED,
        requested_at=_ORIGIN + 10,
        started_at=_ORIGIN + 11,
        ended_at=_ORIGIN + 3600,
        billed=0.75,
    )
    progress = Progress(
        step=12,
        total_steps=30,
        world=3,
        step_s=0.25,
        tokens=49_152,
        loss=1.75,
        eval_loss=1.875,
        base_eval_loss=2.5,
        checkpoint_step=10,
        phase=Phase.TRAINING,
        message="joined",
        at=_ORIGIN + 3000,
    )
    return (
        submission(spec='{"model": "org/model", "tags": {"team": "nlp"}}'),
        Observed(
            at=_ORIGIN + 9,
            slot=1,
            progress=0.0,
            held=Allocation(),
            market=Slot(spot_price=0.3, available=6, on_demand_price=1.0),
            forecast_price=(0.31, 0.29),
            forecast_available=(6, 5),
            spent=0.0,
            outlook=Outlook(available=5.25, spot_price=0.31),
            pace={1: 1.5, 3: 4.25},
        ),
        decision(1),
        Requested(
            at=_ORIGIN + 10,
            launches=(
                NodeRequest(node="tuning-n1", kind=NodeKind.SPOT, epoch=1),
                NodeRequest(node="tuning-n2", kind=NodeKind.ON_DEMAND, epoch=2),
            ),
        ),
        Requested(at=_ORIGIN + 12, releases=("tuning-n2",)),
        Reported(at=_ORIGIN + 3000, nodes=(node,), progress=progress, progress_at=_ORIGIN + 2999.5),
        UserRequested(at=_ORIGIN + 3100, wish_id=1, wish=Pause()),
        UserRequested(at=_ORIGIN + 3200, wish_id=2, wish=Resume()),
        UserRequested(
            at=_ORIGIN + 3300, wish_id=3, wish=Amend(deadline=_ORIGIN + 9000, budget=55.5)
        ),
        Disturbed(
            at=_ORIGIN + 3400,
            what=Disturbance.FLEET_SILENT,
            seconds=20.0,
            since=_ORIGIN + 3380,
            message="the fleet does not answer",
        ),
        Reported(at=_ORIGIN + 4001, nodes=(taken, released)),
        UserRequested(at=_ORIGIN + 4100, wish_id=4, wish=Cancel()),
        Ended(
            at=_ORIGIN + 4200,
            status=Status.CANCELLED,
            reason="cancelled",
            cost=2.5,
            value=0.5,
            finished_at=_ORIGIN + 4150,
            output="/jobs/tuning/output",
        ),
        Learned(at=_ORIGIN + 4300, pool="a1b2", policies=("ahap", "ahanp"), utilities=(3.5, -1.0)),
    )

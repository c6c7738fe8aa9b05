"""An engine fed by hand: one job, time counted in slots."""

from __future__ import annotations

import numpy as np

from duetune.core.decision import Forecast, Outlook
from duetune.core.events import NodeRequest, Reported, Requested, Submitted, UserRequested
from duetune.core.fleet import Node, NodeKind, NodeState, Task
from duetune.core.job import Job, linear_throughput
from duetune.core.market import Slot
from duetune.core.progress import Phase, Progress
from duetune.engine.engine import Engine
from duetune.registry.policies import policy_named

SLOT_S = 1800.0
ORIGIN = 1_700_000_000.0
TRAINING = Task(folder="folder", module="training")


def moment(slots):
    return ORIGIN + slots * SLOT_S


class Story:
    """Everything that was told to ``engine`` is in ``events``; it is validated each time."""

    def __init__(
        self,
        *,
        policy="maximal_spot",
        steps=120,
        stop_at=None,
        max_price=None,
        task=TRAINING,
        **terms,
    ):
        job = Job(
            **{
                "work": float(steps),
                "deadline": 12,
                "value": 60.0,
                "throughput": linear_throughput(4, slope=3.0),
                **terms,
            }
        )
        self.engine = Engine("job", policy_named)
        self.events = []
        self.requests = 0
        self.tell(
            Submitted(
                at=ORIGIN,
                spec="{}",
                job=job,
                task=task,
                policy=policy,
                origin=ORIGIN,
                slot_s=SLOT_S,
                stop_at=None if stop_at is None else moment(stop_at),
                max_price=max_price,
            )
        )

    @property
    def state(self):
        return self.engine.state

    def tell(self, event):
        commands = self.engine.handle(event)
        self.engine.validate()
        self.events.append(event)
        return commands

    def request(self, request, *, at=0.0):
        self.requests += 1
        return self.tell(UserRequested(moment(at), self.requests, request))

    def observed(self, at, *, price=0.3, available=4, pace=None):
        return self.engine.observed(
            at=moment(at),
            market=Slot(price, available, 1.0),
            forecast=Forecast(np.full(24, price), np.full(24, available)),
            outlook=Outlook(float(available), price),
            pace=pace or {},
        )

    def slot(self, at, **market):
        """A slot begins; returns what was decided, None if the job stops instead."""
        observed = self.observed(at, **market)
        self.tell(observed)
        if self.state.ending is not None:
            return None
        decided = self.engine.decide(observed)
        self.tell(decided)
        return decided

    def ask(self, at):
        """What is missing is requested; returns the event, None if nothing is."""
        event = self.engine.request(moment(at))
        if event is not None:
            self.tell(event)
        return event

    def launch(self, *names, at=0.0, kind=NodeKind.SPOT):
        epoch = self.engine.position + 1
        launches = tuple(NodeRequest(name, kind, epoch) for name in names)
        return self.tell(Requested(moment(at), launches=launches))

    def node(self, name, state=NodeState.RUNNING, *, at=0.0, since=0.0, **facts):
        kind = self.state.nodes[name].kind if name in self.state.nodes else NodeKind.SPOT
        started = None if state in {NodeState.REQUESTED, NodeState.REFUSED} else moment(since)
        ended = None if state.alive else moment(at)
        return Node(
            **{
                "id": name,
                "job": "job",
                "kind": kind,
                "state": state,
                "requested_at": moment(since),
                "started_at": started,
                "ended_at": ended,
                **facts,
            }
        )

    def report(self, *nodes, at=0.0, progress=None):
        return self.tell(
            Reported(moment(at), nodes, progress, None if progress is None else moment(at))
        )

    def run_all(self, at=0.0):
        """Every node that was asked for is granted."""
        nodes = [
            self.node(node.id, at=at, since=at)
            for node in self.state.alive()
            if node.state is NodeState.REQUESTED
        ]
        self.report(*nodes, at=at)

    def steps(self, step, *, at=0.0, phase=Phase.TRAINING, **facts):
        total = int(self.state.job.work)
        self.report(at=at, progress=Progress(step=step, total_steps=total, phase=phase, **facts))

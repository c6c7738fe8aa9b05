"""The engine as a state machine: any fleet, any training, any requests, in any order."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from duetune.core.decision import Forecast, Outlook
from duetune.core.events import (
    Amend,
    Cancel,
    Ended,
    Pause,
    Recorded,
    Reported,
    Requested,
    Resume,
    Status,
    Submitted,
    UserRequested,
)
from duetune.core.fleet import Launch, Limit, Node, NodeEnd, NodeKind, NodeState, Release, Task
from duetune.core.job import Job, linear_throughput
from duetune.core.market import Slot
from duetune.core.progress import Phase, Progress
from duetune.engine.engine import Engine
from duetune.registry.policies import policy_named
from duetune.simulate.journal_replay import redecided, state_of
from duetune.store.codec import decode_event, encode_event
from support.more import MORE
from support.strategies import decimals, reconfigurations

ORIGIN, SLOT_S = 1_700_000_000.0, 1800.0
POLICIES = ["ahap", "ahanp", "maximal_spot", "on_demand", "uniform_progress"]
ENDS = [NodeState.LOST, NodeState.RELEASED]


class EngineMachine(RuleBasedStateMachine):
    """A world that does whatever it likes with what the engine asks for."""

    @initialize(
        gpus=st.integers(1, 4),
        deadline=st.integers(1, 8),
        load=decimals(0.1, 1.2, 0.1),
        factor=st.sampled_from([1.0, 1.5, 2.0]),
        budget=st.none() | decimals(0, 20, 0.5),
        policy=st.sampled_from(POLICIES),
        rule=reconfigurations(),
        lasts=st.none() | decimals(0, 10, 0.5),
        max_price=st.none() | decimals(0.5, 2, 0.5),
    )
    def submit(self, gpus, deadline, load, factor, budget, policy, rule, lasts, max_price):
        job = Job(
            work=max(1.0, round(3 * gpus * deadline * load)),
            deadline=deadline,
            value=50.0,
            throughput=linear_throughput(gpus, slope=3.0),
            hard_deadline_factor=factor,
            reconfiguration=rule,
            budget=budget,
        )
        self.now = ORIGIN
        self.fleet: dict[str, Node] = {}
        self.cancelled: set[str] = set()
        self.told: dict[str, Node] = {}
        self.requests = 0
        self.limit = None
        self.launched: set[str] = set()
        self.strangers: set[str] = set()
        self.engine = Engine("job", policy_named)
        self.story: list[Recorded] = []
        self.happens(
            Submitted(
                at=ORIGIN,
                spec="{}",
                job=job,
                task=Task(folder="folder", module="training"),
                policy=policy,
                origin=ORIGIN,
                slot_s=SLOT_S,
                stop_at=None if lasts is None else ORIGIN + lasts * SLOT_S,
                max_price=max_price,
            )
        )

    @property
    def state(self):
        return self.engine.state

    @property
    def live(self):
        return not self.state.status.final

    def happens(self, event):
        """Handled as it was read back from the journal; the live engine sees the original."""
        body = encode_event(event).body
        self.engine.handle(event)
        again = decode_event(body, schema=1, stream="job", position=len(self.story) + 1)
        self.story.append(Recorded(len(self.story) + 1, again))

    # What the controller does

    @rule(slots=decimals(0.01, 2.5, 0.01))
    def time_passes(self, slots):
        self.now += slots * SLOT_S

    @precondition(lambda self: self.state.slot_is_due(self.now))
    @rule(
        price=decimals(0.05, 1.3, 0.05),
        available=st.integers(0, 6),
        pace=st.none() | decimals(0.05, 6, 0.05),
    )
    def slot_begins(self, price, available, pace):
        gpus = self.state.running().total
        observed = self.engine.observed(
            at=self.now,
            market=Slot(price, available, 1.0),
            forecast=Forecast(np.full(24, price), np.full(24, available)),
            outlook=Outlook(float(available), price),
            pace={gpus: pace} if pace and gpus else {},
        )
        assert observed.held.total <= self.state.job.max_gpus
        self.happens(observed)
        if self.state.ending is None:
            before = msgspec.json.encode(self.state)
            decided = self.engine.decide(observed)
            assert msgspec.json.encode(self.state) == before, "deciding changed something"
            self.happens(decided)

    @precondition(lambda self: self.live)
    @rule()
    def ask(self):
        event = self.engine.request(self.now)
        if event is not None:
            for launch in event.launches:
                assert launch.node not in self.launched
                self.launched.add(launch.node)
            assert not {launch.node for launch in event.launches} & set(event.releases)
            self.happens(event)
        assert self.engine.request(self.now) is None or self.waits(), "asked twice"

    def waits(self):
        """A request that was given up makes room for another at once; no other may follow."""
        return any(not self.state.nodes[name].state.alive for name in self.state.releasing)

    @precondition(lambda self: self.live)
    @rule()
    def end(self):
        """A controller looks at the fleet in the same turn."""
        self.report_nodes()
        event = self.engine.end(self.now)
        if event is not None:
            self.happens(event)

    # What the world does

    @rule(share=st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.2]))
    def fleet_hears(self, share):
        """All of what is outstanding, or only the first part of it, maybe for the second time."""
        commands = self.engine.outstanding()
        for command in commands[: math.ceil(share * len(commands))]:
            match command:
                case Launch():
                    self.start(command.node, command.kind)
                case Release():
                    self.stop(command.node)
                case Limit():
                    self.limit = command.dollars

    def start(self, name, kind):
        if name in self.fleet:
            return
        gone = name in self.cancelled
        self.fleet[name] = Node(
            id=name,
            job="job",
            kind=kind,
            state=NodeState.REFUSED if gone else NodeState.REQUESTED,
            requested_at=self.now,
            ended_at=self.now if gone else None,
        )

    def stop(self, name):
        node = self.fleet.get(name)
        if node is None:
            self.cancelled.add(name)
        elif node.state.alive:
            self.change(name, state=NodeState.RELEASED, ended_at=self.now, end=NodeEnd.RELEASED)

    def change(self, name, **facts):
        self.fleet[name] = msgspec.structs.replace(self.fleet[name], **facts)

    def of(self, *states):
        return sorted(name for name, node in self.fleet.items() if node.state in states)

    @precondition(lambda self: self.of(NodeState.REQUESTED))
    @rule(granted=st.integers(1, 15))
    def grant(self, granted):
        """Some of those that wait, by the bits of a number."""
        for place, name in enumerate(self.of(NodeState.REQUESTED)):
            if granted >> (place % 4) & 1:
                self.change(name, state=NodeState.RUNNING, started_at=self.now)

    @precondition(lambda self: self.of(NodeState.REQUESTED))
    @rule()
    def refuse(self):
        for name in self.of(NodeState.REQUESTED):
            self.change(name, state=NodeState.REFUSED, ended_at=self.now)

    @precondition(lambda self: self.of(NodeState.RUNNING))
    @rule(
        end=st.sampled_from(ENDS),
        paid=decimals(0, 3, 0.1),
        reason=st.sampled_from(["", "", "", "", "finished", "hopeless"]),
    )
    def node_ends(self, end, paid, reason):
        name = self.of(NodeState.RUNNING)[0]
        billed = self.fleet[name].billed + paid
        self.change(name, state=end, ended_at=self.now, billed=billed, reason=reason)

    @precondition(lambda self: self.of(NodeState.RUNNING))
    @rule(paid=decimals(0, 1, 0.1), warned=st.booleans())
    def time_is_billed(self, paid, warned):
        for name in self.of(NodeState.RUNNING):
            notice = self.now + 120 if warned else None
            self.change(name, billed=self.fleet[name].billed + paid, notice_at=notice)

    @precondition(lambda self: self.live and len(self.strangers) < 2)
    @rule(kind=st.sampled_from(list(NodeKind)))
    def stranger_appears(self, kind):
        name = f"stranger-{len(self.strangers)}"
        self.strangers.add(name)
        self.start(name, kind)
        self.change(name, state=NodeState.RUNNING, started_at=self.now)

    # What is told

    @precondition(lambda self: self.live)
    @rule()
    def report_nodes(self):
        news = [node for name, node in self.fleet.items() if self.told.get(name) != node]
        self.told.update((node.id, node) for node in news)
        if news:
            self.happens(Reported(self.now, tuple(news)))

    @precondition(lambda self: self.live)
    @rule(
        step=st.integers(0, 100),
        world=st.integers(0, 5),
        phase=st.sampled_from([Phase.TRAINING] * 8 + [Phase.FINISHED, Phase.FAILED]),
    )
    def report_progress(self, step, world, phase):
        progress = Progress(step=step, total_steps=100, world=world, phase=phase, output="out")
        final = self.state.progress if self.state.progress.phase.final else None
        self.happens(Reported(self.now, (), progress, self.now))
        assert final is None or self.state.progress == final

    @rule(
        request=st.sampled_from([Cancel(), Pause(), Resume(), Resume()])
        | st.builds(
            Amend,
            deadline=st.none() | decimals(-2, 20, 0.5).map(lambda slot: ORIGIN + slot * SLOT_S),
            budget=st.none() | decimals(-1, 30, 0.5),
        ),
        again=st.booleans(),
    )
    def request(self, request, again):
        """A number that was there before has no effect."""
        if isinstance(request, Cancel) and self.now < ORIGIN + 3 * SLOT_S:
            return
        self.requests += 1
        self.happens(UserRequested(self.now, self.requests, request))
        if again:
            before = msgspec.structs.replace(self.state)
            self.happens(UserRequested(self.now, self.requests, Cancel()))
            before.position += 1
            assert self.state == before

    # What must hold

    @invariant()
    def is_valid(self):
        if not hasattr(self, "engine"):
            return
        self.engine.validate()
        state = self.state
        assert self.engine.outstanding() == self.engine.outstanding()
        assert state.position == len(self.story)
        assert state.spent == math.fsum(node.billed for node in state.nodes.values())
        asked = [node for node in state.alive() if node.id not in self.strangers]
        assert len(asked) <= state.job.max_gpus
        assert state.held().total <= state.job.max_gpus
        for command in self.engine.outstanding():
            if isinstance(command, Launch):
                assert command.node in self.launched
                assert command.node not in state.releasing
            if isinstance(command, Limit):
                assert command.dollars == state.job.budget
        if state.status.final:
            assert not [c for c in self.engine.outstanding() if not isinstance(c, Limit)]

    @invariant()
    def no_more_live_than_may(self):
        if hasattr(self, "engine"):
            alive = set(self.of(NodeState.REQUESTED, NodeState.RUNNING)) - self.strangers
            assert len(alive) <= self.state.job.max_gpus
            assert alive <= self.launched

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        assert state_of(self.story, stream="job") == self.state, "the journal tells another story"
        assert all(each.same for each in redecided(self.story, policy_named))
        self.drain()

    def drain(self):
        """Cancelled and left alone, every job ends, with every node gone and paid."""
        self.happens(UserRequested(self.now, self.requests + 1, Cancel()))
        for _ in range(4):
            if not self.live:
                break
            self.now += 60.0
            self.ask()
            self.fleet_hears(1.0)
            self.report_nodes()
            never = [
                msgspec.structs.replace(node, state=NodeState.RELEASED, ended_at=self.now)
                for node in self.state.nodes.values()
                if node.state.alive and node.id in self.cancelled
            ]
            if never:
                self.happens(Reported(self.now, tuple(never)))
            self.end()
            self.is_valid()
        assert not self.live
        assert not self.of(NodeState.REQUESTED, NodeState.RUNNING)
        ended = self.story[-1].event if isinstance(self.story[-1].event, Ended) else None
        if ended is not None:
            assert ended.cost == math.fsum(node.billed for node in self.fleet.values())
        assert sum(isinstance(each.event, Ended) for each in self.story) == 1
        requests = [each for each in self.story if isinstance(each.event, Requested)]
        for each in requests:
            assert {launch.epoch for launch in each.event.launches} <= {each.position}
        assert self.state.status in {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}


EngineMachine.TestCase.settings = settings(max_examples=300 if MORE else 20, stateful_step_count=60)
TestEngine = EngineMachine.TestCase

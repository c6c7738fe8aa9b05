"""An engine fleet follows its ledger, whatever the engine says or forgets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetune.core.fleet import Launch, Limit, NodeEnd, NodeKind, NodeState, Release, Task
from duetune.core.node_contract import BAD_NODE, LEFT
from duetune.errors import FleetError
from duetune.fleets.driver import NodeOrder
from duetune.fleets.engine_fleet import engine_name
from duetune.fleets.node_ledger import NodeLedger
from duetune.testing.memory_driver import DriverFault
from support.engines import FAULTS, TIMES, EngineLab


@pytest.fixture
def lab():
    return EngineLab()


def look(lab, times=1, seconds=20.0):
    for _ in range(times):
        lab.clock.advance(seconds)
        lab.fleet.observe("job")


def test_the_ledger_knows_a_node_before_the_engine_does(lab):
    seen = []
    start = lab.driver.start
    lab.driver.start = lambda order: (seen.extend(lab.pages.read("job")), start(order))
    lab.launch("a")
    assert [page.node for page in seen] == ["a"]


def test_an_engine_that_is_away_takes_no_node_and_gets_the_calls_later(lab):
    lab.launch("a")
    look(lab)
    lab.driver.away = True
    lab.launch("b")
    lab.clock.advance(20.0)
    with pytest.raises(FleetError, match="does not answer"):
        lab.fleet.observe("job")
    lab.driver.away = False
    look(lab, 2)
    assert {lab.node("a").state, lab.node("b").state} == {NodeState.RUNNING}


def test_a_node_is_lost_only_if_the_engine_and_the_node_are_silent_for_long(lab):
    lab.launch("a")
    look(lab)
    lab.beat("a")
    lab.driver.forget(lab.name("a"))
    look(lab, 2)
    assert lab.node("a").state is NodeState.RUNNING, "it has reported 40 s ago"
    look(lab, 2)
    node = lab.node("a")
    assert (node.state, node.end) == (NodeState.LOST, NodeEnd.DIED)
    assert node.ended_at - node.started_at == pytest.approx(40.0), "when it was missed first"
    assert node.billed == pytest.approx(40 / 3600)


def test_what_the_engine_forgets_before_the_grant_is_asked_for_again():
    lab = EngineLab(grant_delay_s=30.0)
    lab.launch("a")
    look(lab, 1, 5.0)
    lab.driver.forget(lab.name("a"))
    look(lab, 1, 5.0)
    look(lab, 1, 31.0)
    assert lab.node("a").state is NodeState.RUNNING
    assert len(lab.driver.orders) == 2


def test_a_refusal_for_good_ends_the_node_with_the_words_of_the_engine(lab):
    lab.driver.fail(DriverFault.REFUSED, verb="start")
    lab.launch("a")
    node = lab.node("a")
    assert (node.state, node.end) == (NodeState.REFUSED, NodeEnd.CAPACITY)
    assert "refuses to start" in node.reason


def test_a_node_that_nobody_knows_is_stopped(lab):
    lab.driver.start(NodeOrder(name="dt-stray", job="x", kind=NodeKind.SPOT, command=("true",)))
    look(lab)
    assert lab.living() == []


def test_a_start_that_comes_after_the_release_is_stopped_and_its_order_is_gone(lab):
    lab.driver.fail(DriverFault.DELAYED, verb="start")
    lab.launch("a")
    lab.fleet.apply([Release("a", "job")])
    assert lab.files.orders == {}
    look(lab, 5)
    assert lab.living() == []
    assert lab.node("a").billed == 0


def test_a_preempted_node_has_a_notice_and_pays_until_it_was_taken(lab):
    lab.launch("a")
    look(lab)
    began = lab.node("a").started_at
    lab.driver.preempt(lab.name("a"), notice_s=30.0)
    look(lab)
    assert lab.node("a").notice_at == pytest.approx(lab.clock.now() + 10.0)
    look(lab, 4)
    node = lab.node("a")
    assert (node.state, node.end) == (NodeState.LOST, NodeEnd.CAPACITY)
    assert node.billed == pytest.approx((node.ended_at - began) / 3600)


def test_a_machine_that_failed_is_lost(lab):
    lab.launch("a")
    look(lab)
    lab.driver.kill(lab.name("a"))
    look(lab)
    assert (lab.node("a").state, lab.node("a").end) == (NodeState.LOST, NodeEnd.DIED)


@pytest.mark.parametrize(
    ("report", "end"),
    [
        ({"code": BAD_NODE}, NodeEnd.CRASHED),
        ({"code": LEFT, "notice_at": 1.0}, NodeEnd.CAPACITY),
        ({"code": LEFT, "limited": True}, NodeEnd.LIMIT),
        ({}, NodeEnd.DIED),
        (None, NodeEnd.CRASHED),
    ],
)
def test_how_a_node_ended_is_what_its_process_says(lab, report, end):
    lab.launch("a")
    look(lab)
    if report is not None:
        lab.beat("a", ended_at=lab.clock.now(), **report)
    lab.driver.finish(lab.name("a"))
    look(lab)
    assert lab.node("a").end is end


def test_a_lease_ends_when_the_money_does(lab):
    lab.launch("a")
    look(lab)
    spent = lab.node("a").billed
    assert lab.files.leases["job"] == pytest.approx(lab.clock.now() + TIMES.lease_s)
    lab.fleet.apply([Limit("job", spent + 100 / 3600)])
    look(lab)
    assert lab.files.leases["job"] == pytest.approx(lab.clock.now() + 80.0, abs=0.1)


def test_a_controller_that_was_away_bills_no_more_than_the_limit(lab):
    lab.launch("a")
    look(lab)
    lab.fleet.apply([Limit("job", 0.02)])
    look(lab)
    before = lab.node("a").billed
    look(lab, 1, 3600.0)
    node = lab.node("a")
    assert (node.state, node.end) == (NodeState.LOST, NodeEnd.LIMIT)
    assert before < node.billed <= 0.02


def test_who_only_reads_neither_asks_nor_changes_the_engine(lab):
    lab.driver.fail(DriverFault.UNHEARD, verb="start")
    lab.launch("a")
    reader = lab.new_fleet(looks=False)
    lab.driver.away = True
    lab.clock.advance(20.0)
    (node,) = reader.observe("job").nodes
    assert node.state is NodeState.REQUESTED
    assert lab.driver.orders == []


def test_a_stop_that_was_lost_at_the_end_of_the_last_job_is_not_forgotten(lab):
    lab.launch("a")
    look(lab)
    lab.driver.fail(DriverFault.UNHEARD, verb="stop")
    lab.fleet.apply([Release("a", "job")])
    assert len(lab.living()) == 1
    lab.driver.away = True
    assert lab.fleet.unfinished(), "the engine does not answer"
    lab.driver.away = False
    assert lab.fleet.unfinished(), "it is being stopped"
    assert not lab.fleet.unfinished()
    assert lab.living() == []


def test_another_process_goes_on_where_the_first_was(lab):
    lab.launch("a")
    look(lab)
    lab.fleet = lab.new_fleet()
    look(lab)
    assert lab.node("a").state is NodeState.RUNNING
    assert len(lab.driver.orders) == 1


def test_a_process_that_was_overtaken_writes_nothing(lab):
    lab.launch("a")
    ledger = NodeLedger(lab.pages)
    (old,) = ledger.of_job("job")
    look(lab)
    with pytest.raises(FleetError, match="another process"):
        ledger.write([old])
    assert lab.node("a").state is NodeState.RUNNING


def test_names_are_short_and_never_used_twice():
    task = Task(folder="/x")
    nodes = [("job", "n1", 1), ("job", "n1", 2), ("other", "n1", 1), ("job", "N.1" * 40, 1)]
    names = {
        engine_name("dt", Launch(node, job, NodeKind.SPOT, epoch, task))
        for job, node, epoch in nodes
    }
    assert len(names) == len(nodes)
    assert all(len(name) <= 63 and name.replace("-", "").isalnum() for name in names)


COMMANDS = st.sampled_from(["launch", "release", "preempt", "kill", "forget", "restart", "wait"])


@given(
    steps=st.lists(st.tuples(COMMANDS, st.integers(0, 3)), max_size=25),
    faults=st.lists(st.sampled_from([(None, None), *FAULTS]), max_size=25),
)
def test_after_any_faults_the_engine_runs_what_the_ledger_says(steps, faults):
    lab = EngineLab(spot=3)
    bills = {}
    for number, (step, choice) in enumerate(steps):
        verb, fault = faults[number] if number < len(faults) else (None, None)
        if fault is not None:
            lab.driver.fail(fault, verb=verb)
        known = lab.living()
        match step:
            case "launch":
                lab.launch(f"n{number}")
            case "release":
                lab.fleet.apply([Release(f"n{choice}", "job")])
            case "preempt" | "kill" | "forget" if known:
                getattr(lab.driver, step)(known[choice % len(known)])
            case "restart":
                lab.fleet = lab.new_fleet()
            case _:
                look(lab)
        for node in lab.fleet.observe("job").nodes:
            assert node.billed >= bills.get(node.id, 0.0), "a bill never falls"
            bills[node.id] = node.billed
    lab.driver._faults.clear()
    look(lab, 12)
    report = lab.fleet.observe("job")
    alive = sorted(lab.name(node.id) for node in report.nodes if node.state.alive)
    assert alive == lab.living()
    assert all(node.end is not None for node in report.nodes if not node.state.alive)


def test_an_ended_node_waits_for_its_last_words(lab):
    """Its report is on its way through a storage that is slow or away. It costs nothing more."""
    lab.launch("n1")
    lab.clock.advance(10.0)
    assert lab.node("n1").state is NodeState.RUNNING
    lab.files.unsettled.add(lab.name("n1"))
    lab.driver.finish(lab.name("n1"), 0)
    ended_at = lab.clock.now()
    billed = None
    for _ in range(5):
        lab.clock.advance(100.0)
        node = lab.node("n1")
        assert node.state is NodeState.RUNNING
        assert billed in {None, node.billed}
        billed = node.billed
    lab.beat("n1", code=0, ended_at=ended_at)
    lab.files.unsettled.clear()
    lab.clock.advance(10.0)
    node = lab.node("n1")
    assert (node.state, node.end, node.ended_at) == (
        NodeState.RELEASED,
        NodeEnd.FINISHED,
        ended_at,
    )


def test_a_node_that_the_engine_lists_is_not_lost_when_its_reports_stop(lab):
    """The storage is away; the engine says that the node runs."""
    lab.launch("n1")
    lab.clock.advance(10.0)
    lab.beat("n1")
    for _ in range(20):
        lab.clock.advance(100.0)
        assert lab.node("n1").state is NodeState.RUNNING


def test_a_node_that_the_engine_forgot_is_not_lost_before_the_storage_was_asked(lab):
    lab.launch("n1")
    lab.clock.advance(10.0)
    assert lab.node("n1").state is NodeState.RUNNING
    lab.files.unsettled.add(lab.name("n1"))
    lab.driver._nodes.clear()
    for _ in range(5):
        lab.clock.advance(100.0)
        assert lab.node("n1").state is NodeState.RUNNING
    lab.files.unsettled.clear()
    lab.clock.advance(100.0)
    assert lab.node("n1").end is NodeEnd.DIED

"""The conformance suite of fleets, built in or your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import (
    FleetReport,
    Launch,
    Limit,
    Node,
    NodeEnd,
    NodeKind,
    NodeState,
    Release,
    Task,
)
from duetune.core.node_contract import DONE, HOPELESS, LEFT
from duetune.core.ports import Fleet

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.fleet import Command

PATIENCE = 400
SPOT = 2
"""The exact number of spot GPUs that the fleet under test must have."""

ENDS = {
    NodeState.REFUSED: {
        NodeEnd.CAPACITY,
        NodeEnd.PRICE,
        NodeEnd.LIMIT,
        NodeEnd.CANCELLED,
        NodeEnd.RESTARTED,
        NodeEnd.STOPPED,
    },
    NodeState.LOST: {
        NodeEnd.CAPACITY,
        NodeEnd.PRICE,
        NodeEnd.LIMIT,
        NodeEnd.DIED,
        NodeEnd.RESTARTED,
        NodeEnd.STOPPED,
    },
    NodeState.RELEASED: {
        NodeEnd.RELEASED,
        NodeEnd.FINISHED,
        NodeEnd.HOPELESS,
        NodeEnd.CRASHED,
    },
}
"""The possible ends of a node in each state."""


class FleetContract:
    """Subclass it and implement ``make`` and ``wait``.

    - Override ``task`` and ``exiting`` if the fleet runs no shell.
    - Override ``exits`` if it runs no processes at all.
    - Override ``lose`` if a test can take a node from it.

    Prices must be above zero and constant for the length of a test.
    """

    def make(self) -> Fleet:
        """Return a fleet without nodes; called once in every test.

        It must have exactly ``SPOT`` spot nodes and some on-demand nodes.
        """
        raise NotImplementedError

    def wait(self) -> None:
        """Let some time pass on the fleet's clock; nodes are granted within a few calls."""
        raise NotImplementedError

    def task(self) -> Task:
        """Return a task that runs longer than any test."""
        return Task(folder="/nonexistent", command=("sleep", "600"))

    def exiting(self, code: int) -> Task:
        """Return a task that exits with status ``code`` as soon as it runs."""
        return msgspec.structs.replace(self.task(), command=("sh", "-c", f"exit {code}"))

    def exits(self, fleet: Fleet, node: str, code: int) -> None:
        """Make the node exit with ``code``, in a fleet that runs no processes.

        It is called after the launch of ``exiting(code)``.
        """

    def lose(self, fleet: Fleet, node: str) -> bool:  # noqa: ARG002 - for overriding
        """Take a running spot node, as the market or a failure would; return False if a test
        cannot.
        """
        return False

    def launch(
        self, node: str, *, job: str = "job", kind: NodeKind = NodeKind.SPOT, epoch: int = 1
    ) -> Launch:
        """Return the command that launches this node."""
        return Launch(node, job, kind, epoch, self.task())

    def eventually(
        self, fleet: Fleet, holds: Callable[[FleetReport], bool], *, job: str = "job"
    ) -> FleetReport:
        """Wait until ``holds`` is true of a report, and return that report.

        It also checks that every ended node in it has a valid end.
        """
        for _ in range(PATIENCE):
            report = fleet.observe(job)
            if holds(report):
                _check_ends(report)
                return report
            self.wait()
        raise AssertionError(f"the fleet did not get there; its last report: {report}")

    def running(self, *commands: Command) -> Fleet:
        """Return a fresh fleet that has carried out ``commands`` and whose nodes all run."""
        fleet = self.make()
        fleet.apply(commands)
        for job in {command.job for command in commands}:
            self.eventually(fleet, _all_run, job=job)
        return fleet

    def exited(self, code: int) -> Node:
        """Return a node whose command has exited with status ``code``."""
        fleet = self.make()
        fleet.apply([Launch("a", "job", NodeKind.ON_DEMAND, 1, self.exiting(code))])
        self.exits(fleet, "a", code)
        return _node(self.eventually(fleet, _none_lives), "a")

    def test_it_is_a_fleet(self) -> None:
        """The object implements the ``Fleet`` port."""
        assert isinstance(self.make(), Fleet)

    def test_a_node_that_is_asked_for_comes_to_run(self) -> None:
        """A launched node is alive at once and runs after a while."""
        fleet = self.make()
        fleet.apply([self.launch("a"), self.launch("b", kind=NodeKind.ON_DEMAND)])
        for node in fleet.observe("job").nodes:
            assert node.state.alive
        report = self.eventually(fleet, _all_run)
        assert [(node.id, node.kind) for node in report.nodes] == [
            ("a", NodeKind.SPOT),
            ("b", NodeKind.ON_DEMAND),
        ]
        for node in report.nodes:
            assert node.started_at is not None
            assert node.requested_at <= node.started_at <= report.at
            assert node.ended_at is None

    def test_asking_twice_makes_one_node(self) -> None:
        """Launching the same node again has no effect."""
        fleet = self.make()
        asked = [self.launch("a"), self.launch("a")]
        fleet.apply(asked)
        fleet.apply(asked)
        first = self.eventually(fleet, _all_run)
        fleet.apply(asked)
        again = fleet.observe("job")
        assert [node.id for node in first.nodes] == ["a"]
        assert [(node.id, node.started_at) for node in again.nodes] == [
            (node.id, node.started_at) for node in first.nodes
        ]

    def test_a_node_that_has_ended_is_not_made_again(self) -> None:
        """The name of an ended node is not used again."""
        fleet = self.running(self.launch("a"))
        fleet.apply([Release("a", "job")])
        fleet.apply([self.launch("a")])
        self.wait()
        (node,) = fleet.observe("job").nodes
        assert node.state is NodeState.RELEASED

    def test_no_commands_change_nothing(self) -> None:
        """An empty list of commands is allowed."""
        fleet = self.make()
        fleet.apply([])
        assert fleet.observe("job").nodes == ()

    def test_what_is_given_back_is_released_at_once(self) -> None:
        """A release takes effect at once and is recorded as such."""
        fleet = self.running(self.launch("a"))
        fleet.apply([Release("a", "job")])
        (node,) = fleet.observe("job").nodes
        assert node.state is NodeState.RELEASED
        assert node.end is NodeEnd.RELEASED
        assert node.started_at is not None
        assert node.ended_at is not None
        assert node.started_at <= node.ended_at

    def test_giving_back_twice_is_no_error(self) -> None:
        """Releasing a node again has no effect."""
        fleet = self.running(self.launch("a"))
        fleet.apply([Release("a", "job"), Release("a", "job")])
        before = fleet.observe("job").nodes
        self.wait()
        fleet.apply([Release("a", "job")])
        assert fleet.observe("job").nodes == before

    def test_commands_are_carried_out_in_order(self) -> None:
        """A later command sees the effect of an earlier one."""
        fleet = self.make()
        fleet.apply([self.launch("a"), Release("a", "job"), self.launch("b")])
        states = {node.id: node.state for node in fleet.observe("job").nodes}
        assert states["a"] is NodeState.RELEASED
        assert states["b"].alive

    def test_giving_back_the_unknown_keeps_it_from_being_launched_later(self) -> None:
        """A release that overtakes its launch cancels that launch, at no cost."""
        fleet = self.make()
        fleet.apply([Release("a", "job")])
        fleet.apply([self.launch("a"), self.launch("b")])
        report = self.eventually(fleet, lambda report: _state(report, "b") is NodeState.RUNNING)
        assert _state(report, "a") is NodeState.REFUSED
        assert _node(report, "a").billed == 0
        assert _node(report, "a").end is NodeEnd.CANCELLED

    def test_more_spot_than_there_is_is_refused_and_costs_nothing(self) -> None:
        """Launches beyond the spot capacity are refused with the reason CAPACITY."""
        fleet = self.make()
        fleet.apply([self.launch(f"n{number}") for number in range(SPOT + 2)])
        report = self.eventually(fleet, _none_waits)
        refused = [node for node in report.nodes if node.state is NodeState.REFUSED]
        assert [node.state for node in report.nodes].count(NodeState.RUNNING) == SPOT
        assert len(refused) == 2
        for node in refused:
            assert node.billed == 0
            assert node.end is NodeEnd.CAPACITY

    def test_what_is_given_back_can_be_had_again(self) -> None:
        """A released spot GPU can be launched again."""
        fleet = self.running(*(self.launch(f"n{number}") for number in range(SPOT)))
        fleet.apply([Release("n0", "job"), self.launch("other", job="next")])
        self.eventually(fleet, _all_run, job="next")

    def test_spot_is_one_market_for_all_jobs(self) -> None:
        """All jobs share the same spot capacity."""
        fleet = self.make()
        fleet.apply([self.launch(f"n{number}") for number in range(SPOT)])
        fleet.apply([self.launch("late", job="other")])
        (node,) = self.eventually(fleet, _none_waits, job="other").nodes
        assert node.state is NodeState.REFUSED

    def test_a_bill_grows_while_a_node_runs_and_never_after(self) -> None:
        """The bill of a node is final once the node has ended."""
        fleet = self.running(self.launch("a"))
        bills = []
        for _ in range(5):
            bills.append(_bill(fleet.observe("job")))
            self.wait()
        assert bills == sorted(bills)
        self.eventually(fleet, lambda report: _bill(report) > bills[-1])
        fleet.apply([Release("a", "job")])
        final = _bill(fleet.observe("job"))
        assert final > bills[-1]
        for _ in range(3):
            self.wait()
            assert _bill(fleet.observe("job")) == final

    def test_time_does_not_go_back(self) -> None:
        """The times of successive reports never decrease."""
        fleet = self.make()
        moments = []
        for _ in range(5):
            moments.append(fleet.observe("job").at)
            self.wait()
        assert moments == sorted(moments)
        assert moments[-1] > moments[0]

    def test_jobs_do_not_see_each_other(self) -> None:
        """A report contains the nodes of its job only."""
        fleet = self.running(self.launch("a", job="one"), self.launch("b", job="two"))
        assert [node.id for node in fleet.observe("one").nodes] == ["a"]
        assert [node.id for node in fleet.observe("two").nodes] == ["b"]
        assert fleet.observe("three").nodes == ()

    def test_jobs_do_not_end_each_others_nodes(self) -> None:
        """Equal node names of different jobs are different nodes."""
        fleet = self.running(self.launch("a", job="one"), self.launch("a", job="two"))
        fleet.apply([Release("a", "two")])
        self.wait()
        (mine,), (theirs,) = fleet.observe("one").nodes, fleet.observe("two").nodes
        assert (mine.job, mine.state) == ("one", NodeState.RUNNING)
        assert (theirs.job, theirs.state) == ("two", NodeState.RELEASED)

    def test_a_limit_is_kept_while_nobody_watches(self) -> None:
        """The fleet ends a job's nodes before its bill exceeds the limit."""
        fleet = self.running(self.launch("a"), self.launch("b", kind=NodeKind.ON_DEMAND))
        for _ in range(10):
            self.wait()
        # Far above what is spent, so it is not reached before the fleet knows of it.
        limit = 6 * _bill(fleet.observe("job"))
        fleet.apply([Limit("job", limit), self.launch("free", job="other")])
        report = self.eventually(fleet, _none_lives)
        assert 0 < _bill(report) <= limit
        assert {(node.state, node.end) for node in report.nodes} == {
            (NodeState.LOST, NodeEnd.LIMIT)
        }
        fleet.apply([self.launch("c")])
        assert _bill(self.eventually(fleet, _none_lives)) <= limit
        (other,) = fleet.observe("other").nodes
        assert other.state.alive

    def test_a_limit_can_be_lifted(self) -> None:
        """A limit of 0 refuses launches; once it is lifted, they are granted."""
        fleet = self.make()
        fleet.apply([Limit("job", 0.0), self.launch("a"), Limit("job", None), self.launch("b")])
        report = self.eventually(fleet, lambda report: _state(report, "b") is NodeState.RUNNING)
        assert _state(report, "a") is NodeState.REFUSED
        assert _node(report, "a").end is NodeEnd.LIMIT

    def test_a_node_that_lives_has_no_end(self) -> None:
        """A node that is alive has neither end nor reason."""
        (node,) = self.running(self.launch("a")).observe("job").nodes
        assert (node.end, node.reason) == (None, "")

    def test_a_command_that_exits_with_0_has_finished(self) -> None:
        """Exit status 0 means FINISHED."""
        node = self.exited(DONE)
        assert (node.state, node.end) == (NodeState.RELEASED, NodeEnd.FINISHED)

    def test_a_command_that_can_never_work_is_hopeless(self) -> None:
        """The status for "can never work" means HOPELESS."""
        node = self.exited(HOPELESS)
        assert (node.state, node.end) == (NodeState.RELEASED, NodeEnd.HOPELESS)

    def test_a_command_that_leaves_by_itself_gives_its_node_back(self) -> None:
        """The status for "left" means RELEASED."""
        node = self.exited(LEFT)
        assert (node.state, node.end) == (NodeState.RELEASED, NodeEnd.RELEASED)

    def test_a_node_that_is_taken_is_lost_and_says_why(self) -> None:
        """A node that was taken is LOST and has a reason."""
        fleet = self.running(self.launch("a"))
        if not self.lose(fleet, "a"):
            return
        node = _node(self.eventually(fleet, _none_lives), "a")
        assert node.state is NodeState.LOST
        assert node.reason


def _check_ends(report: FleetReport) -> None:
    """Check the end of every node; the engine would misread one that does not fit its state."""
    for node in report.nodes:
        if node.state.alive:
            assert node.end is None, node
        else:
            assert node.end in ENDS[node.state], node


def _all_run(report: FleetReport) -> bool:
    return bool(report.nodes) and all(node.state is NodeState.RUNNING for node in report.nodes)


def _none_waits(report: FleetReport) -> bool:
    return all(node.state is not NodeState.REQUESTED for node in report.nodes)


def _none_lives(report: FleetReport) -> bool:
    return not any(node.state.alive for node in report.nodes)


def _node(report: FleetReport, name: str) -> Node:
    (found,) = (node for node in report.nodes if node.id == name)
    return found


def _state(report: FleetReport, name: str) -> NodeState:
    return _node(report, name).state


def _bill(report: FleetReport) -> float:
    return sum(node.billed for node in report.nodes)

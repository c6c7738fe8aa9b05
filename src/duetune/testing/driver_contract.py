"""The conformance suite of drivers, built in or your own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from duetune.core.fleet import NodeEnd, NodeKind
from duetune.errors import FleetError
from duetune.fleets.driver import (
    CapacityDriver,
    CheckedDriver,
    Driver,
    EngineNode,
    EngineState,
    NodeOrder,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 1200
SIGNALLED = "the command got SIGTERM"

_SLEEPER = f"""
trap 'echo {SIGNALLED}' TERM
echo "$0 $1 $GREETING"
for each in $(seq 6000); do sleep 0.1; done
"""


class DriverContract:
    """Subclass it and implement ``make`` and ``wait``.

    - ``prefix``: how the names of the driver's fleet begin.
    - Override ``log`` if the engine runs processes: the suite reads their output there. Override
      ``finish`` and ``signalled`` if it does not.
    - Override ``fill``, ``preempt``, ``kill_node``, ``engine_down`` with ``engine_up``, and
      ``foreign`` if a test can do such a thing to the engine. What cannot be done is not tested.
    """

    prefix: str = "suite-"

    def make(self) -> Driver:
        """Return a driver of an engine that has room for one node of each kind, and no nodes."""
        raise NotImplementedError

    def wait(self) -> None:
        """Let some time pass; a node is granted, and gone after a stop, within some calls."""
        raise NotImplementedError

    def log(self, name: str) -> str:  # noqa: ARG002 - for overriding
        """Return the file that gets the output of the node's command."""
        return "/dev/null"

    def finish(self, driver: Driver, name: str, code: int) -> None:
        """End the node's command with ``code``, in an engine that runs no processes.

        It is called after the start of a node whose command does so by itself.
        """

    def signalled(self, driver: Driver, name: str) -> bool:  # noqa: ARG002 - for overriding
        """Return whether the node's command got SIGTERM."""
        return SIGNALLED in self.output(name)

    def fill(self, driver: Driver) -> bool:  # noqa: ARG002 - for overriding
        """Take all spot capacity, so that further orders wait; return False if a test cannot."""
        return False

    def preempt(self, driver: Driver, name: str) -> bool:  # noqa: ARG002 - for overriding
        """Let the engine take a running spot node; return False if a test cannot."""
        return False

    def kill_node(self, driver: Driver, name: str) -> bool:  # noqa: ARG002 - for overriding
        """Let the machine of a running node fail; return False if a test cannot."""
        return False

    def engine_down(self, driver: Driver) -> bool:  # noqa: ARG002 - for overriding
        """Stop what answers the driver, not the nodes; return False if a test cannot."""
        return False

    def engine_up(self, driver: Driver) -> None:
        """Start again what ``engine_down`` stopped."""

    def foreign(self, driver: Driver) -> bool:  # noqa: ARG002 - for overriding
        """Start a node that is not of this fleet; return False if a test cannot."""
        return False

    def order(self, name: str = "a", *, kind: NodeKind = NodeKind.SPOT) -> NodeOrder:
        """Return an order whose command runs longer than any test and survives SIGTERM."""
        full = self.prefix + name
        return NodeOrder(
            name=full,
            job="job",
            kind=kind,
            command=("sh", "-c", _SLEEPER, "it's", "a b", "$HOME"),
            environment={"GREETING": "x=1, y"},
            log=self.log(full),
        )

    def exiting(self, code: int) -> NodeOrder:
        """Return an order whose command exits with status ``code`` as soon as it runs."""
        name = f"{self.prefix}exit-{code}"
        command = ("sh", "-c", f"exit {code}")
        return NodeOrder(name=name, job="job", kind=NodeKind.SPOT, command=command)

    def output(self, name: str) -> str:
        """Return what the node's command has written so far."""
        path = Path(self.log(name))
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def until(self, holds: Callable[[], bool], story: Callable[[], object] = str) -> None:
        """Wait until ``holds`` is true; ``story`` says what was instead."""
        for _ in range(PATIENCE):
            if holds():
                return
            self.wait()
        raise AssertionError(f"the engine did not get there: {story()}")

    def eventually(self, driver: Driver, name: str, state: EngineState) -> EngineNode:
        """Wait until the node is in ``state``, and return it."""
        self.until(lambda: _state(driver, name) is state, driver.list)
        return _nodes(driver)[name]

    def running(self, order: NodeOrder) -> Driver:
        """Return a fresh driver whose node of this order runs its command."""
        driver = self.make()
        driver.start(order)
        self.eventually(driver, order.name, EngineState.RUNNING)
        if order.log != "/dev/null":
            self.until(lambda: "\n" in self.output(order.name))
        return driver

    def test_it_is_a_driver(self) -> None:
        """The driver has the three verbs."""
        assert isinstance(self.make(), Driver)

    def test_it_starts_without_nodes(self) -> None:
        """A fleet without nodes is an empty list, not an error."""
        assert list(self.make().list()) == []

    def test_a_node_of_each_kind_runs(self) -> None:
        """Both kinds are granted; a running node has a start and no end."""
        spot, on_demand = self.order("s"), self.order("d", kind=NodeKind.ON_DEMAND)
        driver = self.running(spot)
        driver.start(on_demand)
        self.eventually(driver, on_demand.name, EngineState.RUNNING)
        for node in _nodes(driver).values():
            assert node.started_at is not None
            assert (node.ended_at, node.end) == (None, None)

    def test_the_command_gets_its_words_and_variables(self) -> None:
        """Quotes, spaces and dollars reach the command as they are."""
        order = self.order()
        self.running(order)
        if order.log != "/dev/null":
            assert self.output(order.name).splitlines()[0] == "it's a b x=1, y"

    def test_the_same_order_twice_is_one_node(self) -> None:
        """A repeated order has no effect, before and after the node is granted."""
        order = self.order()
        driver = self.make()
        driver.start(order)
        driver.start(order)
        first = self.eventually(driver, order.name, EngineState.RUNNING)
        driver.start(order)
        self.wait()
        (node,) = driver.list()
        assert (node.name, node.started_at) == (order.name, first.started_at)
        driver.stop(order.name)
        self.until(lambda: _gone(driver, order.name), driver.list)
        self.wait()
        assert _gone(driver, order.name)

    def test_an_ended_node_is_not_started_again(self) -> None:
        """As long as the engine remembers a node, its name makes no second one."""
        order = self.exiting(0)
        driver = self.make()
        driver.start(order)
        self.finish(driver, order.name, 0)
        ended = self.eventually(driver, order.name, EngineState.ENDED)
        driver.start(order)
        self.wait()
        assert list(driver.list()) == [ended]

    def test_a_command_that_ends_by_itself_ends_its_node(self) -> None:
        """The engine is not to blame for the end, whatever the exit status is."""
        driver = self.make()
        for code in (0, 3):
            order = self.exiting(code)
            driver.start(order)
            self.finish(driver, order.name, code)
            node = self.eventually(driver, order.name, EngineState.ENDED)
            assert node.end is None
            assert node.started_at is not None
            assert node.ended_at is not None
            assert node.started_at <= node.ended_at

    def test_stop_ends_a_node(self) -> None:
        """A stopped node ends although its command ignores SIGTERM; a second stop is no error."""
        order = self.order()
        driver = self.running(order)
        driver.stop(order.name)
        driver.stop(order.name)
        self.until(lambda: _gone(driver, order.name), driver.list)
        driver.stop(order.name)
        assert _gone(driver, order.name)

    def test_stop_of_the_unknown_is_no_error(self) -> None:
        """A name that the engine never heard of can be stopped; other nodes stay."""
        order = self.order()
        driver = self.running(order)
        driver.stop(f"{self.prefix}never-started")
        assert _state(driver, order.name) is EngineState.RUNNING

    def test_stop_before_the_grant_withdraws_the_request(self) -> None:
        """A request that waits is listed as such; once stopped, it is never granted."""
        driver, order = self.make(), self.order("late")
        if not self.fill(driver):
            return
        driver.start(order)
        self.eventually(driver, order.name, EngineState.WAITING)
        self.wait()
        assert _state(driver, order.name) is EngineState.WAITING
        driver.stop(order.name)
        self.until(lambda: _gone(driver, order.name), driver.list)
        node = _nodes(driver).get(order.name)
        assert node is None or node.started_at is None

    def test_a_preempted_command_gets_sigterm_before_its_node_ends(self) -> None:
        """The end of a preempted node is CAPACITY."""
        order = self.order()
        driver = self.running(order)
        if not self.preempt(driver, order.name):
            return
        self.until(lambda: self.signalled(driver, order.name), driver.list)
        node = self.eventually(driver, order.name, EngineState.ENDED)
        assert node.end is NodeEnd.CAPACITY
        assert node.ended_at is not None
        assert node.reason

    def test_a_node_whose_machine_failed_has_died(self) -> None:
        """The end of such a node is DIED; stop of it is no error."""
        order = self.order()
        driver = self.running(order)
        if not self.kill_node(driver, order.name):
            return
        node = self.eventually(driver, order.name, EngineState.ENDED)
        assert node.end is NodeEnd.DIED
        driver.stop(order.name)

    def test_an_engine_that_is_away_is_an_error_and_loses_nothing(self) -> None:
        """No call returns while the engine is away; what ran before still runs afterwards."""
        order, other = self.order(), self.order("b", kind=NodeKind.ON_DEMAND)
        driver = self.running(order)
        if not self.engine_down(driver):
            return
        for call in (driver.list, lambda: driver.start(other), lambda: driver.stop(other.name)):
            failure = _failure(call)
            assert failure is not None
            assert failure.retry
        if isinstance(driver, CheckedDriver):
            assert any(each.wrong for each in driver.check())
        self.engine_up(driver)
        self.until(lambda: _answers(driver))
        driver.start(order)
        driver.start(other)
        self.eventually(driver, order.name, EngineState.RUNNING)
        self.eventually(driver, other.name, EngineState.RUNNING)
        assert sorted(_nodes(driver)) == [order.name, other.name]
        assert len(driver.list()) == 2

    def test_nodes_of_others_are_not_listed(self) -> None:
        """A fleet sees its own nodes only."""
        driver = self.make()
        if self.foreign(driver):
            self.wait()
            assert list(driver.list()) == []

    def test_capacity_is_a_number_of_gpus(self) -> None:
        """A driver that tells its capacity counts what is free."""
        driver = self.make()
        if isinstance(driver, CapacityDriver):
            before = driver.capacity()
            assert all(free is None or free > 0 for free in (before.spot, before.on_demand))
            if self.fill(driver):
                self.until(lambda: driver.capacity().spot in {0, None}, driver.capacity)

    def test_a_check_of_a_sound_engine_finds_nothing_wrong(self) -> None:
        """A check says what it looked at, and starts no node."""
        driver = self.make()
        if isinstance(driver, CheckedDriver):
            found = driver.check()
            assert found
            assert [each for each in found if each.wrong] == []
            assert list(driver.list()) == []


def _nodes(driver: Driver) -> dict[str, EngineNode]:
    return {node.name: node for node in driver.list()}


def _state(driver: Driver, name: str) -> EngineState | None:
    node = _nodes(driver).get(name)
    return None if node is None else node.state


def _gone(driver: Driver, name: str) -> bool:
    return _state(driver, name) in {None, EngineState.ENDED}


def _answers(driver: Driver) -> bool:
    return _failure(driver.list) is None


def _failure(call: Callable[[], object]) -> FleetError | None:
    try:
        call()
    except FleetError as error:
        return error
    return None

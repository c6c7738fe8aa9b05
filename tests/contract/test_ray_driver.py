"""The driver of Ray against a cluster on loopback: the suite of drivers, and faults of its own."""

# ruff: noqa: ARG002 - the suite decides what its hooks are given
from __future__ import annotations

import os
import signal
import time
from itertools import count

import msgspec
import pytest

from duetune.core.fleet import NodeEnd, NodeKind
from duetune.errors import FleetError
from duetune.fleets.driver import EngineState, NodeOrder
from duetune.fleets.engine_market import EngineMarket
from duetune.fleets.fleet_file import FleetFile
from duetune.fleets.ray.ray_driver import RayDriver
from duetune.fleets.ray.ray_settings import RaySettings
from duetune.fleets.real_time import RealClock
from duetune.testing import DriverContract
from support.patience import until
from support.ray_lab import made_lab, ray_lab

__all__ = ["ray_lab"]

GRACE_S = 2.0
NUMBERS = count()


@pytest.mark.live
def test_a_node_starts_once_and_stops_and_a_dead_machine_is_told(tmp_path):
    lab = made_lab()
    driver = RayDriver(RaySettings(address=lab.address, grace_s=GRACE_S), prefix="short-")
    try:
        lab.start("spot")
        orders = [
            NodeOrder(
                name=f"short-{letter}",
                job="job",
                kind=NodeKind.SPOT,
                command=("sleep", "600"),
                log=str(tmp_path / f"{letter}.log"),
            )
            for letter in "ab"
        ]
        for order in orders[:1] * 2:
            driver.start(order)
        until(lambda: _states(driver) == {"short-a": EngineState.RUNNING}, story=driver.list)
        driver.stop("short-a")
        until(lambda: _states(driver) == {"short-a": EngineState.ENDED}, story=driver.list)
        driver.start(orders[1])
        until(lambda: _states(driver)["short-b"] is EngineState.RUNNING, story=driver.list)
        lab.kill(until(lambda: lab.machine_of(orders[1].log)))
        until(lambda: _states(driver).get("short-b") is EngineState.ENDED, story=driver.list)
        assert {each.end for each in driver.list() if each.name == "short-b"} == {NodeEnd.DIED}
    finally:
        driver.close()
        lab.stop()


def _states(driver):
    return {each.name: each.state for each in driver.list()}


@pytest.mark.fleets
class TestRayDriver(DriverContract):
    """Every test has namespaces of its own, and leaves the cluster as it was."""

    @pytest.fixture(autouse=True)
    def _lab(self, ray_lab, tmp_path):
        self.lab = ray_lab
        self.folder = tmp_path
        self.drivers = []
        yield
        for driver in self.drivers:
            for node in driver.list():
                driver.stop(node.name)
        for driver in self.drivers:
            until(lambda: all(each.state is EngineState.ENDED for each in driver.list()), "an end")  # noqa: B023
            driver.close()
        self.lab.heal()

    def make(self, **settings):
        settings = {"grace_s": GRACE_S, "answer_s": 60.0} | settings
        namespace = f"{os.getpid()}-{next(NUMBERS)}"
        settings = RaySettings(address=self.lab.address, namespace=namespace, **settings)
        self.drivers.append(RayDriver(settings, prefix=self.prefix))
        return self.drivers[-1]

    def wait(self):
        time.sleep(0.2)

    def log(self, name):
        return str(self.folder / f"{name}.log")

    def fill(self, driver):
        other = self.make()
        for number in range(2):
            order = self.order(f"full-{number}")
            other.start(order)
            self.eventually(other, order.name, EngineState.RUNNING)
        return True

    def preempt(self, driver, name):
        machine = self.lab.machine_of(self.log(name))
        self.lab.drain(machine, 30.0)
        self.until(lambda: driver.list()[0].notice_at is not None, driver.list)
        assert 0 < driver.list()[0].notice_at - time.time() < 30
        self.until(lambda: self.signalled(driver, name), driver.list)
        self.lab.kill(machine)
        return True

    def kill_node(self, driver, name):
        self.lab.kill(self.lab.machine_of(self.log(name)))
        return True

    def engine_down(self, driver):
        self.lab.kill_head()
        return True

    def engine_up(self, driver):
        self.lab.restart_head()

    def test_a_node_of_two_gpus_needs_both_on_one_machine(self):
        """One GPU of each of two machines is busy: two are free, but no pair is."""
        machines = self.lab.add("pair", "pair", gpus=2)
        try:
            driver = self.make(spot="pair")
            self.until(lambda: driver.capacity().spot_by_machine == (2, 2), driver.capacity)
            orders = [self.order(f"single-{number}") for number in range(4)]
            for order in orders:
                driver.start(order)
                self.eventually(driver, order.name, EngineState.RUNNING)
            places = {self.lab.machine_of(self.log(order.name)): order.name for order in orders}
            for name in places.values():
                driver.stop(name)
            self.until(lambda: driver.capacity().spot_by_machine == (1, 1), driver.capacity)
            file = FleetFile(engine="ray", gpus_per_node=2)
            whole = EngineMarket(file, driver, None, RealClock()).now().slot
            assert (whole.available, whole.in_members(2).available) == (0, 0)
            part = EngineMarket(FleetFile(engine="ray"), driver, None, RealClock()).now().slot
            assert (part.available, part.in_members(2).available) == (2, 0)
            pair = msgspec.structs.replace(self.order("pair"), gpus=2)
            driver.start(pair)
            rest = next(each.name for each in orders if each.name not in places.values())
            driver.stop(rest)
            self.eventually(driver, pair.name, EngineState.RUNNING)
            for node in driver.list():
                driver.stop(node.name)
            self.until(lambda: driver.capacity().spot_by_machine == (2, 2), driver.capacity)
        finally:
            for machine in machines:
                self.lab.remove(machine)

    def foreign(self, driver):
        other = self.make()
        other.start(self.order())
        self.eventually(other, self.order().name, EngineState.RUNNING)
        return True

    def test_the_command_dies_with_the_raylet(self):
        """Ray ends the actor only, and the command runs no matter what Ray says."""
        order = self.order()
        self.running(order)
        (guard,) = self.lab.processes(order.log)
        self.lab.kill(self.lab.machine_of(order.log))
        self.until(lambda: not self.lab.processes("it's", "a b"), lambda: guard)
        assert self.signalled(None, order.name)

    def test_the_command_dies_with_its_guard(self):
        """Nobody is left who could end it."""
        order = self.order()
        driver = self.running(order)
        (guard,) = self.lab.processes(order.log)
        os.kill(guard, signal.SIGKILL)
        self.until(lambda: not self.lab.processes("it's", "a b"))
        assert self.eventually(driver, order.name, EngineState.ENDED).ended_at

    def test_a_killed_session_is_replaced_and_nodes_stay(self):
        order = self.order()
        driver = self.running(order)
        os.kill(driver._session.process.pid, signal.SIGKILL)
        with pytest.raises(FleetError) as caught:
            driver.list()
        assert caught.value.retry
        (node,) = driver.list()
        assert node.state is EngineState.RUNNING

    def test_a_driver_that_nobody_has_leaves_no_session(self):
        driver = self.make()
        driver.list()
        session = driver._session.process
        self.drivers.clear()
        del driver
        self.until(lambda: session.poll() is not None)

    def test_a_head_that_hangs_is_an_error_in_time(self):
        """It accepts connections, and Ray would wait for it without a limit."""
        order = self.order()
        driver = self.running(order)
        hasty = self.make(answer_s=1.0)
        hasty.list()
        self.lab.pause_head(paused=True)
        try:
            began = time.monotonic()
            with pytest.raises(FleetError) as caught:
                hasty.list()
            assert caught.value.retry
            assert time.monotonic() - began < 60
        finally:
            self.lab.pause_head(paused=False)
        (node,) = driver.list()
        assert node.state is EngineState.RUNNING

    def test_an_actor_that_does_not_answer_is_killed(self):
        """A stop ends the command of an actor that hangs, too."""
        order = self.order()
        driver = self.running(order)
        (actor,) = self.lab.actors()
        os.kill(actor, signal.SIGSTOP)
        driver.stop(order.name)
        self.eventually(driver, order.name, EngineState.ENDED)
        self.until(lambda: not self.lab.processes("it's", "a b"))

    def test_a_drained_command_that_leaves_has_lost_its_capacity(self):
        """Ray then ends the raylet, since the machine is idle; the exit status does not matter."""
        script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"
        order = msgspec.structs.replace(self.order(), command=("sh", "-c", script))
        driver = self.running(order)
        machine = self.lab.machine_of(order.log)
        self.lab.drain(machine, 600.0)
        node = self.eventually(driver, order.name, EngineState.ENDED)
        assert node.end is NodeEnd.CAPACITY
        self.until(lambda: machine not in self.lab.raylets())

    def test_a_command_that_cannot_start_ends_its_node(self):
        driver, order = self.make(), self.order()
        driver.start(msgspec.structs.replace(order, command=("/none",)))
        node = self.eventually(driver, order.name, EngineState.ENDED)
        assert (node.end, node.reason) == (None, "the command exited with status 127")
        assert "cannot run /none" in self.output(order.name)

    def test_an_order_that_ray_refuses_is_not_made_again(self):
        driver = self.make(label="not a label!")
        with pytest.raises(FleetError) as caught:
            driver.start(self.order())
        assert not caught.value.retry

    def test_machines_without_a_kind_are_found_wrong(self):
        found = self.make(spot="none").check()
        assert [each.wrong for each in found if each.wrong] == [
            "there are none now; only an autoscaler could add some"
        ]

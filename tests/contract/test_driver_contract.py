from __future__ import annotations

import duetune.fleets
from duetune.core.fleet import NodeKind
from duetune.fleets.driver import EngineState, NodeOrder
from duetune.testing import DriverContract, MemoryDriver
from support.discovery import classes_with


def test_every_driver_of_the_package_runs_through_the_suite():
    # test_slurm_driver.py, test_ray_driver.py and unit/fleets/test_skypilot_driver.py have theirs.
    found = {each.__name__ for each in classes_with(duetune.fleets, "start", "stop", "list")}
    assert found == {"RayDriver", "SkypilotDriver", "SlurmDriver"}


class TestMemoryDriver(DriverContract):
    grant_delay_s = 0.0

    def make(self):
        self.driver = MemoryDriver(prefix=self.prefix, grant_delay_s=self.grant_delay_s)
        return self.driver

    def wait(self):
        self.driver.clock.advance(7.0)

    def finish(self, driver, name, code):
        self.eventually(driver, name, EngineState.RUNNING)
        driver.finish(name, code)

    def signalled(self, driver, name):
        return name in driver.signalled

    def fill(self, driver):
        driver.spot = 0
        return True

    def preempt(self, driver, name):
        driver.preempt(name, notice_s=20.0)
        return True

    def kill_node(self, driver, name):
        driver.kill(name)
        return True

    def engine_down(self, driver):
        driver.away = True
        return True

    def engine_up(self, driver):
        driver.away = False

    def foreign(self, driver):
        driver.start(NodeOrder(name="other-a", job="j", kind=NodeKind.SPOT, command=("true",)))
        return True


class TestSlowMemoryDriver(TestMemoryDriver):
    grant_delay_s = 60.0

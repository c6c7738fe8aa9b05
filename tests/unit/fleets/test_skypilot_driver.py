"""The driver of SkyPilot and its bridge, against a stand-in for SkyPilot's SDK."""

# ruff: noqa: ARG002 - the suite decides what its hooks are given
from __future__ import annotations

import signal
import sys

import pytest

from duetune.core.fleet import NodeEnd, NodeKind
from duetune.errors import FleetError, MissingExtra
from duetune.fleets.driver import Capacity, EngineState, NodeOrder
from duetune.fleets.skypilot import SkypilotDriver, SkypilotSettings
from duetune.testing import DriverContract
from support.sky_stand_in import FakeSky


@pytest.fixture
def sky(tmp_path, monkeypatch):
    return FakeSky(tmp_path, monkeypatch)


@pytest.fixture
def drivers():
    made = []
    yield made
    for driver in made:
        driver.close()


def driver_of(drivers, prefix="suite-", **settings):
    known = {"spot": "slurm/lab/spot", "on_demand": "slurm/lab/guaranteed", "refresh_s": 1e-6}
    known |= {"sky_python": sys.executable, "answer_s": 60.0}
    drivers.append(SkypilotDriver(SkypilotSettings(**{**known, **settings}), prefix=prefix))
    return drivers[-1]


def order(name="suite-a", **changes):
    known = {"job": "job", "kind": NodeKind.SPOT, "command": ("sleep", "600")}
    return NodeOrder(name=name, **{**known, **changes})


class TestSkypilotDriver(DriverContract):
    @pytest.fixture(autouse=True)
    def _stand_in(self, sky, drivers):
        self.sky, self.drivers = sky, drivers

    def make(self):
        return driver_of(self.drivers)

    def wait(self):
        pass

    def finish(self, driver, name, code):
        self.sky["exits"] = {**self.sky["exits"], name: code}

    def signalled(self, driver, name):
        return True

    def fill(self, driver):
        self.sky["room"] = {"spot": 0, "on_demand": 2}
        return True

    def preempt(self, driver, name):
        self.sky.change(name, taken=True)
        return True

    def engine_down(self, driver):
        self.sky["away"] = True
        return True

    def engine_up(self, driver):
        self.sky["away"] = False

    def foreign(self, driver):
        other = driver_of(self.drivers, prefix="other-")
        other.start(order("other-a"))
        self.eventually(other, "other-a", EngineState.RUNNING)
        return True


def only(driver):
    (node,) = driver.list()
    return node


def test_a_failed_launch_is_a_refusal_with_the_words_of_skypilot(sky, drivers):
    sky["failure"] = "\x1b[1mno H100\x1b[0m\n in us-east-1"
    driver = driver_of(drivers)
    driver.start(order())
    node = only(driver)
    assert (node.state, node.end, node.started_at) == (EngineState.ENDED, NodeEnd.CAPACITY, None)
    assert node.reason == "ResourcesUnavailableError: no H100 in us-east-1"


def test_a_new_driver_finds_the_nodes_of_its_predecessor_and_how_they_ended(sky, drivers):
    first = driver_of(drivers)
    for name in ("suite-a", "suite-b"):
        first.start(order(name))
    assert {node.state for node in first.list()} == {EngineState.RUNNING}
    first.stop("suite-b")
    first.close()
    sky.change("suite-a", taken=True)
    second = driver_of(drivers)
    while any(node.state is EngineState.RUNNING for node in second.list()):
        pass
    ends = {node.name: node.end for node in second.list()}
    assert ends == {"suite-a": NodeEnd.CAPACITY, "suite-b": None}
    second.start(order())
    assert sky["launches"] == ["suite-a", "suite-b"]


def test_a_cluster_whose_command_has_ended_is_given_back(sky, drivers):
    driver = driver_of(drivers)
    driver.start(order())
    sky["exits"] = {"suite-a": 3}
    while only(driver).state is not EngineState.ENDED:
        pass
    assert only(driver).reason == "the command ended: FAILED"
    assert sky["clusters"] == {}


@pytest.mark.parametrize(("status", "end"), [("INIT", NodeEnd.DIED), ("STOPPED", NodeEnd.CAPACITY)])
def test_a_machine_that_skypilot_cannot_use_any_more_is_given_back(sky, drivers, status, end):
    driver = driver_of(drivers)
    driver.start(order())
    assert only(driver).state is EngineState.RUNNING
    sky.change("suite-a", status=status)
    node = only(driver)
    assert (node.state, node.end) == (EngineState.ENDED, end)
    assert sky["clusters"] == {}
    assert only(driver) == node


def test_a_launch_that_the_server_forgot_is_made_again(sky, drivers):
    """The API server drops its requests when it starts anew."""
    sky["room"] = {"spot": 0, "on_demand": 0}
    driver = driver_of(drivers)
    driver.start(order())
    assert only(driver).state is EngineState.WAITING
    sky["requests"] = {}
    assert list(driver.list()) == []
    driver.start(order())
    assert only(driver).state is EngineState.WAITING
    assert sky["launches"] == ["suite-a", "suite-a"]


def test_without_skypilot_the_extra_is_named():
    driver = SkypilotDriver(SkypilotSettings(infra="aws"), prefix="suite-")
    with pytest.raises(MissingExtra, match=r"duetune\[skypilot\]"):
        driver.list()


def test_a_python_without_skypilot_is_refused_for_good(tmp_path, drivers):
    for python in (str(tmp_path / "python"), "/usr/bin/python3"):
        with pytest.raises(FleetError, match=r"python") as raised:
            driver_of(drivers, sky_python=python).list()
        assert not raised.value.retry


@pytest.mark.usefixtures("sky")
def test_what_skypilot_refuses_is_refused_for_good(drivers):
    driver = driver_of(drivers, spot="wrong/lab")
    with pytest.raises(FleetError, match="not a valid cloud") as raised:
        driver.start(order())
    assert not raised.value.retry
    with pytest.raises(FleetError) as raised:
        driver.start(order("other-a"))
    assert not raised.value.retry


@pytest.mark.usefixtures("sky")
def test_a_kind_that_there_is_not_is_refused(drivers):
    driver = driver_of(drivers, spot="none")
    with pytest.raises(FleetError, match="no spot nodes") as raised:
        driver.start(order())
    assert not raised.value.retry


@pytest.mark.usefixtures("sky")
def test_free_gpus_are_counted_on_slurm_only(drivers):
    driver = driver_of(drivers, gpu="GPU")
    driver.start(order())
    assert only(driver).state is EngineState.RUNNING
    assert driver.capacity() == Capacity(1, 2)
    assert driver_of(drivers, gpu="GPU", spot="none").capacity() == Capacity(0, 2)
    assert driver_of(drivers, gpu="GPU", spot="aws").capacity() == Capacity(None, 2)
    assert driver_of(drivers, spot="aws", on_demand="aws", gpu="H100").capacity() == Capacity()


def test_a_check_names_what_is_wrong(sky, drivers):
    sky["failure"], sky["enabled"] = "aws is not enabled", []
    found = driver_of(drivers).check()
    assert [each.wrong for each in found] == [
        "",
        "run 'sky check', which says what is missing",
        "ResourcesUnavailableError: aws is not enabled",
        "ResourcesUnavailableError: aws is not enabled",
    ]


@pytest.mark.usefixtures("sky")
def test_a_server_that_hangs_is_an_error_in_time(drivers):
    driver = driver_of(drivers)
    driver.list()
    driver._session._session.process.send_signal(signal.SIGSTOP)
    driver._session._settings = SkypilotSettings(infra="aws", answer_s=0.05)
    with pytest.raises(FleetError, match="in time") as raised:
        driver.list()
    assert raised.value.retry
    driver._session._settings = driver.settings
    assert list(driver.list()) == []

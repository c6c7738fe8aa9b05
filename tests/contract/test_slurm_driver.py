"""The Slurm driver on a cluster of the test's own. ``make test-fleets`` runs all of it."""

# ruff: noqa: ARG002 - the suite decides what its hooks are given
from __future__ import annotations

import itertools
import signal
import time

import pytest

from duetune.core.fleet import NodeEnd, NodeKind
from duetune.errors import FleetError
from duetune.fleets.driver import Capacity, EngineState, NodeOrder
from duetune.fleets.engine_market import EngineMarket
from duetune.fleets.fleet_file import FleetFile
from duetune.fleets.real_time import RealClock
from duetune.fleets.slurm import SlurmDriver, SlurmSettings
from duetune.testing import DriverContract
from support.more import FLEETS
from support.patience import until
from support.slurm_lab import SlurmLab, missing

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        bool(missing()), reason="no Slurm on this machine: 'make slurm' installs it"
    ),
]
NUMBERS = itertools.count()


@pytest.fixture(scope="class")  # the suite has one, and every other test one of its own
def cluster():
    # Where no machine is killed, none is to be taken for dead because this one is busy.
    with SlurmLab(slurmd_timeout_s=10 if FLEETS else 300) as lab:
        yield lab


@pytest.fixture
def lab(cluster):
    yield cluster
    cluster.clear()


def driver_of(lab, prefix, **settings):
    known = {"spot": "spot", "on_demand": "guaranteed", "conf": lab.conf, "timeout_s": 60.0}
    return SlurmDriver(SlurmSettings(**{**known, **settings}), prefix=prefix)


def only(driver):
    (node,) = driver.list()
    return node


def until_state(driver, state):
    until(lambda: only(driver).state is state, state, story=driver.list, every_s=0.05)
    return only(driver)


def sleeper(name, **changes):
    known = {"job": "job", "kind": NodeKind.SPOT, "command": ("sleep", "600")}
    return NodeOrder(name=name, **{**known, **changes})


def test_a_node_starts_once_and_stops_and_a_silent_controller_is_an_error(lab):
    driver = driver_of(lab, "short-")
    log = lab.folder / "short.log"
    command = ("sh", "-c", 'echo "$0 $GREETING"; exec sleep 600', "it's")
    order = sleeper("short-a", command=command, environment={"GREETING": "a, b"}, log=str(log))
    driver.start(order)
    driver.start(order)
    until_state(driver, EngineState.RUNNING)
    until(log.exists)
    until(lambda: log.read_text() == "it's a, b\n", story=log.read_text)
    assert driver.capacity().spot == len(lab.nodes) - 1
    # Stopped, not killed: whatever asks it gets no answer.
    lab.daemons["slurmctld"].send_signal(signal.SIGSTOP)
    try:
        for call in (driver.list, lambda: driver.start(order), lambda: driver.stop("short-a")):
            driver._commands._timeout_s = 0.5
            with pytest.raises(FleetError) as raised:
                call()
            assert raised.value.retry
    finally:
        lab.daemons["slurmctld"].send_signal(signal.SIGCONT)
        driver._commands._timeout_s = 60.0
    assert only(driver).state is EngineState.RUNNING
    driver.stop("short-a")
    assert until_state(driver, EngineState.ENDED).end is None
    driver.start(order)
    assert only(driver).state is EngineState.ENDED


@pytest.mark.fleets
class TestSlurmDriver(DriverContract):
    @pytest.fixture(autouse=True)
    def _in_the_lab(self, lab):
        self.lab = lab
        self.prefix = f"suite{next(NUMBERS)}-"

    def make(self):
        return driver_of(self.lab, self.prefix)

    def wait(self):
        time.sleep(0.1)

    def log(self, name):
        return str(self.lab.folder / f"{name}.100%.log")

    def fill(self, driver):
        self._take("spot")
        until(lambda: not self.lab.idle())
        return True

    def preempt(self, driver, name):
        self._take("guaranteed")
        return True

    def kill_node(self, driver, name):
        self.lab.kill(self.lab.run("squeue", "-h", "-n", name, "-o", "%N").strip())
        return True

    def engine_down(self, driver):
        self.lab.kill("slurmctld", signal.SIGTERM)
        return True

    def engine_up(self, driver):
        self.lab.start_controller()

    def foreign(self, driver):
        self.lab.submit("other-a", "spot", "sleep 600")
        return True

    def _take(self, partition):
        for number in range(len(self.lab.nodes)):
            self.lab.submit(f"other-{number}", partition, "sleep 600")


@pytest.mark.fleets
def test_the_notice_of_a_preemption_is_the_end_of_its_grace_time(lab):
    driver = driver_of(lab, "notice-")
    log = lab.folder / "notice.log"
    # Slurm sends SIGTERM with the notice. Who does not ignore it is gone before the next look.
    patient = ("sh", "-c", "trap '' TERM; echo ready; sleep 600")
    driver.start(sleeper("notice-a", command=patient, log=str(log)))
    until(lambda: log.exists() and "ready" in log.read_text(), "a start", story=driver.list)
    began = time.time()
    for number in range(len(lab.nodes)):
        lab.submit(f"other-{number}", "guaranteed", "sleep 600")
    until(lambda: only(driver).notice_at, "a notice", story=driver.list)
    noticed = only(driver)
    assert noticed.state is EngineState.RUNNING
    assert began + 5 < noticed.notice_at < time.time() + 15
    assert until_state(driver, EngineState.ENDED).end is NodeEnd.CAPACITY


@pytest.mark.fleets
def test_a_controller_that_was_killed_may_forget_a_node_but_never_starts_two(lab):
    driver = driver_of(lab, "killed-")
    order = sleeper("killed-a")
    driver.start(order)
    lab.kill("slurmctld")
    with pytest.raises(FleetError) as raised:
        driver.list()
    assert raised.value.retry
    lab.start_controller()
    driver.start(order)
    until_state(driver, EngineState.RUNNING)
    assert len(lab.run("squeue", "-h", "-n", "killed-a").splitlines()) == 1


@pytest.mark.fleets
def test_the_second_of_two_requests_is_withdrawn_and_never_runs(lab):
    driver = driver_of(lab, "twice-")
    driver._known = lambda _: False  # as two calls at the same time find it
    order = sleeper("twice-a", command=("sleep", "3"))
    driver.start(order)
    driver.start(order)
    until_state(driver, EngineState.RUNNING)
    assert until_state(driver, EngineState.ENDED).reason == "COMPLETED"
    time.sleep(2)
    assert until_state(driver, EngineState.ENDED).reason == "COMPLETED"
    states = lab.run("squeue", "-h", "-t", "all", "-n", "twice-a", "-o", "%T").split()
    assert sorted(states) == ["CANCELLED", "COMPLETED"]


@pytest.mark.fleets
def test_slurm_withdraws_what_it_cannot_grant_in_time_though_nobody_watches(lab):
    driver = driver_of(lab, "late-", hours=1 / 60)
    for number in range(len(lab.nodes)):
        lab.submit(f"other-{number}", "guaranteed", "sleep 600")
    until(lambda: not lab.idle(), story=lab.story)
    driver.start(sleeper("late-a", withdraw_at=time.time() + 5))
    assert only(driver).state is EngineState.WAITING
    node = until_state(driver, EngineState.ENDED)
    assert node.end is NodeEnd.CAPACITY
    assert node.started_at is None


@pytest.mark.fleets
@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"spot": "nowhere"}, {}),
        ({"gpus": "gpu:h100"}, {}),
        ({"extra": "--no-such-option"}, {}),
        ({}, {"gpus": 9}),
    ],
)
def test_what_slurm_refuses_is_refused_for_good(lab, settings, changes):
    # Slurm lists some of the refused jobs as failed ones, so each has a name of its own.
    driver = driver_of(lab, "no-", **settings)
    with pytest.raises(FleetError) as raised:
        driver.start(sleeper(f"no-{next(NUMBERS)}", **changes))
    assert not raised.value.retry


@pytest.mark.fleets
def test_priorities_and_secrets(lab, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    driver = driver_of(lab, "mild-", nice=2)
    log = lab.folder / "mild.log"
    driver.start(sleeper("mild-a", priority=10, command=("env",), log=str(log)))
    until_state(driver, EngineState.ENDED)
    until(lambda: "SLURM_JOB_ID" in log.read_text())
    assert "secret" not in log.read_text()
    assert "Nice=1980 " in lab.run("scontrol", "-o", "show", "job")


@pytest.mark.fleets
@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"spot": "nowhere"}, "partition nowhere is up"),
        ({"gpus": "gpu:h100"}, "partition spot has gpu:h100"),
        ({"spot": "guaranteed", "on_demand": "spot"}, "jobs in guaranteed are preempted"),
    ],
)
def test_a_check_names_what_is_wrong(lab, settings, wrong):
    found = driver_of(lab, "check-", **settings).check()
    assert any(each.wrong and each.what.startswith(wrong) for each in found)


@pytest.mark.fleets
def test_nodes_are_counted_where_a_cluster_has_no_gpus_to_count(lab):
    driver = driver_of(lab, "whole-", gpus="", extra="--exclusive")
    assert driver.capacity().on_demand == len(lab.nodes)
    driver.start(sleeper("whole-a"))
    until_state(driver, EngineState.RUNNING)
    assert driver.capacity().on_demand == len(lab.nodes) - 1


@pytest.mark.fleets
def test_a_node_of_two_gpus_needs_both_on_one_machine():
    """One GPU of each of two machines is busy: two are free, but no pair is."""
    with SlurmLab(2, gpus=2) as lab:
        driver = driver_of(lab, "pair-")
        assert driver.capacity() == Capacity(4, 4, (2, 2))
        driver.start(sleeper("pair-a", gpus=2))
        until_state(driver, EngineState.RUNNING)
        assert driver.capacity().spot_by_machine == (2,)
        driver.stop("pair-a")
        until_state(driver, EngineState.ENDED)
        for machine in lab.nodes:
            lab.submit(f"other-{machine}", "spot", "sleep 600", f"--nodelist={machine}")
        until(lambda: driver.capacity().spot_by_machine == (1, 1), story=lab.story)
        file = FleetFile(engine="slurm", gpus_per_node=2)
        whole = EngineMarket(file, driver, None, RealClock()).now().slot
        assert (whole.available, whole.in_members(2).available) == (0, 0)
        part = EngineMarket(FleetFile(engine="slurm"), driver, None, RealClock()).now().slot
        assert (part.available, part.in_members(2).available) == (2, 0)
        driver.start(sleeper("pair-b", gpus=2))
        lab.run("scancel", "--name=other-n1")
        until(
            lambda: any(node.state is EngineState.RUNNING for node in driver.list()),
            story=lab.story,
        )
        assert lab.place("pair-b") == "n1"

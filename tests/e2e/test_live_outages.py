"""Processes that stand still, a clock that is set, a database that is gone: the job goes on."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from duetune.core.events import Disturbance, Disturbed
from duetune.registry.policies import policy_named
from duetune.simulate.journal_replay import redecided
from duetune.wall_clock import OFFSET_FILE
from support.accounts import accounted, never_two_at_once
from support.live_home import LEFT_RUNNING, LiveHome
from support.more import MORE

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings(LEFT_RUNNING)]

STOP_S = 30.0 if MORE else 0.5
PRICE = 0.9


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """One home for all outages. Calls time out soon, and the wall clock can be set."""
    home = LiveHome(tmp_path_factory.mktemp("outages"))
    offset = home.folder / "offset"
    offset.write_text("0")
    home.environment |= {OFFSET_FILE: str(offset), "DUETUNE_FLEET_TIMEOUT_S": "0.5"}
    home.start_fleet(home.market((PRICE, 2)), slot_wall_s=20.0 if MORE else 4.0)
    yield home
    home.close()


@pytest.fixture(scope="module")
def job(home):
    """A job that runs through all outages, and then has finished and was billed to the cent."""
    enough = home.folder / "enough"
    command = f"{home.command(10_000, 0.1)} {enough}"
    name = home.launch(home.spec(steps=100, run=json.dumps(command)))
    home.until_step(name, 2)
    yield name
    enough.touch()
    assert home.until_over(name).status == "SUCCEEDED"
    nodes = accounted(home, name)
    assert never_two_at_once(nodes)
    for node in nodes:
        if node.started_at is not None:
            hours = (node.ended_at - node.started_at) / 3600
            assert node.billed == pytest.approx(PRICE * hours, abs=1e-4)
    assert all(each.same for each in redecided(home.story(name), policy_named))


def disturbed(home, job, what):
    """The event of this kind, once there is one."""

    def found():
        events = [recorded.event for recorded in home.story(job)]
        return [e for e in events if isinstance(e, Disturbed) and e.what is what]

    return home.until(found, f"the event {what}")[-1]


def stopped(*pids):
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def goes_on(*pids):
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def test_a_provider_that_hangs_is_an_event_and_reading_does_without_it(home, job):
    provider, controller = home.json("fleet", "status")["pid"], home.controller()
    stopped(provider)
    began = time.monotonic()
    assert home.json("status", job)["status"]["fleet_silent_s"] is not None
    home.until(lambda: "has not answered for" in home.run("queue").stdout, "the queue's word")
    assert "has not answered for" in home.run("status", job).stdout
    assert "the fleet did not answer: " in home.run("explain", job).stdout
    assert "begins at step" in home.run("logs", job).stdout
    assert "does not answer" in home.run("fleet", "status", status=4).stderr
    assert "does not answer" in home.run("amend", job, "--value=9", "--yes", status=4).stderr
    time.sleep(max(0.0, STOP_S - (time.monotonic() - began)))
    goes_on(provider)
    assert disturbed(home, job, Disturbance.FLEET_ANSWERS).seconds > 2
    assert "does not answer" not in home.run("queue").stdout
    assert home.controller() == controller
    home.until_step(job, home.step(job) + 2)


def test_a_controller_that_hangs_goes_on_and_one_that_dies_is_started_again(home, job):
    controller = home.controller()
    stopped(controller)
    time.sleep(STOP_S)
    home.until_step(job, home.step(job) + 2)
    goes_on(controller)
    os.kill(controller, signal.SIGKILL)
    again = home.until(lambda: home.controller() not in {controller, None}, "the next controller")
    assert again
    home.run("fleet", "stop", status=2)  # the next controller knows of the job


def test_processes_and_a_machine_that_stood_still_come_back_with_the_same_workers(home, job):
    worker, nodes = home.process("pretend_trainer.py"), home.fleet_alive(job)
    agent = home.parent(home.process("bash -c"))
    for pids in ((worker,), (agent,), (agent, worker), tuple(home.processes())):
        stopped(*pids)
        time.sleep(STOP_S)
        goes_on(*pids)
        home.until_step(job, home.step(job) + 1)
    assert home.process("pretend_trainer.py") == worker
    assert [node.id for node in home.fleet_alive(job)] == [node.id for node in nodes]


def until_looked_at(home, job):
    """The controller may have just begun; it knows clock and database once it has seen the job."""
    seen = len(home.story(job))
    home.until(lambda: len(home.story(job)) > seen, "the controller's next event")


def test_a_wall_clock_that_is_set_moves_neither_the_market_nor_the_bill(home, job):
    until_looked_at(home, job)
    fleet = home.fleet()
    market, real = fleet.clock.now(), time.monotonic()
    for offset in (600, 0):
        (home.folder / "offset").write_text(str(offset))
        step = offset or -600
        home.until(
            lambda step=step: f"set by {step:+} s" in home.run("explain", job).stdout, "the step"
        )
        home.until_step(job, home.step(job) + 2)
    elapsed = (fleet.clock.now() - market) / fleet.speed
    assert elapsed == pytest.approx(time.monotonic() - real, abs=60)


def test_a_database_that_is_gone_frees_the_gpus_and_can_be_put_back(home, job, tmp_path):
    until_looked_at(home, job)
    database = home.path / "duetune.db"
    stranger = tmp_path / "other.db"
    stranger.touch()
    for remove in (database.unlink, lambda: stranger.replace(database)):
        remove()
        home.until(lambda: home.controller() is None, "the controller's end")
        home.until(
            lambda: home.json("controller", "status")["supervisor"] is None, "its supervisor's end"
        )
        assert not home.fleet_alive(job)
        database.unlink(missing_ok=True)
        refused = home.run("status", job, status=4).stderr
        assert refused.count("\n") == 1
        saved = max(home.path.glob("duetune-rescued-*.db"))
        assert f"'mv {saved} {database}'" in refused
        assert not database.exists()
        saved.rename(database)
        assert "No controller is running" in home.run("status", job).stdout
        home.run("controller", "start")
        home.until_step(job, home.step(job) + 2)

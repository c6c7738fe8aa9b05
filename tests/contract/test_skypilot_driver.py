"""The driver of SkyPilot on a real SkyPilot, which runs a Slurm cluster of the test's own.

The suite of drivers runs against a stand-in (``tests/unit/fleets``), since a launch takes a minute
here. This is one life of each kind of node.
"""

from __future__ import annotations

import pytest

from duetune.core.fleet import NodeEnd, NodeKind
from duetune.errors import FleetError
from duetune.fleets.driver import EngineState, NodeOrder
from duetune.fleets.skypilot import SkypilotDriver, SkypilotSettings
from support.patience import until
from support.sky_lab import PYTHON, SkyLab, missing

pytestmark = [
    pytest.mark.live,
    pytest.mark.fleets,
    pytest.mark.skipif(
        bool(missing()), reason=f"not here: {', '.join(missing())}; 'make skypilot' installs it"
    ),
]
SLEEPER = """
trap 'echo the command got SIGTERM' TERM
echo "$0 $GREETING"
for each in $(seq 6000); do sleep 0.1; done
"""


@pytest.fixture(scope="module")
def lab():
    with SkyLab() as found:
        yield found


@pytest.fixture
def driver(lab, monkeypatch):
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)
    settings = SkypilotSettings(
        spot="slurm/lab/spot",
        on_demand="slurm/lab/guaranteed",
        cpus="1",
        memory="1",
        sky_python=str(PYTHON),
        refresh_s=5.0,
        answer_s=120.0,
    )
    found = SkypilotDriver(settings, prefix=lab.prefix)
    yield found
    found.close()
    lab.clear()


def order(lab, name, command, **changes):
    known = {"job": "job", "kind": NodeKind.SPOT, "environment": {"GREETING": "a, b"}}
    log = str(lab.folder / f"{name}.out")
    return NodeOrder(name=lab.prefix + name, command=command, log=log, **{**known, **changes})


def nodes(driver):
    return {node.name.removeprefix(driver.prefix): node for node in driver.list()}


def until_state(lab, driver, state, *names):
    def told():
        return f"{driver.list()}\n{lab.story()}"

    def there():
        found = nodes(driver)
        return all(name in found and found[name].state is state for name in names)

    until(there, state, story=told, every_s=0.5)
    return nodes(driver)


def test_nodes_are_launched_preempted_ended_and_given_back(lab, driver):
    assert [each for each in driver.check() if each.wrong] == []
    assert list(driver.list()) == []
    sleeper = ("bash", "-c", SLEEPER, "it's")
    taken = order(lab, "taken", sleeper)
    ending = order(lab, "ending", ("sh", "-c", "exit 3"), kind=NodeKind.ON_DEMAND)
    for each in (taken, taken, ending):
        driver.start(each)
    assert nodes(driver)["taken"].state is EngineState.WAITING
    until_state(lab, driver, EngineState.RUNNING, "taken")
    log = lab.folder / "taken.out"
    until(lambda: log.exists() and "\n" in log.read_text(), "output", story=lab.story)
    assert log.read_text() == "it's a, b\n"

    # What ended by itself has no cluster any more, and is never launched again.
    ended = until_state(lab, driver, EngineState.ENDED, "ending")["ending"]
    assert (ended.end, ended.reason) == (None, "the command ended: FAILED")
    assert ended.started_at <= ended.ended_at
    until(lambda: ending.name not in lab.sky("status"), "its end", story=lab.story, every_s=1)
    driver.start(ending)
    assert nodes(driver)["ending"] == ended

    # Another user takes both machines.
    assert nodes(driver)["taken"].state is EngineState.RUNNING
    for number in range(2):
        lab.slurm.submit(f"urgent-{number}", "guaranteed", "sleep 600", "--exclusive")
    lost = until_state(lab, driver, EngineState.ENDED, "taken")["taken"]
    assert lost.end is NodeEnd.CAPACITY
    assert lost.started_at < lost.ended_at
    assert "the command got SIGTERM" in log.read_text()
    driver.stop(taken.name)  # it is gone, which is no error

    # A request that nobody grants can be withdrawn.
    late = order(lab, "late", sleeper)
    driver.start(late)
    until(lambda: late.name in lab.slurm.run("squeue", "-h", "-o", "%j"), "a request", every_s=1)
    driver.stop(late.name)
    withdrawn = until_state(lab, driver, EngineState.ENDED, "late")["late"]
    assert (withdrawn.end, withdrawn.started_at) == (NodeEnd.CAPACITY, None)
    until(
        lambda: late.name not in lab.slurm.run("squeue", "-h", "-o", "%j"),
        "the end of the request",
        story=lab.story,
        every_s=1,
    )
    lab.clear()


def test_a_new_driver_finds_its_nodes_and_a_server_that_hangs_loses_none(lab, driver):
    kept = order(lab, "kept", ("bash", "-c", SLEEPER, "it's"))
    driver.start(kept)
    until_state(lab, driver, EngineState.RUNNING, "kept")
    driver.close()
    again = SkypilotDriver(driver.settings, prefix=lab.prefix)
    hasty = SkypilotDriver(
        SkypilotSettings(infra="aws", sky_python=str(PYTHON), answer_s=5), prefix=lab.prefix
    )
    try:
        assert nodes(again)["kept"].state is EngineState.RUNNING
        lab.pause_server(paused=True)
        try:
            with pytest.raises(FleetError) as raised:
                hasty.list()
            assert raised.value.retry
        finally:
            lab.pause_server(paused=False)
        assert nodes(again)["kept"].state is EngineState.RUNNING
        again.stop(kept.name)
        again.stop(kept.name)
        gone = until_state(lab, again, EngineState.ENDED, "kept")["kept"]
        assert (gone.end, gone.reason) == (None, "stopped")
    finally:
        hasty.close()
        again.close()

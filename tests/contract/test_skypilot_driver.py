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
        python=str(PYTHON),
        refresh_s=5.0,
        answer_s=120.0,
    )
    found = SkypilotDriver(settings, prefix="dt-")
    yield found
    found.close()
    lab.clear()


def order(lab, name, command, **changes):
    known = {"job": "job", "kind": NodeKind.SPOT, "environment": {"GREETING": "a, b"}}
    log = str(lab.folder / f"{name}.out")
    return NodeOrder(name=name, command=command, log=log, **{**known, **changes})


def nodes(driver):
    return {node.name: node for node in driver.list()}


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
    taken = order(lab, "dt-taken", sleeper)
    ending = order(lab, "dt-ending", ("sh", "-c", "exit 3"), kind=NodeKind.ON_DEMAND)
    for each in (taken, taken, ending):
        driver.start(each)
    assert nodes(driver)["dt-taken"].state is EngineState.WAITING
    until_state(lab, driver, EngineState.RUNNING, "dt-taken")
    log = lab.folder / "dt-taken.out"
    until(lambda: log.exists() and "\n" in log.read_text(), "output", story=lab.story)
    assert log.read_text() == "it's a, b\n"

    # What ended by itself has no cluster any more, and is never launched again.
    ended = until_state(lab, driver, EngineState.ENDED, "dt-ending")["dt-ending"]
    assert (ended.end, ended.reason) == (None, "the command ended: FAILED")
    assert ended.started_at <= ended.ended_at
    until(lambda: "dt-ending" not in lab.sky("status"), "its end", story=lab.story, every_s=1)
    driver.start(ending)
    assert nodes(driver)["dt-ending"] == ended

    # Another user takes both machines.
    assert nodes(driver)["dt-taken"].state is EngineState.RUNNING
    for number in range(2):
        lab.slurm.submit(f"urgent-{number}", "guaranteed --exclusive", "sleep 600")
    lost = until_state(lab, driver, EngineState.ENDED, "dt-taken")["dt-taken"]
    assert lost.end is NodeEnd.CAPACITY
    assert lost.started_at < lost.ended_at
    assert "the command got SIGTERM" in log.read_text()
    driver.stop("dt-taken")  # it is gone, which is no error

    # A request that nobody grants can be withdrawn.
    driver.start(order(lab, "dt-late", sleeper))
    until(lambda: "dt-late" in lab.slurm.run("squeue", "-h", "-o", "%j"), "a request", every_s=1)
    driver.stop("dt-late")
    late = until_state(lab, driver, EngineState.ENDED, "dt-late")["dt-late"]
    assert (late.end, late.started_at) == (NodeEnd.CAPACITY, None)
    until(
        lambda: "dt-late" not in lab.slurm.run("squeue", "-h", "-o", "%j"),
        "the end of the request",
        story=lab.story,
        every_s=1,
    )
    lab.clear()


def test_a_new_driver_finds_its_nodes_and_a_server_that_hangs_loses_none(lab, driver):
    driver.start(order(lab, "dt-kept", ("bash", "-c", SLEEPER, "it's")))
    until_state(lab, driver, EngineState.RUNNING, "dt-kept")
    driver.close()
    again = SkypilotDriver(driver.settings, prefix="dt-")
    hasty = SkypilotDriver(
        SkypilotSettings(infra="aws", python=str(PYTHON), answer_s=5), prefix="dt-"
    )
    try:
        assert nodes(again)["dt-kept"].state is EngineState.RUNNING
        lab.pause_server(paused=True)
        try:
            with pytest.raises(FleetError) as raised:
                hasty.list()
            assert raised.value.retry
        finally:
            lab.pause_server(paused=False)
        assert nodes(again)["dt-kept"].state is EngineState.RUNNING
        again.stop("dt-kept")
        again.stop("dt-kept")
        gone = until_state(lab, again, EngineState.ENDED, "dt-kept")["dt-kept"]
        assert (gone.end, gone.reason) == (None, "stopped")
    finally:
        hasty.close()
        again.close()

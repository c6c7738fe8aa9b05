"""Jobs on two fleets of one home at once: each has a controller of its own."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from duetune.core.events import Status
from duetune.settings import load_settings
from duetune.wiring import running_fleet
from support.accounts import accounted
from support.live_home import LEFT_RUNNING, LiveHome
from support.process_driver import register

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings(LEFT_RUNNING)]

TESTS = Path(__file__).parent.parent
PRICE, LAB_PRICE = 0.9, 1.3


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with the embedded fleet, and the engine ``processes`` as the fleet ``lab``."""
    folder = tmp_path_factory.mktemp("several")
    plugin = register(folder / "plugin")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(plugin)
        found = LiveHome(folder)
        found.environment["PYTHONPATH"] = os.pathsep.join(
            [plugin, str(TESTS), found.environment.get("PYTHONPATH", "")]
        )
        found.run(
            *("fleet", "add", "lab", "--engine", "processes"),
            *("--set", f"folder={folder / 'engine'}", "--set", f"spot_usd_h={LAB_PRICE}"),
            *("--set", f"slot_minutes={found.slowness * 0.05}", "--set", "startup_s=0.5"),
            *("--set", "resize_s=0.5"),
        )
        found.settings = load_settings(found.environment)
        found.start_fleet(found.market((PRICE, 2)))
        yield found
        (folder / "engine" / "hang").unlink(missing_ok=True)
        found.run("controller", "stop")
        found.close()


def controllers(home):
    rows = home.json("controller", "status")["controllers"]
    return {row["fleet"]: row["pid"] for row in rows if row["running"]}


def lab_nodes(home, job):
    return running_fleet(home.settings.on("lab")).fleet.observe(job).nodes


def test_two_jobs_on_two_fleets_disturb_each_other_in_nothing(home):
    """One fleet's controller is killed and its engine hangs; the job on the other one finishes."""
    enough = {fleet: home.folder / f"enough-{fleet}" for fleet in ("lab", "embedded")}

    def launched(fleet, deadline):
        command = json.dumps(f"{home.command(10_000, 0.1)} {enough[fleet]}")
        # The command line's word counts more than the file's.
        spec = home.spec(steps=100, run=command, deadline=deadline, fleet="embedded")
        return home.launch(spec, *(() if fleet == "embedded" else ("--fleet", fleet)))

    lab, here = launched("lab", "2m"), launched("embedded", "12h")
    for job in (lab, here):
        home.until_step(job, 2)
    before = controllers(home)
    assert set(before) == {"embedded", "lab"}
    table = home.run("queue", COLUMNS="80").stdout.splitlines()
    assert table[0].split()[-1] == "fleet"
    assert {line.split()[-1] for line in table[2:4]} == {"lab", "embedded"}
    os.kill(before["lab"], signal.SIGKILL)
    after = home.until(
        lambda: (found := controllers(home)).get("lab") not in {None, before["lab"]} and found,
        "the next controller of lab",
    )
    assert after["embedded"] == before["embedded"]

    hang = home.folder / "engine" / "hang"
    hang.touch()
    enough["embedded"].touch()
    assert home.until_over(here).status is Status.SUCCEEDED
    assert home.json("queue")["jobs"][0]["id"] == lab
    assert home.json("status", lab)["status"]["job"]["fleet"] == "lab"
    refused = home.run("fleet", "remove", "lab", status=2).stderr
    assert f"a fleet without unfinished jobs; cancel {lab}" in refused
    hang.unlink()
    enough["lab"].touch()
    assert home.until_over(lab).status is Status.SUCCEEDED

    accounted(home, here)
    for job, nodes, price in (
        (here, home.fleet().fleet.observe(here).nodes, PRICE),
        (lab, lab_nodes(home, lab), LAB_PRICE),
    ):
        hours = sum((node.ended_at - node.started_at) / 3600 for node in nodes if node.started_at)
        assert sum(node.billed for node in nodes) == pytest.approx(price * hours, rel=1e-4)
        assert home.job(job).cost == pytest.approx(price * hours, rel=1e-4)
    report = home.json("cost-report", "--by=fleet")["lines"]
    costs = {
        fleet: pytest.approx(home.job(job).cost)
        for job, fleet in ((here, "embedded"), (lab, "lab"))
    }
    assert {line["key"]: line["dollars"] for line in report} == costs


@pytest.mark.more
def test_a_request_waits_for_the_controller_of_its_fleet(home):
    """Nobody else takes it off the inbox of a controller that hangs."""
    lab = home.launch(home.spec(steps=10_000, deadline="2m", fleet="lab"))
    home.until_step(lab, 2)
    hang = home.folder / "engine" / "hang"
    hang.touch()
    here = home.launch(home.spec(steps=10, deadline="12h"))
    home.run("cancel", lab)
    assert home.until_over(here).status is Status.SUCCEEDED
    assert home.job(lab).status is Status.RUNNING
    hang.unlink()
    assert home.until_over(lab).status is Status.CANCELLED
    assert not any(node.state.alive for node in lab_nodes(home, lab))


def test_an_unknown_fleet_is_named_with_those_that_exist(home):
    spec = home.spec(fleet="lob")
    for command in (
        ["plan", spec],
        ["launch", spec, "--yes"],
        ["controller", "start", "--fleet=lob"],
    ):
        done = home.run(*command, status=2)
        assert "fleet: 'lob' is not allowed; expected one of embedded, lab" in done.stderr

"""Jobs on an engine that others run, with real processes as its nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duetune.core.events import Status
from duetune.core.fleet import NodeEnd, NodeState
from duetune.fleets.fleet_file import fleet_files, prefix_of, token_of
from duetune.fleets.node_ledger import NodeLedger
from duetune.settings import load_settings
from support.live_home import LEFT_RUNNING, LiveHome
from support.process_driver import ProcessDriver, register

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings(LEFT_RUNNING)]

TESTS = Path(__file__).parent.parent


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home whose jobs run on the engine ``processes``, with slots of seconds."""
    plugin = register(tmp_path / "plugin")
    monkeypatch.syspath_prepend(plugin)
    found = LiveHome(tmp_path)
    found.environment["PYTHONPATH"] = os.pathsep.join(
        [plugin, str(TESTS), found.environment.get("PYTHONPATH", "")]
    )
    found.run(
        *("fleet", "add", "lab", "--engine", "processes"),
        *("--set", f"folder={tmp_path / 'engine'}", "--set", "spot=2"),
        *("--set", f"slot_minutes={found.slowness * 0.05}", "--set", "startup_s=0.5"),
        *("--set", "resize_s=0.5"),
    )
    (found.path / "config.toml").write_text('[site]\nfleet = "lab"\n')
    found.settings = load_settings(found.environment)
    yield found
    found.close()


def driver(home):
    file = fleet_files(home.settings)["lab"]
    return ProcessDriver(home.folder / "engine", prefix_of(token_of(file)))


def held(home, job):
    """Return the names in the engine of the nodes that run and should."""
    with home.store() as store:
        entries = NodeLedger(store.ledger("lab")).of_job(job)
    return [entry.name for entry in entries if entry.node.state is NodeState.RUNNING]


def running_nodes(engine):
    return [node.name for node in engine.list() if node.state == "running"]


def test_a_job_on_an_engine_survives_a_preemption_and_a_dead_machine(home):
    assert "ok  the folder is there" in home.run("fleet", "check", "lab").stdout
    job = home.launch(home.spec(steps=60, step_s=0.2, deadline="1h"))
    engine = driver(home)
    for step, end in ((3, engine.preempt), (12, engine.kill)):
        home.until_step(job, step)
        end(home.until(lambda: held(home, job), "a running node")[0])
    assert home.until_over(job).status is Status.SUCCEEDED
    nodes = home.fleet().fleet.observe(job).nodes
    assert {NodeEnd.CAPACITY, NodeEnd.DIED} <= {node.end for node in nodes}
    spent = sum((node.ended_at - node.started_at) / 3600 for node in nodes if node.started_at)
    assert sum(node.billed for node in nodes) == pytest.approx(spent, rel=1e-6)
    home.until(lambda: not running_nodes(engine), "the end of all nodes")

"""Jobs on an engine that others run, with real processes as its nodes."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from duetune.core.events import Status
from duetune.core.fleet import NodeEnd, NodeKind
from duetune.fleets.embedded.processes import family
from duetune.fleets.fleet_file import fleet_files, prefix_of, token_of
from duetune.market.traces import load_grid
from duetune.settings import load_settings
from duetune.training.tiny import build_tiny_model
from support.live_home import LEFT_RUNNING, LiveHome
from support.process_driver import ProcessDriver, register
from support.tuning import progress, spec

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
    found.use_engine(
        "processes",
        folder=tmp_path / "engine",
        spot=3,
        slot_minutes=0.05,
        startup_s=0.5,
        resize_s=0.5,
        microbatch_s=0.1,
    )
    yield found
    found.close()


def driver(home):
    file = fleet_files(home.settings)["lab"]
    return ProcessDriver(home.folder / "engine", prefix_of(token_of(file)))


def held(home, job):
    """Return the names in the engine of the nodes that run and should."""
    return [entry.name for entry in home.held(job)]


def running_nodes(engine):
    return [node.name for node in engine.list() if node.state == "running"]


def test_a_job_on_an_engine_survives_a_preemption_and_a_dead_machine(home):
    assert "ok  the folder is there" in home.run("fleet", "check", "lab").stdout
    job = home.launch(home.spec(steps=60, step_s=0.2, deadline="20m"))
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
    recorded = load_grid(home.path / "markets" / "lab.csv")
    assert recorded.counted[0].sum() >= 3, "the controller recorded the market of the engine"
    assert recorded.available[0].max() <= 3


@pytest.mark.more
@pytest.mark.torch
def test_the_members_of_a_group_find_another_coordinator_when_its_node_dies(home, tmp_path):
    """Three nodes train together; that of the coordinator fails, and the others go on."""
    model = build_tiny_model(tmp_path / "model", hidden=32, layers=1, heads=2, seed=3)
    job = home.launch(spec(home, model, deadline="20m"))
    engine, folder = driver(home), home.settings.folder(job)
    home.until(lambda: any(each.world == 3 for each in progress(home, job)), "three members")
    seats = folder / "coordinators"

    def agreed():
        """The newest seat, once all nodes know its address."""
        newest = max(path.name for path in seats.iterdir())
        files = [folder / "nodes" / name / "coordinator" for name in held(home, job)]
        addresses = {path.read_text() for path in files if path.exists()}
        return newest if addresses == {(seats / newest).read_text()} else None

    seat = home.until(agreed, "one coordinator for all")
    address = (seats / seat).read_text()
    engine.kill(next(name for name in held(home, job) if leads(home, name, address)))
    assert home.until_over(job).status is Status.SUCCEEDED
    assert max(path.name for path in seats.iterdir()) > seat
    assert progress(home, job)[-1].step == 30
    home.until(lambda: not running_nodes(engine), "the end of all nodes")


def leads(home, name, address):
    """Return whether the process that listens at ``address`` belongs to the node of this name."""
    port = int(address.rpartition(":")[2])
    root = json.loads((home.folder / "engine" / name).read_text())["pid"]
    inodes = {
        line.split()[9]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if int(line.split()[1].rpartition(":")[2], 16) == port and line.split()[3] == "0A"
    }
    for pid in family(root):
        with suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                if str(link.readlink()).removeprefix("socket:[").rstrip("]") in inodes:
                    return True
    return False


@pytest.mark.more
def test_a_command_runs_on_whole_nodes_and_is_billed_for_all_their_gpus(home, tmp_path):
    """The fleet gives nodes of two GPUs; plan, node, status and bill agree on that."""
    home.run(
        *("fleet", "add", "pairs", "--engine", "processes", "--set", "gpus_per_node=2"),
        *("--set", f"folder={tmp_path / 'pairs'}", "--set", "spot=4", "--set", "max_gpus=4"),
        *("--set", f"slot_minutes={home.slowness * 0.05}", "--set", "startup_s=0.5"),
        *("--set", "resize_s=0.5"),
    )
    config = home.path / "config.toml"
    config.write_text(config.read_text().replace('"lab"', '"pairs"'))
    home.settings = load_settings(home.environment)
    seen = tmp_path / "seen"
    spec = tmp_path / "pair.yaml"
    spec.write_text(f"run: echo $DUETUNE_GPUS > {seen}\ndeadline: 20m\nname: pair\n")
    plan = json.loads(home.run("plan", str(spec), "--json").stdout)
    assert plan["plan"]["gpus_per_member"] == 2
    job = home.launch(spec)
    assert home.until_over(job).status is Status.SUCCEEDED
    assert seen.read_text() == "2\n"
    nodes = home.fleet().fleet.observe(job).nodes
    assert {node.gpus for node in nodes} == {2}
    prices = {NodeKind.SPOT: 1.0, NodeKind.ON_DEMAND: 3.0}
    ran = [node for node in nodes if node.started_at is not None]
    bill = sum(2 * prices[node.kind] * (node.ended_at - node.started_at) for node in ran) / 3600
    assert home.job(job).cost == pytest.approx(bill, rel=1e-6)
    (line,) = home.json("cost-report")["lines"]
    hours = sum(2 * (node.ended_at - node.started_at) for node in ran) / 3600
    assert line["gpu_hours"] == pytest.approx(hours, rel=1e-6)

"""Jobs whose nodes do not see the home: everything goes through a storage."""

from __future__ import annotations

import json
import os

import pytest

from duetune.core.events import Status
from duetune.core.fleet import NodeEnd
from duetune.fleets.fleet_file import fleet_files, prefix_of, token_of
from duetune.storage import open_storage, place_below
from duetune.training.metrics import read_metrics
from duetune.training.publication import published
from duetune.training.tiny import build_tiny_model
from support.live_home import LEFT_RUNNING, LiveHome
from support.places import TESTS
from support.process_driver import ProcessDriver, register
from support.tuning import progress, spec

pytest_plugins = ["support.pretended_s3"]
pytestmark = [pytest.mark.live, pytest.mark.filterwarnings(LEFT_RUNNING)]


@pytest.fixture
def connected(tmp_path, monkeypatch):
    """Return a function that makes a home on the engine ``processes`` with a storage.

    The nodes run on a machine that has neither the home nor the files of the job.
    """
    homes = []

    def make(storage, slot_minutes=0.05):
        plugin = register(tmp_path / "plugin")
        monkeypatch.syspath_prepend(plugin)
        found = LiveHome(tmp_path)
        homes.append(found)
        found.environment["PYTHONPATH"] = os.pathsep.join(
            [plugin, str(TESTS), found.environment.get("PYTHONPATH", "")]
        )
        hidden = [str(tmp_path / name) for name in ("home", "model", "rows.jsonl", "work")]
        found.use_engine(
            "processes",
            storage=storage,
            folder=tmp_path / "engine",
            hidden=json.dumps(hidden),
            slot_minutes=slot_minutes,
            startup_s=0.5,
            resize_s=0.5,
            spot=2,
            setup="echo ready > $HOME/setup",
            microbatch_s=0.1,
        )
        return found

    yield make
    for home in homes:
        home.close()


def driver(home):
    return ProcessDriver(
        home.folder / "engine", prefix_of(token_of(fleet_files(home.settings)["lab"]))
    )


def held(home, job):
    return [entry.name for entry in home.held(job)]


def untouched(home):
    """Return whether nodes ran, and none of their processes has looked for a file of the home."""
    machine = home.folder / "machine"
    return (machine / "home" / "setup").exists() and not (machine / "seen").exists()


def test_a_command_runs_without_a_shared_folder(connected, tmp_path):
    home = connected(tmp_path / "storage")
    assert "creates a file only once" in home.run("fleet", "check", "lab").stdout
    work = tmp_path / "work"
    work.mkdir()
    (work / "greeting").write_text("hello from the workdir\n")
    command = home.command(12, 0.2 * home.slowness)
    save = "mkdir -p $DUETUNE_OUTPUT_DIR; cp greeting $DUETUNE_OUTPUT_DIR/"
    known = "test $WORD = hidden"
    job = home.launch(
        home.spec(
            steps=12,
            deadline="20m",
            workdir=work,
            run=json.dumps(f"{known}; {save}; {command}"),
            secrets="[WORD]",
        ),
        WORD="hidden",
    )
    storage = open_storage(place_below(str(tmp_path / "storage"), job))
    home.until_step(job, 2)
    assert storage.read("secrets.json") is not None
    driver(home).kill(home.until(lambda: held(home, job), "a running node")[0])
    assert home.until_over(job).status is Status.SUCCEEDED
    folder = home.settings.folder(job)
    assert (folder / "output" / "greeting").read_text() == "hello from the workdir\n"
    assert NodeEnd.DIED in {node.end for node in home.fleet().fleet.observe(job).nodes}
    assert "begins at step 0" in home.run("logs", job).stdout
    assert home.step(job) == 12
    assert untouched(home)
    home.until(lambda: storage.read("secrets.json") is None, "the end of the secrets")
    orders = [name for name in storage.sizes("nodes") if name.endswith("order.json")]
    home.until(lambda: not [each for each in orders if storage.read(each)], "withdrawn orders")


@pytest.mark.more
@pytest.mark.torch
def test_a_group_trains_through_a_bucket_and_loses_a_node(connected, tmp_path, s3_url):
    """Real members, coordinator and checkpoints; one machine fails on the way."""
    home = connected(s3_url, slot_minutes=0.5)
    model = build_tiny_model(tmp_path / "model", hidden=32, layers=1, heads=2, seed=3)
    job = home.launch(spec(home, model, deadline="20m"))
    home.until(lambda: any(each.world == 2 for each in progress(home, job)), "two members")
    driver(home).kill(held(home, job)[0])
    assert home.until_over(job).status is Status.SUCCEEDED
    folder = home.settings.folder(job)
    assert published(folder / "output").steps == 30
    assert progress(home, job)[-1].step == 30
    assert progress(home, job)[-1].output == str(folder / "output")
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row.step for row in rows] == list(range(1, 31))
    assert untouched(home)
    stored = open_storage(place_below(s3_url, job)).sizes()
    assert {"task.json", "inputs.json", "output.json", "coordinators/000001"} <= set(stored)
    assert any(name.startswith("checkpoints/manifests/") for name in stored)
    assert any(name.startswith("inputs/dataset/") for name in stored)

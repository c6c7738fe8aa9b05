from __future__ import annotations

import re

from duetune.core.fleet import Launch, NodeKind, Task
from duetune.fleets.embedded.node_assignment import (
    Devices,
    JobSecrets,
    assignment_of,
    coordinator_of,
    visible_devices,
)
from duetune.fleets.embedded.node_environment import NAMES, PREFIXES, inherited
from support.places import ROOT

PAGE = ROOT / "docs" / "explanation" / "security.md"
SECRETS = JobSecrets(group="secret of the group", calls="secret of calls")


def launch(folder, *, coordinated):
    task = Task(
        folder=str(folder),
        module="" if not coordinated else "trainer",
        command=() if coordinated else ("true",),
        environment={"MINE": "1", "DUETUNE_CHECKPOINT_DIR": "/elsewhere"},
        coordinated=coordinated,
        gpus=2,
    )
    return Launch("n", "job", NodeKind.SPOT, 1, task)


def assigned(folder, *, coordinated):
    return assignment_of(
        launch(folder, coordinated=coordinated),
        url="http://x",
        secrets=SECRETS,
        device=None,
        heartbeat_timeout_s=1.0,
    )


def test_a_worker_gets_only_the_environment_it_needs(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine alone")
    monkeypatch.setenv("HF_TOKEN", "for the hub")
    (tmp_path / "secrets.json").write_text('{"KEY": "of the job"}')
    for coordinated in (True, False):
        found = assigned(tmp_path, coordinated=coordinated).environment
        assert "AWS_SECRET_ACCESS_KEY" not in found
        assert (found["HF_TOKEN"], found["MINE"]) == ("for the hub", "1")
        assert found["KEY"] == "of the job"
        assert ("DUETUNE_JOB_SECRET" in found) is coordinated
        assert found["DUETUNE_GPUS"] == "2"
        assert "DUETUNE_GPUS_PER_NODE" not in found
    found = coordinator_of(launch(tmp_path, coordinated=True), SECRETS)
    assert not {"AWS_SECRET_ACCESS_KEY", "KEY", "MINE"} & found.environment.keys()
    assert found.environment["DUETUNE_CHECKPOINT_DIR"] == "/elsewhere"
    assert SECRETS.group not in " ".join(found.arguments)


def test_the_page_lists_every_variable_that_is_inherited():
    listed = (
        PAGE.read_text(encoding="utf-8").partition("<!-- inherited -->")[2].partition("\n\n## ")[0]
    )
    names, prefixes = listed.split("names that begin with")
    assert set(re.findall(r"`(\w+)`", names)) == NAMES
    assert re.findall(r"`(\w+)`", prefixes) == list(PREFIXES)
    assert inherited({"LC_ALL": "C", "PATH": "/", "TOKEN": "x"}) == {"LC_ALL": "C", "PATH": "/"}


def test_gpus_are_those_of_the_environment_or_of_the_machine(tmp_path):
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_devices({}, tmp_path) == ["2", "10"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "3, GPU-ab"}, tmp_path) == ["3", "GPU-ab"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []


def test_every_node_gets_one_and_nobody_shares_while_one_is_free():
    devices = Devices(["0", "1"])
    assert [devices.take(("job", name)) for name in "abc"] == ["0", "1", "0"]
    devices.give_back(("job", "b"))
    devices.give_back(("job", "unknown"))
    assert devices.take(("job", "d")) == "1"
    pair = Devices(["0", "1", "2"])
    assert [pair.take(("job", name), 2) for name in "ab"] == ["0,1", "2,0"]
    assert Devices([]).take(("job", "a")) is None

"""``duetune fleet add|list|check|remove`` and ``duetune node``: good and bad input."""

from __future__ import annotations

import json

import pytest

from duetune.core.fleet import Launch, NodeKind, Task
from duetune.fleets.fleet_file import FleetFile, fleet_files, prefix_of, read_fleet, token_of
from duetune.settings import load_settings
from support.live_home import LiveHome
from support.process_driver import register


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(register(tmp_path / "plugin"))
    return LiveHome(tmp_path)


def add(home, *assignments, name="lab", status=0):
    given = [word for each in assignments for word in ("--set", each)]
    folder = f"folder={home.folder / 'engine'}"
    return home.run(
        "fleet", "add", name, "--engine", "processes", "--set", folder, *given, status=status
    )


def test_a_fleet_is_written_listed_checked_and_removed(home):
    done = add(home, "max_gpus=8", "accelerator=H100", "spot=2", "spot_usd_h=1.2")
    assert 'fleet = "lab"' in done.stdout
    path = fleet_files(home.settings)["lab"]
    assert path.stat().st_mode & 0o077 == 0
    file = read_fleet(path)
    assert (file.max_gpus, file.accelerator, file.spot_usd_h) == (8, "H100", 1.2)
    assert file.options["spot"] == 2
    rows = json.loads(home.run("fleet", "list", "--json").stdout)["fleets"]
    assert [(row["name"], row["chosen"]) for row in rows] == [("embedded", True), ("lab", False)]
    assert "lab" in home.run("fleet", "list").stdout
    assert "the engine answers" in home.run("fleet", "check", "lab").stdout
    home.run("fleet", "remove", "lab")
    assert fleet_files(home.settings) == {}
    assert not path.with_suffix(".token").exists()


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("max_gpus=none", "max_gpus: 'none' is not allowed"),
        ("slot_minutes=0", "slot_minutes: 0.0 is not allowed; expected a number above 0"),
        ("spot_usd_h=-1", "spot_usd_h: -1.0 is not allowed"),
        ("nonsense", "write KEY=VALUE"),
        ("storage=here", "storage: 'here' is not allowed; expected a path, or a URL of file://"),
        ("storage=ftp://host/x", "storage: 'ftp://host/x' is not allowed"),
        ("storage=s3://bucket/x?secret_key=hidden", "set those in the environment"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_written(home, assignment, words):
    done = add(home, assignment, status=2)
    assert words in done.stderr
    assert done.stderr.count("\n") <= 3
    assert fleet_files(home.settings) == {}


def test_a_fleet_needs_a_name_of_its_own_and_a_known_engine(home):
    add(home)
    assert "a name that no fleet has" in add(home, status=2).stderr
    assert "NAME: 'no/name'" in add(home, name="no/name", status=2).stderr
    done = home.run("fleet", "add", "other", "--engine", "abacus", status=2)
    assert "engine: 'abacus' is not allowed" in done.stderr
    assert "slurm" in done.stderr


@pytest.mark.parametrize("command", ["check", "remove"])
def test_an_unknown_fleet_is_named_with_those_that_exist(home, command):
    add(home)
    done = home.run("fleet", command, "lob", status=2)
    assert "NAME: 'lob' is not allowed; expected a fleet of this home (lab)" in done.stderr


def test_a_damaged_file_or_token_is_one_line(home):
    add(home)
    path = fleet_files(home.settings)["lab"]
    path.write_text('engine = "processes"\nmax_gpu = 2\n')
    done = home.run("fleet", "check", "lab", status=2)
    assert "lab.toml field: 'max_gpu' is not allowed" in done.stderr
    path.write_text('engine = "processes"\n')
    path.with_suffix(".token").write_text("?")
    assert "lab.token" in home.run("fleet", "check", "lab", status=2).stderr


def test_a_fleet_with_nodes_is_not_removed(home):
    add(home)
    (home.path / "config.toml").write_text('[site]\nfleet = "lab"\n')
    home.settings = load_settings(home.environment)
    from duetune.wiring import start_fleet  # noqa: PLC0415 - slow to import

    fleet = start_fleet(home.settings).fleet
    task = Task(folder=str(home.path / "jobs" / "job"), command=("sleep", "60"))
    fleet._driver.start = lambda order: None  # noqa: ARG005 - the engine is deaf
    fleet.apply([Launch("n1", "job", NodeKind.SPOT, 1, task)])
    assert "cancel job" in home.run("fleet", "remove", "lab", status=2).stderr


def test_a_node_without_a_readable_order_says_so(home, tmp_path):
    done = home.run("node", tmp_path / "none.json", status=2)
    assert "ORDER" in done.stderr
    assert "an order that a fleet has written" in done.stderr


def test_names_and_secrets_of_two_fleets_differ(home):
    add(home)
    add(home, name="other")
    tokens = [token_of(path) for path in fleet_files(home.settings).values()]
    assert len({prefix_of(token) for token in tokens}) == 2


def test_a_fleet_file_keeps_every_field(tmp_path):
    from duetune.fleets.fleet_file import _toml  # noqa: PLC0415 - what `add` writes

    file = FleetFile(
        engine="slurm",
        options={"spot": 'a "quoted" name', "count": 3, "list": ["a", "b"], "on": True},
        setup="source env.sh\nexport A=1",
        memory_gb=80.0,
    )
    path = tmp_path / "x.toml"
    path.write_text(_toml(file))
    assert read_fleet(path) == file


def test_a_check_tries_the_storage_and_leaves_nothing_there(home, tmp_path):
    add(home, f"storage={tmp_path / 'storage'}")
    checked = home.json("fleet", "check", "lab")["checked"]
    assert not any(checked.values())
    assert any("creates a file only once" in what for what in checked)
    assert not any(path.is_file() for path in (tmp_path / "storage").rglob("[!.]*"))
    (tmp_path / "file").write_text("")
    add(home, f"storage={tmp_path / 'file' / 'storage'}", name="other")
    done = home.run("fleet", "check", "other", status=4)
    assert "no  storage" in done.stdout
    assert "cannot be used" in done.stdout


def test_the_storage_is_no_option_of_the_engine(home):
    add(home)
    path = fleet_files(home.settings)["lab"]
    path.write_text('engine = "slurm"\n[options]\nspot = "a"\nstorage = "/shared"\n')
    done = home.run("fleet", "check", "lab", status=2)
    assert "options.storage: '/shared' is not allowed; expected storage before" in done.stderr

"""One controller per fleet: its files, and what becomes of a controller of an older release."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from duetune.fleets.process_lock import hold, holder, note_in
from duetune.jobs import controller_process
from duetune.jobs.controller_process import (
    ControllerFiles,
    controller_files,
    controller_pid,
    fleets_with_locks,
    sole_controller,
    start_controller,
    stop_controller,
)
from duetune.settings import Settings
from support.patience import PATIENCE_S

HOLDER = """
import sys
from pathlib import Path
from duetune.fleets.process_lock import hold
held = [hold(Path(word.partition("=")[0]), word.partition("=")[2]) for word in sys.argv[1:]]
print(None not in held, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path):
    return Settings(home=tmp_path, database=str(tmp_path / "duetune.db"))


@pytest.fixture
def holding():
    """Start a process that holds locks; ``path=note`` has a second line."""
    started = []

    def start(*words):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "True\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_each_fleet_has_files_of_its_own_and_the_embedded_one_those_of_old(tmp_path):
    assert ControllerFiles.of(tmp_path, "embedded") == (
        tmp_path / "controller.lock",
        tmp_path / "supervisor.lock",
        tmp_path / "controller.log",
    )
    assert ControllerFiles.of(tmp_path, "campus").log == tmp_path / "controller-campus.log"
    names = ("campus", "mine:a", "mine-a", "mine/a", "x" * 200 + ":1", "x" * 200 + ":2", "../up")
    locks = {ControllerFiles.of(tmp_path, name).lock for name in names}
    assert len(locks) == len(names)
    assert {lock.parent for lock in locks} == {tmp_path}


def test_a_lock_says_what_it_is_for_and_forgets_it_with_its_next_holder(tmp_path):
    path = tmp_path / "lock"
    assert note_in(path) == ""
    os.close(hold(path, "a fleet with a long name"))
    assert note_in(path) == "a fleet with a long name"
    os.close(hold(path, "lab"))
    assert note_in(path) == "lab"
    descriptor = hold(path)
    assert (note_in(path), holder(path).pid) == ("", os.getpid())
    os.close(descriptor)


def test_one_controller_per_fleet_and_not_one_per_home(home, holding):
    lab = controller_files(home.on("lab"))
    process = holding(f"{lab.lock}=lab")
    assert controller_pid(home.on("lab")) == process.pid
    assert controller_pid(home) is None
    with sole_controller(home.on("lab")) as alone:
        assert not alone
    with sole_controller(home) as alone:
        assert alone
        assert controller_pid(home) == os.getpid()
        assert fleets_with_locks(home.home) == ["embedded", "lab"]
    assert start_controller(home.on("lab")) == process.pid, "it runs already"


@pytest.mark.parametrize("fleet", ["embedded", "lab"])
def test_a_controller_of_before_is_replaced_before_any_fleet_gets_one(
    home, holding, monkeypatch, fleet
):
    """It runs the jobs of all fleets, so two controllers would run the same job."""
    first = controller_files(home)
    old = holding(first.lock, first.supervisor)
    spawned = []

    def spawn(settings, _log):
        assert old.wait(PATIENCE_S) == -signal.SIGTERM
        spawned.append(settings.fleet_name)
        return holding(f"{controller_files(settings).lock}={settings.fleet_name}")

    monkeypatch.setattr(controller_process, "_spawned", spawn)
    assert start_controller(home.on(fleet)) != old.pid
    assert spawned == [fleet]


def test_a_controller_in_the_foreground_replaces_it_too(home, holding):
    old = holding(controller_files(home).lock)
    with sole_controller(home.on("lab")) as alone:
        assert alone
    assert old.wait(PATIENCE_S) == -signal.SIGTERM


def test_only_the_controller_of_the_named_fleet_is_stopped(home, holding):
    files, lab = controller_files(home), controller_files(home.on("lab"))
    here = holding(f"{files.lock}=embedded", f"{files.supervisor}=embedded")
    there = holding(f"{lab.lock}=lab")
    stop_controller(home.on("lab"))
    assert there.wait(PATIENCE_S) == -signal.SIGTERM
    assert here.poll() is None

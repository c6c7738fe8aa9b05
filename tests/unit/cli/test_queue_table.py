"""The queue fits a terminal of 80 columns, with the longest names there are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from duetune.cli.queue import _show
from duetune.core.events import Status
from duetune.errors import InvalidInput
from duetune.settings import Settings
from duetune.store.rows import JobRow

ID = "qwen3-0.6b-instruct-customer-support-202611-x7k2m"
CLOCK = SimpleNamespace(now=lambda: 0.0)


def row(**fields):
    usual = {
        "id": ID,
        "name": ID,
        "status": Status.SUCCEEDED,
        "policy": "ahap:3:1:0.5:0:0:lavish",
        "submitted_at": 0.0,
        "deadline_at": 86_000.0,
        "updated_at": 0.0,
        "total_steps": 120_000,
        "step": 119_999,
        "spent": 1234.56,
        "finished_at": 0.0,
    }
    return JobRow(**usual | fields)


def connected(name):
    """Fleets by name: ``broken`` cannot be used, the clock of ``late`` has gone on."""
    if name == "broken":
        raise InvalidInput("broken.toml field", "x", "a field")
    late = SimpleNamespace(now=lambda: 86_000.0 + 60)
    return SimpleNamespace(clock=late if name == "late" else CLOCK)


def shown(rows, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    home = SimpleNamespace(
        settings=Settings(home=Path("home"), database="none"),
        connected=connected,
        controller_of=lambda _fleet: 7,
        controller_note=lambda fleet: "Nobody is here." if fleet == "idle" else "",
        fleet_silent_s=lambda _job: None,
    )
    _show(rows, home)
    return capsys.readouterr().out


LIMITED = {"status": Status.RUNNING, "priority": 100, "share": 10, "wish": 16, "spot": 10}


@pytest.mark.parametrize("fields", [{}, LIMITED])
def test_nothing_is_cut_at_80_columns(fields, monkeypatch, capsys):
    out = shown([row(), row(**fields)], 80, monkeypatch, capsys)
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in out
    for words in ("SUCCEEDED", "119999/120000", "$1,234.56", "23h 53m early"):
        assert words in out
    if fields:
        assert "10 of 16" in out
    # The id is folded, never shortened: users copy it.
    job = "".join(line.split(" ")[0] for line in lines[2:])
    assert job == 2 * ID


def test_a_wide_terminal_shows_the_policy(monkeypatch, capsys):
    out = shown([row()], 160, monkeypatch, capsys)
    assert "ahap:3:1:0.5:0:0:lavish" in out
    assert ID in out


def test_the_fleet_is_shown_if_jobs_are_on_several(monkeypatch, capsys):
    """Rows of old jobs have none; theirs is the default one."""
    alone = shown([row(fleet=""), row(fleet="embedded")], 80, monkeypatch, capsys)
    assert "fleet" not in alone
    names = ("", "university-campus-cluster-of-the-west")
    out = shown([row(fleet=name) for name in names], 80, monkeypatch, capsys)
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in out
    assert "embedded" in out
    assert "".join(line.split(" ")[0] for line in lines[2:]) == 2 * ID


def test_each_job_is_due_by_the_clock_of_its_fleet(monkeypatch, capsys):
    rows = [row(status=Status.RUNNING, fleet=name) for name in ("embedded", "late", "broken")]
    out = shown(rows, 160, monkeypatch, capsys)
    assert "in 23h 53m" in out
    assert "1m ago" in out
    assert "broken: broken.toml field: 'x' is not allowed; expected a field." in out


def test_a_note_names_its_fleet_if_there_are_several(monkeypatch, capsys):
    idle = row(status=Status.QUEUED, fleet="idle")
    assert "\nNobody is here." in shown([idle], 160, monkeypatch, capsys)
    both = shown([idle, row(status=Status.QUEUED)], 160, monkeypatch, capsys)
    assert "\nidle: Nobody is here." in both

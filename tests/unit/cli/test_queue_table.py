"""The queue fits a terminal of 80 columns, with the longest names there are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from duetune.cli.queue import _show
from duetune.core.events import Status
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


def shown(rows, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    home = SimpleNamespace(
        fleet=SimpleNamespace(clock=CLOCK),
        controller_note=lambda: "",
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

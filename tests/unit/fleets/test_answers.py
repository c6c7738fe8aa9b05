"""Who only reads does not wait long for a fleet that stands still."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace

import msgspec
import pytest

from duetune.errors import FleetError
from duetune.fleets import host
from duetune.fleets.embedded import FleetSettings, client
from duetune.fleets.embedded.clock import PROVIDER_FILE, Anchor, ProviderFile
from duetune.registry import fleets
from duetune.settings import load_settings
from duetune.wall_clock import clock_reading


def test_an_answer_that_does_not_come_is_an_error(monkeypatch):
    monkeypatch.setattr(host, "ANSWER_S", 0.01)
    never = threading.Event()
    with pytest.raises(FleetError, match=r"has not answered for 0.01 s: it is stopped or too busy"):
        host.answered(never.wait)
    never.set()


def test_answers_and_failures_are_passed_on():
    assert host.answered(lambda: 3) == 3

    def fail():
        raise FleetError("refused")

    with pytest.raises(FleetError, match="refused"):
        host.answered(fail)


def test_plans_and_amendments_read_the_market_with_a_short_time_out(tmp_path, monkeypatch):
    # Without the short one this test would wait for an hour.
    monkeypatch.setattr(fleets, "ANSWER_S", 0.01)
    monkeypatch.setenv(client.TIMEOUT, "3600")
    monkeypatch.setattr(client, "daemon", SimpleNamespace(running=lambda _: 1))
    settings = load_settings({"DUETUNE_HOME": str(tmp_path)})
    settings.fleet.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        anchor = Anchor.at(clock_reading(), 0.0, 1.0)
        file = ProviderFile(url, 1, "token", "m", "d", 1800.0, anchor, FleetSettings())
        (settings.fleet / PROVIDER_FILE).write_bytes(msgspec.json.encode(file))
        with pytest.raises(FleetError, match="does not answer"):
            fleets.fleet_named(settings).feed().now()

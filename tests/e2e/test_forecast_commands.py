"""``duetune forecast`` and ``duetune forecast backtest`` through their whole stack."""

from __future__ import annotations

import csv
import json

import click
import numpy as np
import pytest

from duetune.cli import main
from duetune.cli.forecast import forecast
from duetune.testing.small_markets import random_market
from support.places import ROOT

PAGE = ROOT / "docs" / "reference" / "cli.md"
QUICK = ("--forecasters", "last,seasonal:48", "--jobs", "4", "--horizons", "1,6")


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("DUETUNE_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def duetune(capsys):
    """Runs ``duetune forecast``; gives its standard output."""

    def call(*arguments):
        status = main(["forecast", *arguments])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return captured.out

    return call


@pytest.fixture
def refused(capsys):
    """Runs what must be refused; gives the one line that says why."""

    def call(*arguments):
        status = main(["forecast", *arguments])
        captured = capsys.readouterr()
        assert status == 2, captured.err
        assert captured.out == ""
        assert captured.err.startswith("duetune: ")
        assert captured.err.count("\n") == 1
        return captured.err

    return call


@pytest.fixture
def trace_file(tmp_path):
    """Three days of a market in slots of 30 minutes."""
    market = random_market(3, 144)
    lines = ["time,spot_usd_gpu_h,on_demand_usd_gpu_h,available"]
    for slot, (price, count) in enumerate(
        zip(market.spot_price[0], market.available[0], strict=True)
    ):
        moment = np.datetime64("2026-01-01T00:00") + np.timedelta64(30 * slot, "m")
        lines.append(f"{moment}:00+00:00,{price},3.0,{count}")
    (tmp_path / "prices.csv").write_text("\n".join(lines) + "\n")
    return "prices.csv"


class TestShow:
    def test_a_file_alone_shows_what_comes_after_it(self, duetune, trace_file, tmp_path):
        out = duetune(trace_file, "--forecaster", "last", "--plot", "fan.png")
        assert "forecast by last in slot 143, the last" in out
        assert out.endswith("Plot: fan.png\n")
        assert "came" not in out
        assert (tmp_path / "fan.png").read_bytes().startswith(b"\x89PNG")

    def test_a_file_is_the_same_as_a_trace(self, duetune, trace_file):
        said = duetune(trace_file, "--forecaster", "perfect")
        assert said == duetune("--forecaster", "perfect", "--trace", trace_file)
        assert said == duetune("show", trace_file, "--forecaster", "perfect")

    def test_in_the_past_what_came_stands_beside_it(self, duetune, trace_file):
        out = duetune(trace_file, "--at", "100", "--hours", "3")
        assert "forecast by combined in slot 100" in out
        assert "actual: $" in out
        assert len(out.splitlines()) >= 2 + 2 + 6

    def test_the_document_has_every_slot(self, duetune):
        said = json.loads(
            duetune("--market", "diurnal", "--at", "470", "--forecaster", "perfect", "--json")
        )
        assert list(said) == [
            *("command", "version", "seed", "forecaster", "market", "at", "slots")
        ]
        assert len(said["slots"]) == 24
        first = said["slots"][0]
        assert first["hours"] == 0.5
        assert first["available"]["value"] == first["available"]["came"]
        assert first["spot_price"]["value"] == pytest.approx(first["spot_price"]["came"])
        assert said["slots"][-1]["available"]["came"] is None

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--forecaster", "nope"), "forecast: 'nope' is not allowed; expected arima, ets"),
            (("--at", "480"), "--at: 480 is not allowed; expected a slot"),
            (("--at", "-1"), "--at: -1 is not allowed"),
            (
                ("--hours", "0.7"),
                "--hours: 0.7 is not allowed; expected 1 to 2,000 whole slots of 30 min",
            ),
            (("--hours", "nan"), "--hours: nan is not allowed"),
            (("--hours", "0"), "--hours: 0.0 is not allowed"),
            (("--plot", "fan.doc"), "--plot: 'fan.doc' is not allowed"),
            (("--plot", "no/such/fan.png"), "expected a file in a folder that exists"),
            (("nowhere.csv",), "nowhere.csv"),
            (("nowhere.csv", "--market", "diurnal"), "one market"),
            (("--market", "nope"), "market: 'nope' is not allowed"),
        ],
    )
    def test_what_cannot_be_used_is_refused_in_one_line(self, refused, arguments, words, tmp_path):
        assert words in refused(*arguments)
        assert list(tmp_path.iterdir()) == []

    def test_an_empty_file_is_refused(self, refused, tmp_path):
        (tmp_path / "empty.csv").write_text("")
        assert "empty" in refused("empty.csv")


class TestBacktestCommand:
    def test_the_leaderboard_the_rows_and_the_plot(self, duetune, trace_file, tmp_path):
        out = duetune(
            *("backtest", "--trace", trace_file, *QUICK), "--csv", "rows.csv", "--plot", "board.png"
        )
        for words in ("skill", "90% range holds", "regret", "MAE", "pinball", "seasonal:48"):
            assert words in out
        assert out.endswith("Rows: rows.csv\nPlot: board.png\n")
        with (tmp_path / "rows.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert {(row["forecaster"], row["hours"]) for row in rows} == {
            (name, hours) for name in ("last", "seasonal:48") for hours in ("1.0", "6.0")
        }
        assert (tmp_path / "board.png").read_bytes().startswith(b"\x89PNG")

    def test_the_same_seed_gives_the_same_document(self, duetune, trace_file):
        arguments = ("backtest", "--trace", trace_file, *QUICK, "--seed", "2", "--json")
        said = json.loads(duetune(*arguments))
        assert said["command"] == "forecast backtest"
        assert [row["forecaster"] for row in said["standings"]][-1] in {"last", "seasonal:48"}
        assert len(said["scores"]) == 2 * 2 * 2
        assert said["jobs"] == 4
        assert json.loads(duetune(*arguments)) == said

    def test_without_jobs_there_is_no_regret(self, duetune, trace_file):
        said = json.loads(
            duetune(
                *("backtest", "--trace", trace_file, "--forecasters", "last"),
                *("--jobs", "0", "--json"),
            )
        )
        assert said["perfect_utility"] is None
        assert said["standings"][0]["regret"] is None

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--forecasters", "last,nope"), "forecast: 'nope' is not allowed; expected arima"),
            (("--forecasters", ""), "forecast: '' is not allowed"),
            (("--horizons", "0.7"), "horizons: 0.7 is not allowed; expected hours, whole slots"),
            (("--horizons", "1,x"), "horizons: '1,x' is not allowed; expected hours, separated"),
            (("--horizons", "400"), "horizons: 400.0 is not allowed; expected at most"),
            (("--warm-up", "1"), "warm_up: 1.0 is not allowed"),
            (("--plot", "no/such/board.png"), "--plot"),
            (("--csv", "rows.txt"), "--csv"),
            (("--mix", "nowhere.json"), "mix file"),
            (("--trace", "nowhere.csv"), "nowhere.csv"),
        ],
    )
    def test_what_cannot_be_used_is_refused_in_one_line(self, refused, arguments, words, tmp_path):
        assert words in refused("backtest", *arguments)
        assert list(tmp_path.iterdir()) == []

    def test_a_trace_that_is_too_short_is_refused(self, refused, tmp_path):
        header = "time,spot_usd_gpu_h,on_demand_usd_gpu_h,available"
        rows = [f"2026-01-01T00:{minute}:00+00:00,1,3,2" for minute in ("00", "30")]
        (tmp_path / "short.csv").write_text("\n".join([header, *rows]) + "\n")
        assert "2 slots" in refused("backtest", "--trace", "short.csv")


def test_help_explains_both(duetune):
    out = duetune("--help")
    assert "duetune forecast prices.csv --plot fan.png" in out
    assert "duetune forecast backtest --trace prices.csv" in out
    assert "seasonal:SLOTS" in duetune("backtest", "--help")
    assert "seasonal:SLOTS" in duetune("show", "--help")


def test_the_page_has_every_option():
    text = PAGE.read_text(encoding="utf-8")
    for command in forecast.commands.values():
        options = [each for each in command.params if isinstance(each, click.Option)]
        for option in (flag for parameter in options for flag in parameter.opts):
            assert f"`{option}" in text, f"{option} of forecast {command.name}"

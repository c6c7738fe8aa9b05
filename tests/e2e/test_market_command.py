"""``duetune market stats`` through its whole stack: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json

import msgspec
import numpy as np
import pytest

from duetune.cli import main
from duetune.core.market import MarketTrace, Pool
from duetune.market.synthetic import synthetic_market
from duetune.market.traces import save_trace


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("DUETUNE_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def two_pools(tmp_path):
    """A trace file of two pools, ten days, one of them with a constant price."""
    one, other = (synthetic_market("diurnal", seed=seed, slots=480) for seed in (1, 2))
    trace = MarketTrace(
        spot_price=np.concatenate([one.spot_price, np.full_like(other.spot_price, 0.5)]),
        available=np.concatenate([one.available, other.available]),
        on_demand_price=np.concatenate([one.on_demand_price, other.on_demand_price]),
        pools=(Pool("east"), Pool("west")),
    )
    save_trace(trace, tmp_path / "market.csv")
    return "market.csv"


def called(capsys, *arguments):
    status = main(("market", "stats", *arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_every_pool_of_a_trace_has_its_rows(capsys, two_pools):
    status, out, _ = called(capsys, "--trace", two_pools)
    assert status == 0
    assert "east: 480 slots of 30 min, 10.0 days" in out
    availability, price = out.split("Availability")[1], out.split("\nPrice\n")[1]
    assert "east" in availability
    assert "west" in availability
    assert "west" not in price.split("Squared")[0], "its price does not move"


def test_one_pool_can_be_asked_for(capsys, two_pools):
    status, out, _ = called(capsys, "--trace", two_pools, "--pool", "west", "--json")
    assert status == 0
    document = json.loads(out)
    assert [each["market"]["pool"] for each in document["series"]] == ["west"]


def test_the_document_has_all_figures_and_the_same_seed_prints_the_same(capsys):
    arguments = ("--market", "outage", "--seed", "3", "--gpus", "4", "--json")
    status, out, _ = called(capsys, *arguments)
    assert status == 0
    assert called(capsys, *arguments)[1] == out
    document = json.loads(out)
    assert (document["command"], document["gpus"], document["seed"]) == ("market stats", 4, 3)
    found = document["series"][0]["statistics"]
    assert found["gpus"] == 4
    deep = found["predictability"]
    assert [each["hours"] for each in deep["available"]["acf"]] == [1, 3, 6, 12, 24, 168]
    assert deep["available"]["weekly"] is not None, "eight weeks of a synthetic market"
    assert deep["entropy"]["given_last"] < deep["entropy"]["marginal"]


def test_rows_and_the_picture_are_written(capsys, two_pools, tmp_path):
    status, out, _ = called(capsys, "--trace", two_pools, "--csv", "a.csv", "--plot", "a.png")
    assert status == 0
    assert "Rows: a.csv" in out
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shares = {row["pool"]: row["value"] for row in rows if row["figure"] == "share_available"}
    assert set(shares) == {"east", "west"}
    assert any(row["figure"] == "predictability.up.median_hours" for row in rows)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--trace", "nowhere.csv"), "trace file: 'nowhere.csv'"),
        (("--trace", "a", "--market", "outage"), "cannot be used together"),
        (("--gpus", "0"), "--gpus"),
        (("--plot", "a.gif"), "--plot: 'a.gif'"),
        (("--csv", "a.txt"), "--csv: 'a.txt'"),
        (("--market", "weather"), "weather"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(capsys, arguments, words):
    status, out, err = called(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("duetune: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_negative_seed_is_refused_for_a_trace_as_well(capsys, two_pools):
    status, out, err = called(capsys, "--trace", two_pools, "--seed", "-1")
    assert (status, out) == (2, "")
    assert err == "duetune: seed: -1 is not allowed; expected a whole number, zero or more\n"


def test_an_always_available_market_of_constant_price_is_described(capsys, tmp_path):
    trace = msgspec.structs.replace(
        synthetic_market("outage", seed=1, slots=300),
        available=np.full((1, 300), 4),
        spot_price=np.full((1, 300), 0.4),
    )
    save_trace(trace, tmp_path / "easy.csv")
    status, out, _ = called(capsys, "--trace", "easy.csv")
    assert status == 0
    assert "100%" in out
    assert "Squared error avoided" not in out, "there is no error"


def test_the_summary_has_prices_availability_and_spells_within_80_columns(
    capsys, two_pools, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = called(capsys, "--trace", two_pools)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    summary = out.split("Summary")[1].split("Availability")[0].splitlines()
    assert summary[1].split() == [
        *("pool", "$", "p10", "p50", "p90", "o.d.", "up", "GPUs", "stays", "away", "lost/d"),
    ]
    assert summary[4].split()[:6] == ["west", "1.00", "1.00", "1.00", "3.00", "51%"]

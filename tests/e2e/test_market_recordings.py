"""``duetune market show``, ``feeds``, ``import`` and ``record`` through their whole stack."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from duetune.cli import main
from duetune.market.slot_grid import MICROSECONDS_PER_HOUR
from duetune.market.traces import load_grid
from duetune.settings import load_settings
from duetune.store.store import opened_store
from duetune.wall_clock import wall_now
from duetune.wiring import market_feed
from support.harness import Room
from support.patience import PATIENCE_S, until
from support.places import ASSETS
from support.process_driver import register

START = datetime(2026, 11, 1, tzinfo=UTC)
CATALOG = "GPUHUNT_CATALOG_DIR"


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("DUETUNE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DUETUNE_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def gappy(tmp_path):
    """Six rows: one slot is missing, one has no count, one only a lower bound."""
    rows = ["time,pool,spot_usd_gpu_h,on_demand_usd_gpu_h,available,slot_hours,basis"]
    for number, count, basis in (
        (0, 4, ""),
        (1, 0, ""),
        (3, "", ""),
        (4, 2, "at least"),
        (5, 8, ""),
    ):
        time = (START + timedelta(minutes=30 * number)).isoformat()
        rows.append(f"{time},east,{1 + number / 10},3.0,{count},0.5,{basis}")
    (tmp_path / "gappy.csv").write_text("\n".join(rows) + "\n")
    return "gappy.csv"


def called(capsys, *arguments):
    status = main(("market", *arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


class TestShow:
    def test_gaps_are_shown_as_gaps(self, capsys, gappy):
        status, out, _ = called(capsys, "show", gappy)
        assert status == 0
        assert "east: 6 slots of 30 min" in out
        assert "from 2026-11-01T00:00Z to 2026-11-01T03:00Z" in out
        assert "1 slots without a row\n1 slots whose GPUs nobody counted" in out
        assert "1 slots whose count is a lower bound" in out
        assert "1.50 │" in out
        assert "8 │     █" in out
        assert "0 │█ ··██" in out
        assert max(map(len, out.splitlines())) <= 80

    def test_the_document_says_what_is_not_known(self, capsys, gappy):
        slots = json.loads(called(capsys, "show", gappy, "--json")[1])["slots"]
        assert [slot["available"] for slot in slots] == [4, 0, None, None, 2, 8]
        assert [slot["spot_price"] for slot in slots] == [1.0, 1.1, None, 1.3, 1.4, 1.5]
        assert [slot["at_least"] for slot in slots] == [False] * 4 + [True, False]

    def test_the_last_days_and_the_picture(self, capsys, gappy, tmp_path):
        status, out, _ = called(capsys, "show", gappy, "--days", "0.0417", "--plot", "a.png")
        assert status == 0
        assert "east: 2 slots" in out
        assert "Plot: a.png" in out
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

    def test_without_a_trace_it_is_the_feed_of_the_home(self, capsys):
        status, out, _ = called(capsys, "show")
        assert status == 0
        assert "embedded: 241 slots of 30 min" in out
        assert "\nNow: spot $" in out

    def test_a_synthetic_market_has_no_dates(self, capsys):
        out = called(capsys, "show", "--market", "outage", "--plot", "a.png")[1]
        assert "1970" not in out

    @pytest.mark.usefixtures("gappy")
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("nowhere.csv",), "trace file: 'nowhere.csv'"),
            (("gappy.csv", "--market", "outage"), "give one market"),
            (("gappy.csv", "--pool", "west"), "pool: 'west'"),
            (("gappy.csv", "--days", "0"), "--days"),
            (("gappy.csv", "--plot", "a.gif"), "--plot: 'a.gif'"),
        ],
    )
    def test_what_cannot_be_shown_is_one_line(self, capsys, arguments, words):
        status, out, err = called(capsys, "show", *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert words in err


class TestImport:
    def test_a_file_becomes_the_recording_of_its_pool(self, capsys, gappy, home):
        status, out, _ = called(capsys, "import", gappy, "--gaps", "hold")
        assert status == 0
        assert "east: 6 slots added or changed, 6 in all; " in out
        assert load_grid(home / "markets" / "east.csv").present.all()
        assert "0 slots added" in called(capsys, "import", gappy, "--gaps", "hold")[1]
        listed = called(capsys, "feeds")[1]
        assert "east.csv: pool east, until 2026-11-01T03:00Z" in listed
        assert "6 slots of 30 min, 6 counted" in listed
        (home / "markets" / "torn.csv").write_text("nonsense\n")
        assert "torn.csv: columns of torn.csv" in called(capsys, "feeds")[1]
        document = json.loads(called(capsys, "feeds", "--json")[1])
        assert document["recordings"][0]["slots"] == 6
        assert "recorded:FILE" in document["feeds"]

    def test_an_aws_file_needs_what_it_does_not_have(self, capsys, home):
        path = str(ASSETS / "feeds" / "spot-price-history.json")
        status, _, err = called(capsys, "import", path)
        assert (status, err.count("\n")) == (2, 1)
        assert "--on-demand-price" in err
        status, _, _ = called(
            capsys,
            "import",
            path,
            "--on-demand-price",
            "4",
            "--available",
            "8",
            "--slot-hours",
            "0.1",
        )
        assert status == 0
        assert {path.stem for path in (home / "markets").glob("*.csv")} == {
            "us-east-1a",
            "us-east-1b",
        }

    def test_what_our_jobs_were_granted_is_added(self, capsys, home):
        home.mkdir()
        with opened_store(load_settings({"DUETUNE_HOME": str(home)})) as store:
            room = Room(store=store)
            room.submit()
            room.run()
        status, out, _ = called(capsys, "import", "--from-jobs", "--json")
        assert status == 0
        answer = json.loads(out)
        assert answer["changed"] == answer["slots"] > 3
        assert answer["pool"] == "embedded"
        grid = load_grid(home / "markets" / "embedded.csv")
        assert 0 < grid.at_least.sum() < grid.counted.sum()
        assert "0 slots added or changed" in called(capsys, "import", "--from-jobs")[1]

    @pytest.mark.usefixtures("gappy")
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((), "a TRACE file or --from-jobs"),
            (("gappy.csv", "--from-jobs"), "a TRACE file or --from-jobs"),
            (("gappy.csv",), "gap in pool 'east'"),
            (("gappy.csv", "--gaps", "hold", "--to", "a.txt"), "ends in .csv"),
            (("--from-jobs",), "a home with jobs; it has none"),
            (("gappy.csv", "--market", "outage"), "a synthetic market is not imported"),
        ],
    )
    def test_what_cannot_be_imported_is_one_line(self, capsys, arguments, words):
        status, out, err = called(capsys, "import", *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert words in err


class TestRecord:
    def test_a_fleet_that_does_not_run_and_a_recording_are_refused(self, capsys):
        status, _, err = called(capsys, "record", "--once")
        assert (status, err.count("\n")) == (2, 1)
        assert "`duetune fleet start`" in err
        status, _, err = called(capsys, "record", "--once", "--feed", "recorded:a.csv")
        assert status == 2
        assert "not a recording itself" in err

    @pytest.mark.filterwarnings("ignore")
    def test_once_adds_the_present_slot(self, capsys, home, monkeypatch):
        pytest.importorskip("gpuhunt")
        monkeypatch.setenv(CATALOG, str(ASSETS / "feeds"))
        status, out, _ = called(capsys, "record", "--once", "--feed", "offers:gcp:H100")
        assert status == 0
        assert "$2.5000 spot, not counted; added" in out
        grid = load_grid(home / "markets" / "gcp-H100.csv")
        assert grid.spot_usd_gpu_h.tolist() == [[2.5]]
        assert not grid.counted.any()
        slot = grid.slot_hours * MICROSECONDS_PER_HOUR
        assert 0 <= wall_now() * 1e6 - grid.start < 2 * slot

    @pytest.mark.live
    @pytest.mark.more
    def test_it_can_be_killed_and_started_again(self, home):
        pytest.importorskip("gpuhunt")
        command = [sys.executable, "-m", "duetune.cli", "market", "record"]
        environment = {**os.environ, CATALOG: str(ASSETS / "feeds")}
        path = home / "markets" / "gcp-H100.csv"

        def started():
            return subprocess.Popen(
                [*command, "--feed", "offers:gcp:H100"],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )

        for number in (signal.SIGKILL, signal.SIGTERM):
            with started() as recorder:
                said = recorder.stdout.readline()
                assert said.startswith("Recording gcp/H100 in ")
                until(lambda: path.exists() and load_grid(path).present.all(), "a recorded slot")
                told = recorder.stdout.readline()
                assert "spot, not counted" in told
                recorder.send_signal(number)
                status = recorder.wait(PATIENCE_S)
            assert status == (-signal.SIGKILL if number is signal.SIGKILL else 0)
        assert len(path.read_text().splitlines()) in {2, 3}


def test_the_market_of_an_engine_can_be_recorded_and_is_its_history(
    home, tmp_path, capsys, monkeypatch
):
    monkeypatch.syspath_prepend(register(tmp_path / "plugin"))
    settings = ("--set", f"folder={tmp_path / 'engine'}", "--set", "spot=3")
    assert main(("fleet", "add", "lab", "--engine", "processes", *settings)) == 0
    (home / "config.toml").write_text('[site]\nfleet = "lab"\n')
    status, out, _ = called(capsys, "record", "--once")
    assert (status, "lab" in out) == (0, True)
    grid = load_grid(home / "markets" / "lab.csv")
    assert grid.available[0].tolist() == [3]
    assert grid.slot_hours == pytest.approx(5 / 60)
    status, out, _ = called(capsys, "feeds")
    assert "lab.csv: pool lab" in out
    # An hour later: the recorded slot is known, and the hour after it is not made up.
    later = wall_now() + 3600
    monkeypatch.setattr("duetune.fleets.real_time.wall_now", lambda: later)
    known = market_feed(load_settings()).history(20)
    assert known.available[0].tolist() == [3] * known.slots
    assert known.slots in {12, 13}
    status, out, _ = called(capsys, "record", "--once")
    assert status == 0
    assert len((home / "markets" / "lab.csv").read_text().splitlines()) == 3


def test_another_fleet_than_the_default_is_recorded_and_shown(home, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(register(tmp_path / "plugin"))
    settings = ("--set", f"folder={tmp_path / 'engine'}", "--set", "spot=2")
    assert main(("fleet", "add", "lab", "--engine", "processes", *settings)) == 0
    capsys.readouterr()
    status, out, _ = called(capsys, "record", "--fleet", "lab", "--once")
    assert (status, "2 available" in out) == (0, True)
    assert load_grid(home / "markets" / "lab.csv").available[0].tolist() == [2]
    status, out, _ = called(capsys, "show", "--fleet", "lab", "--json")
    assert (status, json.loads(out)["pool"]) == (0, "lab")
    for command in (("record", "--once"), ("show",)):
        status, _, err = called(capsys, *command, "--fleet", "nowhere")
        assert (status, "nowhere" in err, "lab" in err) == (2, True, True)
    status, _, err = called(capsys, "show", "--fleet", "lab", "--market", "diurnal")
    assert (status, "give one market" in err) == (2, True)

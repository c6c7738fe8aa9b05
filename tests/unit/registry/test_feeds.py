"""Feeds by name: their arguments, their pools and recordings, and what is refused."""

from __future__ import annotations

import builtins

import pytest

from duetune.cli import main
from duetune.core.market import Pool
from duetune.errors import InvalidInput, MissingExtra
from duetune.market.feeds.recording import RecordedSlot, Recording
from duetune.registry.feeds import feed_named, pool_of, recording_of
from duetune.registry.markets import forecast_named
from duetune.settings import Settings, SiteSettings
from duetune.testing import MemoryFleet
from duetune.wall_clock import OFFSET_FILE, wall_now
from duetune.wiring import desk, market_feed
from support.places import ASSETS

SLOT_S = 1800.0


@pytest.fixture(autouse=True)
def _in_the_middle_of_a_slot(tmp_path_factory, monkeypatch):
    offset = tmp_path_factory.mktemp("clock") / "offset"
    offset.write_text(str(SLOT_S / 2 - wall_now() % SLOT_S))
    monkeypatch.setenv(OFFSET_FILE, str(offset))


def settings(home, feed, **site):
    chosen = SiteSettings(feed=feed, **site)
    return Settings(home=home, database=str(home / "db"), site=chosen)


def named(home, feed, **site):
    return feed_named(settings(home, feed, **site), MemoryFleet)


def recording(home, name="pool.csv", slots=40, **how):
    began = (wall_now() // SLOT_S - slots + 1) * SLOT_S
    file = Recording(home / name, Pool("here", "H100"), SLOT_S)
    for number in range(slots):
        if number not in how.get("gaps", ()):
            file.append(began + number * SLOT_S, RecordedSlot(1.0, 3.0, 3 + number % 2))


@pytest.mark.parametrize(
    ("feed", "words"),
    [
        ("aws", "'aws' is not allowed; expected aws:REGION:TYPE"),
        ("aws:us-east-1", "aws:REGION:TYPE"),
        ("aws:us-east-1:g5.xlarge:more", "aws:REGION:TYPE"),
        ("aws:us-east-1:g5.xlarge:zome=a", "option: 'zome' is not allowed; expected one of zone"),
        ("aws:us-east-1:m5.large", "'m5.large' is not allowed; expected a type of the AWS"),
        ("aws:us-east-1:g5.xlarge:gpus=1.5", "gpus: '1.5'"),
        ("aws:us-east-1:g5.xlarge:on_demand=free", "on_demand: 'free'"),
        ("aws:us-east-1:g5.xlarge:available=lots", "available: 'lots'.*scores, or a number"),
        ("aws:us-east-1:g3.4xlarge", "on_demand is required.*no usual price of M60"),
        ("offers:gcp", "offers:PROVIDER:GPU"),
        ("offers:nobody:H100", "provider of the offers feed: 'nobody'"),
        ("offers:gcp:H100:memory=-1", "memory: '-1'"),
        ("recorded", "recorded:FILE"),
        ("recorded:none.csv", "an existing file; `duetune market record` writes one"),
        ("recorded:pool.csv:hold=0", "hold: '0'"),
        ("recorded:pool.csv:pool=there", "pool: 'there' is not allowed; expected one of here"),
        ("nowhere:x", "site.feed: 'nowhere:x'.*aws:REGION:TYPE"),
    ],
)
def test_a_wrong_name_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, feed, words):
    recording(tmp_path)
    with pytest.raises(InvalidInput, match=words):
        named(tmp_path, feed)
    monkeypatch.setenv("DUETUNE_HOME", str(tmp_path))
    assert main(["market", "show", "--feed", feed]) == 2
    said = capsys.readouterr().err
    assert said.startswith("duetune: ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("feed", "package", "extra"),
    [("aws:us-east-1:g5.xlarge", "boto3", "aws"), ("offers:gcp:H100", "gpuhunt", "offers")],
)
def test_a_missing_package_names_its_extra(tmp_path, monkeypatch, feed, package, extra):
    found = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=rf"duetune\[{extra}\]"):
        named(tmp_path, feed)


def test_the_embedded_fleet_at_another_speed_has_its_own_market_only(tmp_path):
    recording(tmp_path)
    with pytest.raises(InvalidInput, match="runs 60 times as fast as the world"):
        named(tmp_path, "recorded:pool.csv", speed=60)


def test_a_feed_has_a_pool_and_the_pool_a_file(tmp_path):
    recording(tmp_path)
    chosen = settings(tmp_path, "recorded:pool.csv")
    assert pool_of(chosen, market_feed(chosen)) == Pool("here", "H100")
    own = settings(tmp_path, "fleet", accelerator="A100")
    assert pool_of(own, MemoryFleet()) == Pool("embedded", "A100")
    path = recording_of(chosen, Pool("p4d.24xlarge/us-east-1a"))
    assert path == tmp_path / "markets" / "p4d.24xlarge-us-east-1a.csv"
    assert recording_of(chosen, Pool("../..")).parent == tmp_path / "markets"


def test_the_desk_and_forecasters_learn_from_a_recording_with_gaps(tmp_path):
    recording(tmp_path, gaps={20, 21, 22, 39})
    chosen = settings(tmp_path, "recorded:pool.csv", max_gpus=2)
    made = desk(chosen)
    assert made.history.slots == 39
    assert set(made.history.available[0].tolist()) == {3, 4}
    assert made.market.slot.available == 3
    forecaster = forecast_named("markov", seed=0).causal(0.5)
    for number in range(made.history.slots):
        forecaster.observe(made.history.slot(number))
    assert max(forecaster.forecast(4).available) <= 4


@pytest.mark.filterwarnings("ignore")
def test_price_lists_remember_by_the_recording_of_their_pool(tmp_path, monkeypatch):
    pytest.importorskip("gpuhunt")
    monkeypatch.setenv("GPUHUNT_CATALOG_DIR", str(ASSETS / "feeds"))
    chosen = settings(tmp_path, "offers:gcp:H100", max_gpus=6)
    feed = market_feed(chosen)
    report = feed.now()
    assert (report.slot.spot_price, report.slot.available, report.counted) == (1.25, 6, False)
    assert feed.history(48) is None
    path = recording_of(chosen, feed.pool)
    path.parent.mkdir()
    file = Recording(path, feed.pool, SLOT_S)
    for number in range(4):
        file.append(report.slot_began - (4 - number) * SLOT_S, RecordedSlot(2.0, 11.0, number))
    assert feed.history(48).available.tolist() == [[0, 1, 2, 3]]
    assert feed.now().slot.available == 3
    assert feed.now().counted

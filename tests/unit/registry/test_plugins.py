"""Each entry point group with a package that registers in it: found, listed and used."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from duetune.cli import main
from duetune.core.decision import Forecast
from duetune.core.fleet import FleetReport, MarketReport
from duetune.core.job import Job, linear_throughput
from duetune.core.ports import Policy
from duetune.errors import InvalidInput
from duetune.fleets.host import Connected
from duetune.knowledge.history import History
from duetune.market.synthetic import synthetic_market
from duetune.policies.ahap import Ahap
from duetune.policies.guard import PolicyGuard
from duetune.registry.feeds import feed_named, feeds_listed
from duetune.registry.fleets import fleet_named, fleets_listed
from duetune.registry.markets import forecast_named, forecasters_listed
from duetune.registry.planners import planner_named, planners_listed
from duetune.registry.policies import policies_listed, policies_named, policy_named
from duetune.registry.sources import source_named, sources_listed
from duetune.settings import Settings, SiteSettings
from duetune.simulate.episode import simulate
from duetune.store.store import open_store
from duetune.wiring import (
    check_names,
    desk_site,
    make_controller,
    market_feed,
    on_demand_usd_h,
    running_fleet,
    start_fleet,
)

if TYPE_CHECKING:
    from pathlib import Path

PLUGIN = """
from duetune.core.planning import Plan
from duetune.core.decision import Allocation, Decision, Forecast
from duetune.core.fleet import FleetReport, MarketReport
from duetune.core.market import Slot
from duetune.errors import InvalidInput
from duetune.fleets.host import Connected
from duetune.market.forecast.simple import LastValue
from duetune.knowledge.sources.nearest import NearestSource

class Idle:
    def __init__(self, greeting="idle"):
        self.name = greeting
    def decide(self, view):
        return Decision(Allocation(), "nothing")

class Picky:
    name = "picky"
    def __init__(self, share):
        raise InvalidInput("share", share, "another")
    def decide(self, view): ...

ready = Idle("ready")
def thing(*given): return 42

class Nobody:
    name = "nobody"
    def plan(self, views, stock):
        return Plan({}, {})

def nearest(history, count):
    return NearestSource(history, count=int(count))

class Same(LastValue):
    def __init__(self, slot_hours, factor="1"):
        super().__init__()
        self.slot_hours = slot_hours

class Prices:
    def __init__(self, settings, price="2"):
        self.settings, self.price = settings, float(price)
    def now(self):
        return MarketReport(0.0, 0, 0.0, 1800.0, Slot(self.price / 4, 3, self.price / 2))
    def history(self, slots):
        return None

class Mine:
    def __init__(self, region):
        self.region = region
    def apply(self, commands): ...
    def observe(self, job):
        return FleetReport(0.0, ())

class Wall:
    def now(self): return 7.0
    def wait_until(self, moment): ...

def fleet(settings, region="here"):
    return Connected(Mine(region), Prices(settings), Wall(), speed=3.0)
"""
GROUPS = {
    "duetune.policies": {
        "idle": "plug:Idle",
        "ready": "plug:ready",
        "picky": "plug:Picky",
    },
    "duetune.planners": {"nobody": "plug:Nobody"},
    "duetune.knowledge_sources": {"near": "plug:nearest"},
    "duetune.forecasters": {"same": "plug:Same"},
    "duetune.feeds": {"prices": "plug:Prices"},
    "duetune.fleets": {"mine": "plug:fleet"},
}
BROKEN = {
    "gone": "no_such_module:Thing",
    "thing": "plug:thing",
    "leaves": "plug_that_leaves:Thing",
    "less": "plug:no_such_name",
}


@pytest.fixture(autouse=True)
def _plugged(tmp_path, monkeypatch):
    """Another package that registers one of each kind, and broken ones beside them."""
    folder = tmp_path / "site"
    metadata = folder / "plug-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "plug.py").write_text(PLUGIN)
    (folder / "plug_that_leaves.py").write_text("import sys; sys.exit('no licence')")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    lines = [
        line
        for group, points in GROUPS.items()
        for line in (f"[{group}]", *(f"{k} = {v}" for k, v in (points | BROKEN).items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(folder))
    yield
    for name in ("plug", "plug_that_leaves"):
        sys.modules.pop(name, None)


def settings(folder: Path, **site) -> Settings:
    home = folder / "home"
    return Settings(home=home, database=str(home / "db"), site=SiteSettings(**site))


MAKERS = {
    "policy": (policies_listed, lambda name, _: policy_named(name)),
    "planner": (planners_listed, lambda name, _: planner_named(name)),
    "source": (sources_listed, lambda name, _: source_named(name, History.empty())),
    "forecast": (forecasters_listed, lambda name, _: forecast_named(name, seed=0)),
    "site.feed": (
        feeds_listed,
        lambda name, folder: feed_named(settings(folder, feed=name), lambda: None),
    ),
    "site.fleet": (fleets_listed, lambda name, folder: fleet_named(settings(folder, fleet=name))),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", "no_such_module:Thing fails with ModuleNotFoundError"),
        ("less", "plug:no_such_name fails with AttributeError"),
        ("leaves", "SystemExit: no licence"),
        ("thing", "plug:thing to return a"),
    ],
)
def test_one_that_is_broken_is_one_clear_message_and_the_others_are_listed(
    tmp_path, kind, name, message
):
    listed, make = MAKERS[kind]
    with pytest.raises(InvalidInput, match=message) as refused:
        make(name, tmp_path)
    assert refused.value.field == kind
    assert "\n" not in str(refused.value)
    meanings = {each.name: each.meaning for each in listed()}
    assert meanings[name] == f"registered by {BROKEN[name]}"


@pytest.mark.parametrize("kind", MAKERS)
def test_an_unknown_name_is_told_all_that_are_known(tmp_path, kind):
    listed, make = MAKERS[kind]
    with pytest.raises(InvalidInput) as refused:
        make("nope", tmp_path)
    assert refused.value.field == kind
    for each in listed():
        assert each.name.split(":")[0].split("[")[0] in refused.value.allowed


class TestPolicies:
    def test_a_factory_is_called_with_the_parts_of_the_name(self):
        assert policy_named("idle").name == "idle"
        assert policy_named("idle:hello").name == "hello"

    def test_a_policy_is_taken_as_it_is(self):
        assert isinstance(policy_named("ready"), Policy)
        assert policy_named("ready") is policy_named("ready")

    def test_it_can_be_guarded_and_grouped(self):
        assert isinstance(policy_named("guarded:idle"), PolicyGuard)
        assert [policy.name for policy in policies_named("idle,on_demand")] == ["idle", "on_demand"]

    @pytest.mark.parametrize(
        ("name", "message"), [("idle:a:b", "TypeError"), ("picky:1", "share: '1'")]
    )
    def test_one_that_fails_says_how(self, name, message):
        with pytest.raises(InvalidInput, match=message):
            policy_named(name)


def test_a_planner_is_made():
    assert planner_named("nobody").plan([], None).shapes == {}


def test_a_source_is_given_the_history():
    assert source_named("near:3", History.empty()).count == 3


class TestForecasters:
    def test_it_is_used_by_a_simulation_as_its_built_in_twin_is(self):
        job = Job(work=40, deadline=12, value=100, throughput=linear_throughput(6))
        market = synthetic_market("diurnal", seed=1)
        own = simulate(job, market, Ahap(), forecast_named("last", seed=0), start=50)
        plugged = simulate(job, market, Ahap(), forecast_named("same:2", seed=0), start=50)
        assert plugged.utility == own.utility

    def test_a_tournament_has_the_same_table_of_forecasts(self):
        market = synthetic_market("diurnal", seed=1)
        own = forecast_named("last", seed=0).table(market, 4)
        plugged = forecast_named("same", seed=0).table(market, 4)
        assert (plugged.spot_price == own.spot_price).all()
        assert (plugged.available == own.available).all()

    def test_a_live_forecaster_is_made_with_the_hours_of_a_slot(self):
        source = forecast_named("same", seed=0)
        assert str(source) == "same"
        made = source.causal(0.25)
        assert made.slot_hours == 0.25
        made.observe(synthetic_market("diurnal", seed=1).slot(0))
        assert isinstance(made.forecast(3), Forecast)


class TestFleets:
    def test_commands_are_connected_to_it(self, tmp_path):
        chosen = settings(tmp_path, fleet="mine:there", accelerator="H100", max_gpus=8)
        check_names(chosen)
        found = running_fleet(chosen)
        assert found.fleet.region == "there"
        assert found.fleet.observe("job") == FleetReport(0.0, ())
        assert found.clock.now() == 7.0
        assert start_fleet(chosen).speed == 3.0
        assert isinstance(market_feed(chosen).now(), MarketReport)
        site = desk_site(chosen)
        assert (site.accelerator, site.max_gpus, site.speed) == ("H100", 8, 3.0)

    def test_a_controller_runs_on_it(self, tmp_path):
        chosen = settings(tmp_path, fleet="mine")
        chosen.home.mkdir()
        with open_store(chosen.database) as store:
            found = start_fleet(chosen)
            controller = make_controller(chosen, store, found)
            controller.run(linger_s=0.0)
            assert controller.world.speed == 3.0

    def test_a_host_of_its_own_is_taken_as_it_is(self, tmp_path, monkeypatch):
        class Host:
            running = start = revive = feed = site = lambda _: None

        module = __import__("plug")
        monkeypatch.setattr(module, "fleet", lambda _: Host())
        assert isinstance(fleet_named(settings(tmp_path, fleet="mine")), Host)

    def test_without_interrupt_a_signal_waits_for_the_clock(self):
        assert Connected(None, None, None).interrupt() is None

    def test_the_command_line_asks_it(self, tmp_path, monkeypatch, capsys):
        home = tmp_path / "home"
        home.mkdir()
        (home / "config.toml").write_text('[site]\nfleet = "mine"\nfeed = "prices:8"\n')
        monkeypatch.setenv("DUETUNE_HOME", str(home))
        assert main(["fleet", "status"]) == 0
        assert "on demand $8.00 per GPU-hour" in capsys.readouterr().out
        assert main(["fleet", "start", "--speed", "2"]) == 2
        assert "site.fleet is 'mine'" in capsys.readouterr().err
        assert main(["fleet", "stop"]) == 2
        (home / "config.toml").write_text('[site]\nfleet = "nope"\n')
        assert main(["fleet", "status"]) == 2
        assert "site.fleet: 'nope'" in capsys.readouterr().err
        assert main(["markets"]) == 0
        assert "registered by plug:fleet" in capsys.readouterr().out


class TestFeeds:
    def test_it_takes_the_place_of_the_fleets_own(self, tmp_path):
        chosen = settings(tmp_path, fleet="mine", feed="prices:8")
        check_names(chosen)
        assert running_fleet(chosen).feed.price == 8.0
        assert market_feed(chosen).price == 8.0

    def test_prices_are_per_hour(self, tmp_path):
        assert on_demand_usd_h(settings(tmp_path, fleet="mine", feed="prices:8")) == 8.0
        assert on_demand_usd_h(settings(tmp_path, fleet="mine")) == 2.0

    def test_without_one_it_is_the_market_that_the_embedded_fleet_would_replay(self, tmp_path):
        feed = market_feed(settings(tmp_path, slot_hours=1.0))
        market = synthetic_market("diurnal", seed=0, slots=480, slot_hours=1.0)
        report, history = feed.now(), feed.history(24)
        assert (report.index, report.slot_s) == (168, 3600.0)
        assert report.slot == market.slot(168)
        assert history.slots == 24
        assert (history.spot_price == market.spot_price[:, 144:168]).all()
        assert not (tmp_path / "home").exists()

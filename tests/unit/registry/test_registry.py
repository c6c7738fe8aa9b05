"""Names become objects, and wrong names become one clear message."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import duetune
from duetune.errors import InvalidInput
from duetune.market.forecast.forecast_source import ForecastKind
from duetune.policies.ahanp import Ahanp
from duetune.policies.ahap import Ahap
from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from duetune.policies.guard import CompiledGuard, deadline_guard
from duetune.policies.pool import baselines, default_pool, paper_pool
from duetune.policies.select import AdaHedge, FixedShare, Hedge
from duetune.registry.markets import FORECASTERS, SYNTHETIC_SLOTS, market_named, markets_listed
from duetune.registry.policies import policies_named, policy_named, selector_named
from support.places import ROOT

# Names carry six significant digits.
shares = st.integers(0, 10_000).map(lambda number: number / 10_000)


@st.composite
def ahaps(draw):
    window = draw(st.integers(1, 40))
    return Ahap(
        window=window,
        commitment=draw(st.integers(1, window)),
        threshold=draw(shares),
        outlook=draw(shares),
        patience=draw(shares),
        thrifty=draw(st.booleans()),
        refuse_dear_spot=draw(st.booleans()),
        virtual=draw(st.booleans()),
    )


plain = st.one_of(
    st.sampled_from(
        [
            OnDemandOnly(),
            MaximalSpot(),
            MaximalSpot(thrifty=True),
            UniformProgress(),
            UniformProgress(gang=True),
            UniformProgress(hysteresis=False),
        ]
    ),
    st.builds(Ahanp, threshold=shares),
    ahaps(),
)


@given(st.one_of(plain, plain.map(deadline_guard)))
def test_the_name_of_a_policy_gives_the_policy_back(policy):
    assert policy_named(policy.name) == policy
    assert policies_named(policy.name) == (policy,)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("ahap", Ahap()),
        ("ahap:3", Ahap(window=3)),
        ("ahap:3:2", Ahap(window=3, commitment=2)),
        ("ahap:3:2:0.7", Ahap(window=3, commitment=2, threshold=0.7)),
        ("ahap:3:2:0.7:0.1", Ahap(window=3, commitment=2, threshold=0.7, outlook=0.1)),
        ("ahap:3:2:0.7:0.1:0", Ahap(3, 2, 0.7, 0.1, 0.0)),
        ("ahap:refuse", Ahap(refuse_dear_spot=True)),
        ("ahap:3:virtual", Ahap(window=3, virtual=True)),
        ("ahap:3:refuse:virtual", Ahap(window=3, refuse_dear_spot=True, virtual=True)),
        (" ahanp ", Ahanp()),
        ("ahanp:0.9", Ahanp(threshold=0.9)),
        ("guarded:maximal_spot", CompiledGuard(MaximalSpot())),
        ("guarded:guarded:maximal_spot", CompiledGuard(MaximalSpot())),
    ],
)
def test_trailing_parts_of_a_name_may_be_left_out(name, policy):
    assert policy_named(name) == policy


@pytest.mark.parametrize(
    "name",
    [
        *("", "nope", "Ahap", "guarded", "guarded:", "guarded:nope", "baselines"),
        *("on_demand:1", "maximal_spot:x", "uniform_progress:slow", "uniform_progress:gang:eager"),
        *("ahanp:x", "ahanp:0.3:0.4", "ahanp:nan", "ahanp:-1"),
        *(
            "ahap:-1",
            "ahap:9999",
            "ahap:x",
            "ahap:2:3",
            "ahap:5:1:0.3:0.5:0.7:0.9",
            "ahap:5:1:0.3:99",
        ),
        *("ahap:1.5", "ahap:virtual:refuse", "ahap:²"),
    ],
)
def test_what_is_no_policy_is_refused(name):
    with pytest.raises(InvalidInput) as refused:
        policy_named(name)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_an_unknown_policy_is_told_what_there_is():
    with pytest.raises(InvalidInput, match=r"policy: 'nope' .* on_demand, maximal_spot.*ahap"):
        policy_named("nope")
    with pytest.raises(InvalidInput, match="or a group: baselines, paper, pool"):
        policies_named("baselines,nope")


def test_groups_are_the_pools():
    assert policies_named("baselines") == baselines()
    assert policies_named("paper") == paper_pool()
    assert policies_named("pool") == default_pool()
    assert len(policies_named("paper")) == 112
    planners = [policy for policy in policies_named("paper") if isinstance(policy, Ahap)]
    assert {(policy.outlook, policy.patience) for policy in planners} == {(0, 0)}


def test_each_policy_of_a_list_comes_once_in_the_order_given():
    names = [policy.name for policy in policies_named("ahanp, maximal_spot,baselines,ahanp:0.6")]
    assert names == ["ahanp:0.6", "maximal_spot", "on_demand", "uniform_progress"]


def test_a_guard_goes_over_a_whole_group():
    assert policies_named("guarded:baselines") == tuple(map(deadline_guard, baselines()))


def test_selectors_by_name():
    assert isinstance(selector_named("hedge", 3, jobs=10), Hedge)
    assert isinstance(selector_named("adahedge", 3, jobs=10), AdaHedge)
    assert isinstance(selector_named("fixed_share", 3, jobs=10), FixedShare)
    remembering = selector_named("fixed_share:50", 3, jobs=10)
    assert isinstance(remembering, FixedShare)
    assert remembering.memory == 50


@pytest.mark.parametrize("name", ["", "exp3", "hedge:x", "fixed_share:-1", "fixed_share:1:2"])
def test_an_unknown_selector_is_refused(name):
    with pytest.raises(InvalidInput, match="selector"):
        selector_named(name, 3, jobs=10)


def test_a_synthetic_market_is_as_long_as_needed_and_not_shorter_than_usual():
    assert market_named("outage", seed=1, slots=5).slots == SYNTHETIC_SLOTS
    assert market_named("outage", seed=1, slots=900).slots == 900
    assert market_named("outage", seed=1, slot_hours=1.0).slot_hours == 1.0


def test_every_synthetic_market_is_described():
    for listed in markets_listed():
        assert market_named(listed.name, seed=0).slots
        assert listed.meaning.endswith(".")


def test_an_unknown_market_is_refused():
    with pytest.raises(InvalidInput, match=r"market: 'bull' .* diurnal"):
        market_named("bull", seed=0)
    with pytest.raises(InvalidInput, match="seed: -1"):
        market_named("diurnal", seed=-1)


def test_every_forecaster_is_listed():
    assert {each.name.partition(":")[0] for each in FORECASTERS} == set(ForecastKind)


def test_the_public_names_exist():
    assert set(duetune.__all__) <= set(dir(duetune))
    for name in duetune.__all__:
        assert getattr(duetune, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = duetune.nothing


def test_the_version_is_that_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert duetune.__version__ == project["version"]


def test_importing_duetune_imports_nothing_heavy():
    heavy = "{'numpy', 'numba', 'msgspec', 'click', 'rich', 'matplotlib'}"
    code = f"import duetune, sys; print(sorted({heavy} & set(sys.modules)))"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "[]"

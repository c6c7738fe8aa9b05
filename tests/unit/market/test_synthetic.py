"""Synthetic markets lie where docs/reference/markets.md says that they do."""

from __future__ import annotations

import numpy as np
import pytest

from duetune.core.market import MarketTrace
from duetune.errors import InvalidInput
from duetune.market import datasets
from duetune.market.statistics import market_statistics
from duetune.market.synthetic import SYNTHETIC_MARKETS, MarketKind, synthetic_market

KINDS = list(MarketKind)
QUARTER = 4380

# Medians over ten seeds of a quarter of a year each.
RANGES = {
    "diurnal": {
        "share_available": (0.55, 0.75),
        "acf_1h": (0.5, 0.7),
        "acf_24h": (0.1, 0.4),
        "diurnal_amplitude": (0.4, 0.62),
        "mean_up_hours": (4, 10),
        "mean_down_hours": (2, 4),
        "losses_per_day": (2, 4),
    },
    "regime_switching": {
        "share_available": (0.6, 0.8),
        "acf_1h": (0.45, 0.7),
        "acf_24h": (0.0, 0.2),
        "mean_up_hours": (4, 10),
        "mean_down_hours": (1.5, 4),
        "losses_per_day": (2, 4),
    },
    "outage": {
        "share_available": (0.75, 0.9),
        "acf_1h": (0.45, 0.7),
        "mean_up_hours": (6, 10),
        "mean_down_hours": (1, 4),
        "losses_per_day": (1.5, 3.5),
    },
    "price_spike": {
        "share_available": (0.7, 0.85),
        "acf_1h": (0.4, 0.6),
        "mean_up_hours": (5, 10),
        "mean_down_hours": (1, 4),
        "share_above_on_demand": (0.02, 0.1),
    },
    "capacity_storm": {
        "share_available": (0.45, 0.65),
        "acf_1h": (0.35, 0.6),
        "mean_up_hours": (1.5, 4),
        "mean_down_hours": (1.5, 4),
        "losses_per_day": (4, 8),
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_lies_in_its_ranges(kind):
    figures = [
        market_statistics(synthetic_market(kind, seed=seed, slots=QUARTER)) for seed in range(10)
    ]
    common = {"ratio_p10": (0.15, 0.26), "ratio_p50": (0.28, 0.42)}
    if kind is not MarketKind.PRICE_SPIKE:
        common["ratio_p90"] = (0.42, 0.62)
        common["share_above_on_demand"] = (0.0, 0.0)
    for field, (low, high) in (RANGES[kind] | common).items():
        middle = float(np.median([getattr(figure, field) for figure in figures]))
        assert low <= middle <= high, f"{kind} {field}: {middle}"


def test_slow_prices_move_over_months_and_differ_between_markets():
    traces = [
        synthetic_market("outage", seed=seed, slots=QUARTER, price_motion="slow")
        for seed in range(60)
    ]
    figures = [market_statistics(trace) for trace in traces]
    assert np.median([figure.price_acf_24h for figure in figures]) > 0.85
    ratios = np.concatenate([trace.spot_price[0] / trace.on_demand_price[0] for trace in traces])
    low, middle, high = np.quantile(ratios, [0.1, 0.5, 0.9])
    assert 0.15 < low < 0.26 < middle < 0.42 < high < 0.62
    six_hours = np.log(traces[0].spot_price[0])[::12]
    assert 0.002 < np.diff(six_hours).std() < 0.03
    assert 0.5 < (np.diff(six_hours) != 0).mean() < 0.85


@pytest.mark.parametrize("kind", KINDS)
def test_levels_scale_the_same_market(kind):
    plain = synthetic_market(kind, seed=3, slots=500)
    dear = synthetic_market(kind, seed=3, slots=500, price_level=2.0)
    scarce = synthetic_market(kind, seed=3, slots=500, availability_level=0.5)
    plenty = synthetic_market(kind, seed=3, slots=500, availability_level=9.0)
    none = synthetic_market(kind, seed=3, slots=500, availability_level=0.0)
    assert dear.spot_price == pytest.approx(plain.spot_price * 2)
    assert (dear.available == plain.available).all()
    assert (scarce.spot_price == plain.spot_price).all()
    assert np.abs(scarce.available - plain.available / 2).max() <= 0.5
    assert set(plenty.available[0].tolist()) <= {0, 9, 16}
    assert not none.available.any()


def test_other_slots_and_sizes_keep_the_market_the_same_kind():
    hourly = synthetic_market("diurnal", seed=5, slots=2190, slot_hours=1.0)
    figures = market_statistics(hourly)
    assert 0.5 < figures.share_available < 0.8
    single = synthetic_market("outage", seed=5, slots=200, max_available=1)
    assert set(single.available[0].tolist()) == {0, 1}
    assert synthetic_market("diurnal", seed=5, slots=1).slots == 1
    assert single.on_demand_price[0, 0] == 1.5


def test_a_generator_can_be_passed_in_and_moves_on():
    random = np.random.default_rng(1)
    first = synthetic_market("diurnal", random=random)
    second = synthetic_market("diurnal", random=random)
    assert first.spot_price.tobytes() != second.spot_price.tobytes()
    assert first.spot_price.tobytes() == synthetic_market("diurnal", seed=1).spot_price.tobytes()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kind": "weather", "seed": 1}, "kind: 'weather'"),
        ({"kind": "diurnal"}, "seed"),
        ({"kind": "diurnal", "seed": 1, "random": np.random.default_rng(1)}, "seed"),
        ({"kind": "diurnal", "seed": 1, "slots": 0}, "slots"),
        ({"kind": "diurnal", "seed": 1, "slot_hours": 0}, "slot_hours"),
        ({"kind": "diurnal", "seed": 1, "price_level": float("nan")}, "price_level"),
        ({"kind": "diurnal", "seed": 1, "availability_level": -1}, "availability_level"),
        ({"kind": "diurnal", "seed": 1, "price_motion": "wild"}, "price_motion"),
    ],
)
def test_impossible_markets_are_refused(options, expected):
    with pytest.raises(InvalidInput, match=expected):
        synthetic_market(**options)


def test_every_kind_is_registered_under_its_name():
    assert set(SYNTHETIC_MARKETS) == set(MarketKind)


def test_statistics_of_a_hand_made_market():
    trace = MarketTrace.single(
        np.array([1.0, 1.0, 3.0, 1.0]), np.array([2, 0, 0, 5]), 2.0, slot_hours=6.0
    )
    figures = market_statistics(trace)
    assert figures.share_available == 0.5
    assert figures.losses_per_day == 1.0
    assert figures.mean_up_hours == 6.0
    assert figures.mean_down_hours == 12.0
    assert figures.share_above_on_demand == 0.25
    assert figures.acf_24h is None
    assert market_statistics(trace, gpus=6).mean_up_hours is None


def test_measured_series_give_the_published_figures():
    """The spread of real markets around which the kinds are set, printed with -s."""
    if not (datasets.data_folder() / "README.md").is_file():
        pytest.skip("the data folder (shared/data beside the repository) is not here")
    pytest.importorskip("polars", reason="needs the parquet extra")
    ticks = datasets.spot_traces_ticks(on_demand_usd_gpu_h=3.06, spot_usd_gpu_h=1.0)
    shares = []
    for pool in ticks.pools:
        figures = market_statistics(ticks, pool=pool.name)
        print(pool.name, figures)  # noqa: T201
        shares.append(figures.share_available)
        assert 0.4 < figures.acf_1h < 0.7
        assert 0.0 < figures.acf_24h < 0.45
        assert 2.0 < figures.losses_per_day < 8.0
    assert min(shares) == pytest.approx(0.17, abs=0.01)
    assert max(shares) == pytest.approx(0.91, abs=0.01)
    counts = datasets.h100_counts(slot_hours=0.5)
    for pool in counts.pools:
        print(pool.name, market_statistics(counts, pool=pool.name))  # noqa: T201

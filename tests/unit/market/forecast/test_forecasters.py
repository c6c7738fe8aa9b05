"""Forecasters that learn: what each knows, how they are weighed, and what intervals cover."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

from duetune.core.market import MarketTrace, Slot
from duetune.errors import InvalidInput, MissingExtra
from duetune.market.forecast import (
    ForecastSource,
    LastValue,
    SeasonalNaive,
    forecast_table,
    named_forecasters,
)
from duetune.market.forecast.boosted import BoostedCounts, BoostedQuantiles
from duetune.market.forecast.calibration import CalibratedCounts, CalibratedPrices
from duetune.market.forecast.combination import CombinedCounts, CombinedPrices
from duetune.market.forecast.distribution import (
    ANCHORS,
    GRID,
    LEVELS,
    PLACES,
    anchor_of,
    count_means,
    count_quantiles,
    price_at,
)
from duetune.market.forecast.empirical import (
    CountErrors,
    Last,
    Momentum,
    PriceErrors,
    Season,
    SeasonStep,
)
from duetune.market.forecast.markov import SemiMarkov, UsualCounts
from duetune.market.forecast.statistical import Arima, Ets


def fed(model, values):
    for value in values:
        model.observe(float(value))
    return model


def chain(slots: int, stay: float, seed: int = 0, up: int = 1) -> np.ndarray:
    """0 or ``up``, each kept with probability ``stay``."""
    leave = np.random.default_rng(seed).random(slots) > stay
    return (np.cumsum(leave) % 2) * up


class Certain:
    """Always the same distribution of counts."""

    def __init__(self, cumulative):
        self._row = np.array(cumulative, dtype=np.float64)

    def observe(self, value, sisters=()):
        pass

    def predict(self, horizon):
        return np.tile(self._row, (horizon, 1))


class Around:
    """Prices within plus or minus ``width`` of ``centre``."""

    def __init__(self, centre, width):
        self._row = centre + width * (2 * GRID - 1)

    def observe(self, value, sisters=()):
        pass

    def predict(self, horizon):
        return np.tile(self._row, (horizon, 1))


def test_anchors_stand_for_the_distances_up_to_them():
    assert ANCHORS[anchor_of(60)].tolist()[:9] == [1, 2, 3, 4, 6, 6, 8, 8, 12]
    assert (ANCHORS[anchor_of(60)][47:] == 48).all()
    assert GRID[PLACES] == pytest.approx(LEVELS)


def test_quantiles_and_means_of_counts():
    cumulative = np.array([[0.2, 0.5, 1.0], [0.0, 0.0, 1.0]])
    assert count_quantiles(cumulative, (0.2, 0.21, 0.5, 0.95)).tolist() == [
        [0, 2],
        [1, 2],
        [1, 2],
        [2, 2],
    ]
    assert count_means(cumulative).tolist() == [1.3, 2.0]


def test_price_quantiles_between_and_beyond_the_grid():
    row = np.array([GRID * 100])
    levels = np.array([[0.5, 0.3125, 0.005, 0.0, 1.0]])
    found = price_at(row, levels)[0]
    assert found[:3] == pytest.approx([50, 31.25, 0.5])
    assert found[3] == pytest.approx(0.5 - 49.5)
    assert found[4] == pytest.approx(99.5 + 49.5)


def test_persistence_learns_its_errors_by_distance():
    model = fed(PriceErrors(Last()), 1 + 0.01 * np.arange(300))
    told = model.predict(8)
    # A steady rise: k slots ahead it is off by k steps, always.
    assert told[0] == pytest.approx(np.full(GRID.size, 1 + 0.01 * 300))
    assert told[7] == pytest.approx(np.full(GRID.size, 1 + 0.01 * 307))


def test_scaled_errors_are_narrow_in_calm_times_and_wide_in_others():
    random = np.random.default_rng(0)
    wild = np.cumsum(0.05 * random.standard_normal(150)) + 10
    calm = wild[-1] + np.cumsum(0.005 * random.standard_normal(150))

    def width(model):
        told = model.predict(1)[0]
        return told[PLACES[-1]] - told[PLACES[0]]

    plain, scaled = PriceErrors(Last()), PriceErrors(Last(), scaled=True)
    for model in (plain, scaled):
        fed(model, wild)
    before = width(scaled)
    for model in (plain, scaled):
        fed(model, calm)
    assert width(scaled) < before / 4
    assert width(scaled) < width(plain) / 2


def test_momentum_goes_on_as_steps_go_on():
    steps = [1.0]
    random = np.random.default_rng(1)
    for _ in range(2000):
        steps.append(0.6 * steps[-1] + random.standard_normal())
    series = np.cumsum(steps)
    told = fed(Momentum(memory=5000), series).point(2)
    assert (told[0] - series[-1]) / steps[-1] == pytest.approx(0.6, abs=0.06)
    assert (told[1] - told[0]) / steps[-1] == pytest.approx(0.36, abs=0.08)
    assert fed(Momentum(), [1.0]).point(3).tolist() == [1.0] * 3


def test_errors_of_counts_are_clipped_at_none_and_at_the_most_seen():
    model = fed(CountErrors(Last()), [0, 3, 0, 3, 0, 3, 0])
    told = model.predict(1)[0]
    assert told.shape == (4,)
    # Half of the errors go below none, which is not possible: they are at none.
    assert told[0] == pytest.approx(0.5, abs=0.01)
    assert told[2] == pytest.approx(0.5, abs=0.01)


def test_errors_kept_apart_at_either_end_know_which_way_to_go():
    series = np.tile([0, 0, 0, 0, 4, 4, 4, 4], 60)
    model = fed(CountErrors(Last(), split=True), series[:-2])
    # At the most, and an even two slots into a spell of four: it may stay or fall, never rise.
    assert model.predict(2)[1, 0] == pytest.approx(0.5, abs=0.1)


def test_a_season_repeats_with_its_period():
    assert fed(Season(3), [5, 6, 7, 8]).point(4).tolist() == [6, 7, 8, 6]


def test_a_season_may_drift():
    drifting = np.arange(7.0) + np.resize([0, 5, 1], 7)  # 0 6 3 3 9 6 6, then 12 9
    assert fed(SeasonStep(3), drifting).point(2).tolist() == [12, 9]
    assert fed(SeasonStep(3), drifting[:3]).point(2).tolist() == [3, 3]


def test_the_markov_model_finds_the_hazard_and_the_way_back():
    told = fed(SemiMarkov(memory=5000), chain(2000, 0.9)).predict(60)
    last = chain(2000, 0.9)[-1]
    gone = told[0, 0] if last == 1 else 1 - told[0, 0]
    assert gone == pytest.approx(0.1, abs=0.03)
    assert told[-1, 0] == pytest.approx(0.5, abs=0.05)


def test_the_markov_model_knows_that_old_spells_differ_from_young_ones():
    series = np.tile([1] * 9 + [0], 80)
    young, old = SemiMarkov(), SemiMarkov()
    fed(young, series[:-8])
    fed(old, series[:-1])
    assert young.predict(1)[0, 0] < 0.2
    assert old.predict(1)[0, 0] > 0.35


def test_the_markov_model_forgets():
    before, after = chain(1500, 0.5), chain(600, 0.97, seed=5)
    fresh = 1 - after[-1]  # a spell that has just begun
    gone = []
    for memory in (100.0, 1e6):
        model = fed(SemiMarkov(memory=memory), np.concatenate((before, after, [fresh])))
        told = model.predict(1)[0, 0]
        gone.append(told if fresh == 1 else 1 - told)
    assert gone[0] < 0.2
    assert gone[1] > 0.4


def test_counts_never_seen_before_make_room():
    for model in (
        SemiMarkov(),
        CountErrors(Last()),
        UsualCounts(24),
        named_forecasters.combined_counts(1.0),
    ):
        assert fed(model, [0, 1, 0]).predict(3).shape == (3, 2)
        assert fed(model, [9, 2]).predict(3).shape == (3, 10)


def test_usual_counts_know_the_hour():
    series = np.tile([4] * 12 + [0] * 12, 30)
    told = fed(UsualCounts(24), series).predict(24)
    assert told[0, 0] < 0.2
    assert told[20, 0] > 0.8


def test_a_combination_takes_the_member_that_fits_and_stays_with_the_control_otherwise():
    series = chain(600, 0.5)
    right, wrong = Certain([0.5, 1.0]), Certain([1.0, 1.0])
    assert fed(CombinedCounts([wrong, right]), series).weights[:, 1].min() > 0.75
    assert fed(CombinedCounts([right, wrong]), series).weights[:, 0].min() > 0.9
    assert fed(CombinedCounts([wrong, wrong]), series).weights[:, 0].min() > 0.99


def test_a_combination_of_prices_takes_the_member_that_fits():
    series = 1 + 0.1 * np.random.default_rng(0).uniform(-1, 1, 400)
    right, wrong = Around(1.0, 0.1), Around(1.5, 0.1)
    assert fed(CombinedPrices([wrong, right]), series).weights[:, 1].min() > 0.8
    assert fed(CombinedPrices([right, wrong]), series).weights[:, 0].min() > 0.95
    alone = CombinedPrices([right, right])
    assert fed(alone, series).weights[:, 0].tolist() == [1.0] * ANCHORS.size


def late_errors(forecaster, prices, counts, ahead):
    """Mean absolute errors of the plans for prices and counts, from the second week on."""
    made = {}
    errors = []
    for slot, (price, count) in enumerate(zip(prices, counts, strict=True)):
        if slot in made and slot >= prices.size // 2:
            plan = made[slot]
            errors.append((abs(plan[0] - price), abs(plan[1] - count)))
        forecaster.observe(Slot(float(price), int(count), 3.0))
        plan = forecaster.forecast(ahead)
        made[slot + ahead] = (plan.spot_price[-1], plan.available[-1])
    return np.mean(errors, axis=0)


@pytest.mark.parametrize("ahead", [2, pytest.param(6, marks=pytest.mark.more)])
def test_the_combination_knows_a_daily_cycle(ahead):
    """Persistence is wrong all day there, and so was the combination for prices."""
    phase = 2 * np.pi * np.arange(14 * 24) / 24
    noise = np.random.default_rng(1).normal(0, 0.01, phase.size)
    prices, counts = 1 + 0.4 * np.sin(phase) + noise, np.rint(8 + 7 * np.sin(phase))
    lasting = late_errors(LastValue(), prices, counts, ahead)
    ours = late_errors(named_forecasters.combined(1.0), prices, counts, ahead)
    assert (ours < 0.15 * lasting).all()


def test_a_member_far_worse_than_the_best_has_no_weight():
    members = (Around(1.0, 0.1), Around(1.05, 0.1), Around(3.0, 0.1))
    random = np.random.default_rng(3)
    model = fed(CombinedPrices(members), 1.03 + random.uniform(-0.1, 0.1, 300))
    assert model.weights[0, 2] == 0
    poor_control = fed(CombinedPrices(members[::-1]), [1.0] * 100)
    assert poor_control.weights[0, 0] == 0
    assert poor_control.weights[0].sum() == pytest.approx(1)


@pytest.mark.parametrize("width", [0.06, 0.3])
def test_calibrated_prices_cover_what_they_say_whatever_the_model_says(width):
    random = np.random.default_rng(3)
    model = CalibratedPrices(Around(1.0, width), rate=0.02)
    inside = []
    for slot in range(1100):
        value = 1 + 0.1 * random.standard_normal()
        if slot > 400:
            told = model.predict(1)[0]
            inside.append(told[PLACES[0]] <= value <= told[PLACES[-1]])
        model.observe(value)
    assert np.mean(inside) == pytest.approx(0.9, abs=0.03)


def test_calibrated_counts_cover_what_they_say_when_edges_count_in_part():
    series = chain(1600, 0.5, seed=4)
    model = CalibratedCounts(Certain([0.9, 1.0]), rate=0.02, doubt=0.0)
    covered = []
    for slot, count in enumerate(series):
        if slot > 600:
            to = model.predict(1)[0]
            low, high = (0.0, to[0]) if count == 0 else (to[0], 1.0)
            covered.append(max(0.0, min(high, 0.95) - max(low, 0.05)) / (high - low))
        model.observe(float(count))
    assert np.mean(covered) == pytest.approx(0.9, abs=0.02)
    # And the distribution is right, not only the interval's ends.
    assert model.predict(1)[0, 0] == pytest.approx(0.5, abs=0.12)


def test_doubt_fades_with_what_was_seen_and_grows_with_the_distance():
    model = fed(CalibratedCounts(Certain([1.0, 1.0, 1.0])), [0])
    early = 1 - model.predict(24)[:, 0]
    late = 1 - fed(model, [0] * 900).predict(24)[:, 0]
    assert early[23] > early[0]
    assert early[23] > late[23]


def test_last_and_seasonal_with_their_spread_plan_as_without_it():
    random = np.random.default_rng(0)
    trace = MarketTrace.single(random.random(40), random.integers(0, 9, 40), 1.0)
    for text, plain in (("last", LastValue()), ("seasonal:5", SeasonalNaive(5))):
        sure = ForecastSource.parse(text).forecaster(trace, spread=True)
        for slot in range(40):
            plain.observe(trace.slot(slot))
            sure.observe(trace.slot(slot))
        ours, theirs = sure.forecast(12), plain.forecast(12)
        assert ours.spot_price.tobytes() == theirs.spot_price.tobytes()
        assert ours.available.tobytes() == theirs.available.tobytes()
        assert ours.spread is not None
        assert theirs.spread is None


def test_plans_stay_between_the_lowest_price_seen_and_the_ceiling():
    falling = np.linspace(1.0, 0.2, 120)
    trace = MarketTrace.single(falling, np.full(120, 4), 1.0)
    forecaster = ForecastSource.parse("combined").forecaster(trace, 120)
    forecast = forecaster.forecast(24)
    assert (forecast.spot_price >= 0.2 - 1e-12).all()
    assert (forecast.spread.spot_price >= 0).all()
    forecaster.observe(Slot(spot_price=0.9, available=4, on_demand_price=0.5))
    assert (forecaster.forecast(24).spot_price <= 0.9).all()


def test_futures_follow_the_distribution_and_hang_together_as_the_past_did():
    series = chain(600, 0.95, up=8)
    trace = MarketTrace.single(np.full(600, 0.4), series, 1.0)
    forecaster = ForecastSource.parse("markov").forecaster(trace, 600)
    paths = forecaster.draw(24, 400, np.random.default_rng(0))
    means = count_means(forecaster.distribution(24).counts)
    assert paths.available.mean(axis=0) == pytest.approx(means, abs=0.5)
    # Independent slots would change about twelve times; spells of twenty slots change once.
    changes = (np.diff(paths.available, axis=1) != 0).sum(axis=1).mean()
    assert changes < 5
    assert forecaster.draw(24, 0, np.random.default_rng(0)).available.shape == (0, 24)
    with pytest.raises(InvalidInput, match="count"):
        forecaster.draw(24, -1, np.random.default_rng(0))


def test_a_market_without_end_is_counted_up_to_a_limit():
    forecaster = named_forecasters.combined(0.5)
    for available in (10**9, 3, 10**9):
        forecaster.observe(Slot(spot_price=0.4, available=available, on_demand_price=1.0))
    assert forecaster.distribution(2).counts.shape == (2, 513)
    assert forecaster.forecast(2).available.max() <= 512


def test_nothing_is_forecast_before_anything_was_seen():
    with pytest.raises(InvalidInput, match="at least one observed slot"):
        named_forecasters.combined(0.5).forecast(3)
    with pytest.raises(InvalidInput, match="horizon"):
        named_forecasters.combined(0.5).forecast(-1)


@pytest.mark.parametrize("text", ["arima", "ets", "boosted", "markov", "combined"])
def test_names_of_those_that_learn_are_read_and_written(text):
    assert str(ForecastSource.parse(text)) == text
    with pytest.raises(InvalidInput, match="markov, combined"):
        ForecastSource.parse(f"{text}:3")


def test_a_table_of_one_that_learns_serves_jobs_anywhere_in_the_trace():
    random = np.random.default_rng(0)
    trace = MarketTrace.single(random.random(30), random.integers(0, 9, 30), 1.0)
    source = ForecastSource.parse("markov")
    table = source.table(trace, 4)
    later = forecast_table(source, trace, 20, 10, 4)
    assert np.array_equal(table.available[20:], later[1])


def test_arima_and_ets_are_carried_forward_as_if_fitted_with_what_came():
    pytest.importorskip("statsforecast")
    random = np.random.default_rng(2)
    series = [1.0]
    for _ in range(140):
        series.append(1 + 0.8 * (series[-1] - 1) + 0.1 * random.standard_normal())
    arima, ets = fed(Arima(), series), fed(Ets(), series)
    told = arima.point(200)
    # Pulled back to the mean, some of the way in each slot.
    assert abs(told[-1] - 1) < 0.15
    assert 0.4 < (told[0] - told[-1]) / (series[-1] - told[-1]) < 1
    before = ets.point(1)[0]
    for model in (arima, ets):
        model.observe(series[-1] + 1)
    assert arima.point(1)[0] > told[0] + 0.3
    assert ets.point(1)[0] > before + 0.3
    assert np.isfinite(ets.point(24)).all()
    flat = fed(Arima(), [3.0] * 100)
    assert flat.point(2).tolist() == [3.0, 3.0]


def test_boosted_trees_learn_what_sisters_tell():
    pytest.importorskip("lightgbm")
    leader = chain(900, 0.5, seed=6, up=4)
    model = BoostedCounts(BoostedQuantiles(24))
    for now, then in itertools.pairwise(leader):
        # The sister has now what this one has next.
        model.observe(float(now), [float(then)])
    told = []
    for sister in (0.0, 4.0):
        model.observe(float(leader[-1]), [sister])
        told.append(count_means(model.predict(1))[0])
    assert told[1] > told[0] + 1


def test_a_missing_part_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(MissingExtra, match=r"duetune\[forecast\]"):
        named_forecasters.arima(0.5)
    with pytest.raises(MissingExtra, match="boosted"):
        named_forecasters.boosted(0.5)


def test_simple_forecasts_import_neither_compiler_nor_libraries():
    code = (
        "import sys; from duetune.market.forecast.forecast_source import ForecastSource as S;"
        "S.parse('combined'); S.parse('last');"
        "print([n for n in ('numba','statsforecast','lightgbm','scipy') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"

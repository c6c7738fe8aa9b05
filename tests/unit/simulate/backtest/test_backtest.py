"""Forecasters are scored as they would have been then, and scores are what they say."""

from __future__ import annotations

import csv
import io
import math

import msgspec
import numpy as np
import pytest

from duetune import plots
from duetune.core.decision import Forecast, Spread
from duetune.core.market import MarketTrace
from duetune.errors import InvalidInput
from duetune.market.forecast import ForecastSource, LastValue
from duetune.market.forecast.distribution import LEVELS, Distribution
from duetune.plots.forecast_figures import backtest_figure, fan_figure
from duetune.policies.ahap import Ahap
from duetune.simulate.backtest.forecast_backtest import (
    backtest,
    checked_horizons,
    first_scored,
    write_scores,
)
from duetune.simulate.backtest.past_forecasts import fan, rolled
from duetune.simulate.backtest.scores import (
    Atoms,
    at_levels,
    atoms_read,
    better_by_chance,
    long_run_variance,
    pinball,
    share_below,
)
from duetune.simulate.backtest.standings import Quantity, jobs_on, usual_mix
from duetune.simulate.tournament import run_tournament
from duetune.testing.small_markets import constant_market, random_market
from support.later import later

stats = later("scipy.stats")

LAST, SEASONAL = ForecastSource.parse("last"), ForecastSource.parse("seasonal:8")
PERFECT = ForecastSource.parse("perfect")


class Wide:
    """Half of the slots ahead have 3 GPUs, the others 5, at prices around the last."""

    name = "wide"

    def __init__(self, levels=LEVELS):
        self.levels = levels
        self.price = 0.0

    def observe(self, slot):
        self.price = slot.spot_price

    def forecast(self, horizon):
        level = np.array(self.levels)[:, np.newaxis]
        return Forecast(
            spot_price=np.full(horizon, self.price),
            available=np.full(horizon, 3),
            spread=Spread(
                levels=self.levels,
                spot_price=np.repeat(self.price * (0.5 + level), horizon, axis=1),
                available=np.repeat(np.where(level <= 0.5, 3.0, 5.0), horizon, axis=1),
            ),
        )


class Telling(Wide):
    """Says its probabilities, too."""

    def observe(self, slot, sisters=()):
        assert not sisters
        super().observe(slot)

    def distribution(self, horizon):
        counts = np.array([0.0, 0.0, 0.0, 0.5, 0.5, 1.0])
        return Distribution(prices=np.zeros((horizon, 1)), counts=np.tile(counts, (horizon, 1)))

    def draw(self, horizon, count, random):
        raise NotImplementedError


def binomial(probability, size=16):
    """A forecast that is right, as (quantiles, values, their probabilities)."""
    values = np.arange(size + 1.0)
    true = stats.binom(size, probability)
    return np.repeat(true.ppf(LEVELS)[:, np.newaxis], size + 1, axis=1), values, true.pmf(values)


class TestScores:
    def test_the_pinball_loss_is_that_of_the_textbook(self):
        quantiles = np.arange(1.0, 8.0)[:, np.newaxis]
        by_hand = [
            level * (4.5 - q) if q < 4.5 else (1 - level) * (q - 4.5)
            for level, q in zip(LEVELS, range(1, 8), strict=True)
        ]
        assert pinball(quantiles, np.array([4.5]))[0] == pytest.approx(np.mean(by_hand))

    def test_the_pinball_loss_of_a_point_is_half_its_error(self):
        point, actual = np.array([1.0, 2.0, 7.0]), np.array([3.0, 2.0, 2.0])
        loss = pinball(np.tile(point, (len(LEVELS), 1)), actual)
        assert loss == pytest.approx(np.abs(point - actual) / 2)

    def test_levels_that_are_told_are_taken_and_others_lie_between(self):
        told = np.array([[0.0], [10.0], [40.0]])
        found = at_levels((0.1, 0.5, 0.9), told, (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99))
        assert found[:, 0] == pytest.approx([0, 0, 5, 10, 25, 40, 40])

    @pytest.mark.parametrize("probability", [0.0, 0.01, 0.3, 0.5, 0.97, 1.0])
    def test_a_right_forecast_of_counts_covers_exactly_what_it_says(self, probability):
        quantiles, values, weight = binomial(probability)
        upper = weight.cumsum()
        atoms = Atoms(lower=np.maximum(upper - weight, 0.0), upper=upper)
        below = share_below(LEVELS, quantiles, values, atoms) @ weight
        assert below == pytest.approx(LEVELS)
        closed = ((values >= quantiles[0]) & (values <= quantiles[-1])) @ weight
        assert closed > 0.91  # what randomising is for

    @pytest.mark.parametrize("probability", [0.01, 0.1, 0.3, 0.5, 0.97])
    def test_quantiles_alone_tell_nearly_as_much(self, probability):
        quantiles, values, weight = binomial(probability)
        unsure = np.zeros(values.size, dtype=bool)
        atoms = atoms_read(LEVELS, quantiles, values, certain=unsure, step=1.0, most=16)
        below = share_below(LEVELS, quantiles, values, atoms) @ weight
        assert below[-1] - below[0] == pytest.approx(0.9, abs=0.02)

    def test_more_levels_tell_more(self):
        values, true = np.arange(17.0), stats.binom(16, 0.02)
        misses = []
        for levels in (LEVELS, (0.005, 0.01, 0.025, *LEVELS, 0.975, 0.99, 0.995)):
            quantiles = np.repeat(true.ppf(levels)[:, np.newaxis], values.size, axis=1)
            unsure = np.zeros(values.size, dtype=bool)
            atoms = atoms_read(levels, quantiles, values, certain=unsure, step=1.0, most=16)
            below = share_below(levels, quantiles, values, atoms) @ true.pmf(values)
            misses.append(abs(below[-1] - below[0] - 0.9))
        assert misses[1] < misses[0]

    def test_a_price_is_within_its_range_or_not(self):
        quantiles = np.repeat(np.linspace(1, 2, 7)[:, np.newaxis], 4, axis=1)
        actual = np.array([0.9, 1.2, 1.9, 2.1])
        unsure = np.zeros(4, dtype=bool)
        atoms = atoms_read(LEVELS, quantiles, actual, certain=unsure)
        below = share_below(LEVELS, quantiles, actual, atoms)
        assert (below[-1] - below[0]).tolist() == [0, 1, 1, 0]

    @pytest.mark.parametrize("step", [0.0, 1.0])
    def test_certainty_that_is_right_covers_ninety_per_cent_and_else_nothing(self, step):
        quantiles = np.full((len(LEVELS), 3), 5.0)
        actual = np.array([5.0, 4.0, 6.0])
        atoms = atoms_read(LEVELS, quantiles, actual, certain=np.ones(3, dtype=bool), step=step)
        below = share_below(LEVELS, quantiles, actual, atoms)
        assert below[-1] - below[0] == pytest.approx([0.9, 0, 0])


class TestChance:
    def test_one_slot_ahead_it_is_the_test_of_student(self):
        gains = np.random.default_rng(1).normal(0.2, 1, 60)
        expected = stats.ttest_1samp(gains, 0).pvalue
        assert better_by_chance([gains], [1]) == pytest.approx(expected)

    def test_further_ahead_it_is_that_of_harvey_leybourne_and_newbold(self):
        gains = np.convolve(np.random.default_rng(2).normal(0.1, 1, 83), np.ones(4), "valid")
        size, ahead = gains.size, 4
        centred = gains - gains.mean()
        lags = [(centred[lag:] * centred[: size - lag]).sum() / size for lag in range(ahead)]
        statistic = gains.mean() / math.sqrt((lags[0] + 2 * sum(lags[1:])) / size)
        statistic *= math.sqrt((size + 1 - 2 * ahead + ahead * (ahead - 1) / size) / size)
        expected = 2 * stats.t.sf(abs(statistic), size - 1)
        assert better_by_chance([gains], [ahead]) == pytest.approx(expected)

    def test_overlapping_forecasts_are_not_taken_for_more_evidence_than_they_are(self):
        random = np.random.default_rng(3)
        series = [np.convolve(random.normal(size=205), np.ones(6), "valid") for _ in range(300)]
        aware = np.mean([better_by_chance([each], [6]) < 0.05 for each in series])
        naive = np.mean([better_by_chance([each], [1]) < 0.05 for each in series])
        assert aware < 0.12
        assert naive > 0.3

    def test_two_markets_are_more_evidence_than_one(self):
        gains = np.random.default_rng(4).normal(0.2, 1, 80)
        assert better_by_chance([gains, gains], [1, 1]) < better_by_chance([gains], [1])

    def test_no_difference_is_no_result_and_a_constant_one_no_chance(self):
        assert better_by_chance([np.zeros(9)], [1]) is None
        assert better_by_chance([np.full(16, 0.5)], [1]) == 0.0

    def test_differences_that_swing_are_no_more_evidence_than_independent_ones(self):
        swinging = np.tile([1.0, -0.8], 20)
        assert long_run_variance(swinging, 1) == pytest.approx(swinging.var())


@pytest.fixture(scope="module")
def trace():
    return random_market(5, 160)


@pytest.fixture(scope="module")
def result(trace):
    return backtest([SEASONAL, PERFECT, Wide()], trace, (0.5, 2), jobs=8, workers=1)


class TestBacktest:
    def test_the_scores_are_those_of_a_loop_over_the_trace(self, result, trace):
        slots, first = 4, first_scored(trace, 0.3)
        origins = range(first, trace.slots - slots)
        errors = [
            abs(int(trace.available[0, now + slots - 8]) - int(trace.available[0, now + slots]))
            for now in origins
        ]
        score = result.score("seasonal:8", 2, Quantity.AVAILABLE)
        assert score.forecasts == len(errors) == 160 - 48 - 4
        assert score.mae == pytest.approx(np.mean(errors))
        assert score.pinball < np.mean(errors) / 2  # it says how sure it is
        moved = [
            abs(trace.spot_price[0, now] - trace.spot_price[0, now + slots]) / trace.slot_hours
            for now in origins
        ]
        assert result.score("last", 2, Quantity.SPOT_PRICE).mae == pytest.approx(np.mean(moved))

    def test_persistence_always_takes_part_and_has_no_skill(self, result):
        (row,) = [each for each in result.standings if each.forecaster == "last"]
        assert row.skill == row.skill_available == row.skill_price == 0
        assert result.score("last", 2, Quantity.AVAILABLE).p_value is None

    def test_the_perfect_forecast_is_first_and_regrets_nothing(self, result):
        best = result.standings[0]
        assert best.forecaster == "perfect"
        assert best.skill == 1
        assert best.coverage_available == pytest.approx(0.9)
        assert best.regret.dollars == 0
        assert best.regret.mean_utility == result.perfect_utility

    def test_the_order_is_that_of_skill(self, result):
        skills = [row.skill for row in result.standings]
        assert skills == sorted(skills, reverse=True)
        assert {row.forecaster for row in result.standings} == {
            *("perfect", "seasonal:8", "wide", "last")
        }

    def test_skill_over_both_is_the_geometric_mean_of_losses(self, result):
        scores = [score for score in result.scores if score.forecaster == "wide"]
        ratios = [1 - score.skill for score in scores]
        (row,) = [row for row in result.standings if row.forecaster == "wide"]
        assert row.skill == pytest.approx(1 - stats.gmean(ratios))

    def test_regret_is_what_a_tournament_by_that_forecast_loses(self, result, trace):
        cases = jobs_on(usual_mix((trace,)), (trace,), 8, 0, 0.3)
        assert min(case.start for case in cases) >= first_scored(trace, 0.3)
        played = [
            run_tournament([Ahap()], cases, [trace], source, workers=1).utility.mean()
            for source in (PERFECT, SEASONAL)
        ]
        (row,) = [row for row in result.standings if row.forecaster == "seasonal:8"]
        assert row.regret.mean_utility == pytest.approx(played[1])
        assert row.regret.dollars == pytest.approx(played[0] - played[1])

    def test_the_same_seed_gives_the_same_bytes_and_another_other_jobs(self, result, trace):
        again = backtest([SEASONAL, PERFECT, Wide()], trace, (0.5, 2), jobs=8, workers=1)
        assert msgspec.json.encode(again) == msgspec.json.encode(result)
        one, other = (jobs_on(usual_mix((trace,)), (trace,), 8, seed, 0.3) for seed in (0, 1))
        assert one != other

    def test_a_forecaster_of_your_own_is_watched_from_the_start_and_left_as_it_was(self, trace):
        own = LastValue()
        found = backtest([own], trace, (1,), jobs=0)
        mine = found.score("LastValue", 1, Quantity.AVAILABLE)
        assert mine.mae == found.score("last", 1, Quantity.AVAILABLE).mae
        assert mine.pinball == pytest.approx(mine.mae / 2)  # taken for certain
        assert mine.skill < 0
        with pytest.raises(InvalidInput, match="nothing observed yet"):
            own.forecast(1)

    def test_several_markets_count_by_their_forecasts(self, trace):
        other = msgspec.structs.replace(random_market(6, 90), slot_hours=0.25)
        both = backtest([Wide()], (trace, other), (1,), jobs=0)
        alone = [backtest([Wide()], each, (1,), jobs=0) for each in (trace, other)]
        parts = [each.score("wide", 1, Quantity.AVAILABLE) for each in alone]
        assert parts[1].forecasts == 90 - 27 - 4
        whole = both.score("wide", 1, Quantity.AVAILABLE)
        assert whole.forecasts == sum(part.forecasts for part in parts)
        total = sum(part.forecasts * part.pinball for part in parts)
        assert whole.pinball == pytest.approx(total / whole.forecasts)

    def test_where_persistence_is_never_wrong_there_is_no_skill_to_have(self):
        found = backtest([Wide()], constant_market(60), (1,), jobs=0)
        assert [row.skill for row in found.standings] == [None, None]
        assert b"NaN" not in msgspec.json.encode(found)

    def test_probabilities_that_are_told_decide_the_coverage(self):
        counts = np.tile([3, 5], 40)
        market = MarketTrace.single(np.full(80, 0.5), counts, 1.5)
        told, read = (
            backtest([each], market, (0.5,), jobs=0).score("wide", 0.5, Quantity.AVAILABLE)
            for each in (Telling(), Wide())
        )
        assert told.below == pytest.approx(LEVELS, abs=0.02)
        assert read.below != pytest.approx(LEVELS, abs=0.02)

    def test_levels_other_than_ours_are_read(self, trace):
        fine = (0.01, *LEVELS, 0.99)
        usual, finer = (
            backtest([Wide(levels)], trace, (1,), jobs=0).score("wide", 1, Quantity.AVAILABLE)
            for levels in (LEVELS, fine)
        )
        assert usual.pinball == pytest.approx(finer.pinball)

    def test_rows_are_written_for_every_score(self, result):
        file = io.StringIO()
        write_scores(result, file)
        rows = list(csv.DictReader(io.StringIO(file.getvalue())))
        assert len(rows) == len(result.scores) == 4 * 2 * 2
        assert float(rows[0]["mae"]) == result.scores[0].mae
        assert rows[0]["quantity"] == "available"


class TestForecastsMade:
    def test_the_future_changes_no_forecast_made_before(self, trace):
        late = np.arange(160) > 60
        changed = MarketTrace.single(
            np.where(late, 9.0, trace.spot_price[0]), np.where(late, 0, trace.available[0]), 10.0
        )
        for source in (LAST, ForecastSource.parse("markov"), Wide()):
            one, other = (
                rolled(source, each, first=50, ahead=np.array([1, 6]), lookahead=3)
                for each in (trace, changed)
            )
            until = 60 - 50 + 1
            assert one.price[:until].tolist() == other.price[:until].tolist()
            assert one.available_quantiles[:, :until].tolist() == (
                other.available_quantiles[:, :until].tolist()
            )
            assert one.table.available[50:61].tolist() == other.table.available[50:61].tolist()

    @pytest.mark.parametrize(
        ("forecast", "words"),
        [
            (Forecast(np.zeros(2), np.zeros(2, int)), "two arrays of shape"),
            (Forecast(np.full(5, np.nan), np.zeros(5, int)), "finite prices"),
            (
                Forecast(np.ones(5), np.ones(5, int), spread=Spread((0.5,), *np.ones((2, 2, 5)))),
                "two arrays of shape",
            ),
        ],
    )
    def test_a_malformed_forecast_is_told_with_its_forecaster(self, trace, forecast, words):
        class Broken(Wide):
            def forecast(self, _):
                return forecast

        with pytest.raises(InvalidInput, match=f"of wide.*{words}"):
            rolled(Broken(), trace, first=20, ahead=np.array([1]), lookahead=5)


class TestRefused:
    @pytest.mark.parametrize(
        ("hours", "words"),
        [
            ((0.7,), "0.7 .*whole slots of 30 min"),
            ((0.0,), "whole slots"),
            ((-1.0,), "whole slots"),
            ((math.nan,), "whole slots"),
            ((1.0, 500.0), "at most 27.5 hours"),
        ],
    )
    def test_horizons_that_cannot_be(self, trace, hours, words):
        with pytest.raises(InvalidInput, match=words):
            backtest([LAST], trace, hours)

    def test_a_horizon_as_long_as_allowed_is_scored(self, trace):
        found = backtest([LAST], trace, (27.5,), jobs=0)
        assert found.score("last", 27.5, Quantity.AVAILABLE).forecasts == 160 - 48 - 55

    def test_usual_horizons_are_those_that_fit(self, trace):
        assert checked_horizons((), [trace]) == (1, 3, 6, 12)
        assert checked_horizons((), [random_market(1, 20)]) == (1, 3)
        slow = msgspec.structs.replace(trace, slot_hours=6.0)
        assert checked_horizons((), [slow]) == (6, 12)
        assert checked_horizons((), [msgspec.structs.replace(trace, slot_hours=7.0)]) == (7,)

    @pytest.mark.parametrize("slots", [1, 2, 3])
    def test_a_trace_without_room_for_a_warm_up(self, slots):
        with pytest.raises(InvalidInput, match="warm-up"):
            backtest([LAST], random_market(1, slots))

    @pytest.mark.parametrize("share", [0.0, 1.0, -0.5, math.nan])
    def test_a_warm_up_that_is_none(self, trace, share):
        with pytest.raises(InvalidInput, match="warm_up"):
            backtest([LAST], trace, warm_up=share)

    def test_a_name_twice(self, trace):
        with pytest.raises(InvalidInput, match="each forecaster once"):
            backtest([LastValue(), LastValue()], trace)

    def test_no_markets(self):
        with pytest.raises(InvalidInput, match="at least one market"):
            backtest([LAST], ())

    def test_a_trace_too_short_for_jobs_before_any_work(self):
        with pytest.raises(InvalidInput, match="at least 48 slots"):
            backtest([LAST], random_market(1, 60), jobs=5)


class TestFan:
    def test_it_is_the_forecast_of_that_slot_beside_what_came(self, trace):
        seen = fan(Wide(), trace, at=150, slots=12)
        assert [slot.hours for slot in seen.slots[:3]] == [0.5, 1.0, 1.5]
        price = seen.slots[0].spot_price
        assert price.value == pytest.approx(trace.spot_price[0, 150] / 0.5)
        assert price.ninety == pytest.approx((price.value * 0.55, price.value * 1.45))
        assert seen.slots[0].available.half == (3, 5)
        assert seen.slots[0].available.came == trace.available[0, 151]
        assert [slot.available.came is None for slot in seen.slots[8:]] == [False, True, True, True]

    def test_by_default_it_looks_beyond_the_end(self, trace):
        seen = fan(LastValue(), trace, slots=3)
        assert seen.at == 159
        assert {slot.available.value for slot in seen.slots} == {float(trace.available[0, 159])}
        assert seen.slots[0].spot_price.came is None

    def test_a_slot_that_is_not_there_is_refused(self, trace):
        with pytest.raises(InvalidInput, match="0 to 159"):
            fan(LAST, trace, at=160, slots=3)


class TestFigures:
    def test_the_fan_has_its_ranges_the_past_and_what_came(self, trace, tmp_path):
        figure = fan_figure(fan(Wide(), trace, at=100, slots=12), trace)
        labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        assert labels == ["90% range", "50% range", "forecast", "observed", "actual"]
        assert plots.save_figure(figure, tmp_path / "fan.png").stat().st_size > 10_000

    def test_no_range_is_drawn_where_none_was_told(self, trace):
        figure = fan_figure(fan(LastValue(), trace, slots=12), trace)
        labels = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
        assert labels == ["forecast", "observed"]

    def test_the_leaderboard_has_skill_coverage_and_regret(self, result, tmp_path):
        figure = backtest_figure(result)
        assert [axes.get_title(loc="left") for axes in figure.axes] == [
            "Skill over persistence: GPUs available",
            "Skill over persistence: spot price",
            "Coverage of 90% ranges",
            "Cost of forecast errors",
        ]
        names = [label.get_text() for label in figure.axes[3].get_yticklabels()]
        assert names == [row.forecaster for row in result.standings]
        assert plots.save_figure(figure, tmp_path / "board.svg").stat().st_size > 10_000

    def test_a_market_that_never_moves_and_no_jobs_are_said(self, tmp_path):
        figure = backtest_figure(backtest([Wide()], constant_market(60), (1,), jobs=0))
        words = " ".join(text.get_text() for axes in figure.axes for text in axes.texts)
        assert "persistence is never wrong here" in words
        assert "no jobs were simulated" in words
        plots.save_figure(figure, tmp_path / "board.png")

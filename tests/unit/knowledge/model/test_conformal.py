from __future__ import annotations

import numpy as np
import pytest

from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.model.conformal import (
    FOLDS,
    KIND,
    UNCALIBRATED,
    Width,
    Widths,
    calibrated,
    held_out,
)
from duetune.knowledge.model.least_squares import grouped

GPUS = ("A100-80GB", "L40S")


def different(count):
    """As many configurations, none like another."""
    return Configurations.grid(
        {"model": ["a"], "gpu_model": ["L40S"], "batch_size": list(range(1, count + 1))}
    )


def rows(codes):
    return Configurations.grid({"model": ["a"], "gpu_model": list(GPUS)}).take(
        np.asarray(codes, np.int64)
    )


def kind_of(code):
    """The key of the runs on one of the GPUs."""
    (group,) = grouped(rows([code]), {KIND: 0.0})
    return group.keys[0]


def times(widths):
    return [widths.usual.times, *(widths.by_kind[kind_of(code)].times for code in (0, 1))]


def world(random, size, scales=(1.0, 1.0)):
    """Errors whose size follows the spread that is told, times that of the GPU."""
    codes = random.integers(len(GPUS), size=size)
    spread = random.lognormal(-3.0, 0.7, size=size)
    error = spread * np.array(scales)[codes] * random.standard_t(4, size=size)
    return rows(codes), error, spread


def covered(seed, size, scales=(1.0, 1.0)):
    """The share of fresh errors inside the interval, of each GPU."""
    random = np.random.default_rng(seed)
    widths = calibrated(*world(random, size, scales))
    fresh, error, spread = world(random, 300, scales)
    inside = np.abs(error) <= widths.half_width(fresh, spread)
    codes = fresh.columns["gpu_model"]
    return [inside[codes == code].mean() for code in range(len(GPUS))]


@pytest.mark.parametrize("size", [30, 120, 400])
def test_intervals_cover_as_often_as_they_say(size):
    shares = np.array([covered(seed, size) for seed in range(120)])
    assert 0.885 <= shares.mean() <= 0.955


def test_each_gpu_is_covered_even_if_errors_on_one_are_much_larger():
    shares = np.array([covered(seed, 200, (1.0, 4.0)) for seed in range(120)]).mean(axis=0)
    assert ((shares >= 0.87) & (shares <= 0.97)).all()


def test_more_rows_come_nearer_to_what_is_said():
    few = np.mean([covered(seed, 30) for seed in range(120)])
    many = np.mean([covered(seed, 1000) for seed in range(30)])
    assert abs(many - 0.9) < 0.015
    assert few > 0.88


def test_few_errors_give_the_cautious_width():
    few = calibrated(rows([0] * 7), np.full(7, 0.01), np.full(7, 0.01))
    assert few == Widths()
    assert few.half_width(rows([0, 1]), np.array([0.0, 5.0])).tolist() == [UNCALIBRATED] * 2
    enough = calibrated(rows([0] * 8), np.full(8, 0.01), np.full(8, 0.01))
    assert 0.0 < float(enough.half_width(rows([0]), np.array([0.01]))[0]) < 0.1


def test_errors_of_zero_mean_a_narrow_interval_and_not_an_unknown_one():
    exact = calibrated(rows([0] * 20), np.zeros(20), np.zeros(20))
    assert float(exact.half_width(rows([0]), np.zeros(1))[0]) < 0.01


def test_the_sign_of_an_error_does_not_matter():
    one = calibrated(*world(np.random.default_rng(0), 50))
    where, error, spread = world(np.random.default_rng(0), 50)
    assert calibrated(where, -error, spread) == one


def test_the_order_of_errors_does_not_matter():
    where, error, spread = world(np.random.default_rng(0), 50)
    turned = np.arange(50)[::-1].copy()
    again = calibrated(where.take(turned), error[turned], spread[turned])
    first = calibrated(where, error, spread)
    assert times(again) == pytest.approx(times(first))


def test_a_wider_spread_is_a_wider_interval_and_agreeing_trees_are_not_believed():
    widths = calibrated(*world(np.random.default_rng(0), 100))
    half = widths.half_width(rows([0, 0, 0]), np.array([0.0, 0.05, 0.5]))
    assert 0 < half[0] < half[1] < half[2]
    kind = widths.by_kind[kind_of(0)]
    assert half[0] == pytest.approx(kind.times * kind.floor)


def test_a_gpu_with_large_errors_is_wider_than_the_other():
    widths = calibrated(*world(np.random.default_rng(0), 300, (1.0, 4.0)))
    steady, all_, shaky = (
        float(each.half_width(rows([code]), np.array([0.05]))[0])
        for each, code in ((widths, 0), (Widths(usual=widths.usual), 0), (widths, 1))
    )
    assert shaky > 2 * steady
    assert steady < all_ < shaky


def test_a_gpu_of_few_errors_leans_on_the_others():
    random = np.random.default_rng(3)
    codes = np.array([0] * 200 + [1] * 2)
    error = np.where(codes == 0, 0.1 * random.standard_normal(202), 1e-4)
    widths = calibrated(rows(codes), error, np.full(202, 0.05))
    assert widths.by_kind[kind_of(1)].times > 0.5 * widths.usual.times


def test_a_gpu_never_seen_gets_the_width_of_all():
    widths = Widths(
        usual=Width(floor=0.0, times=2.0), by_kind={kind_of(1): Width(floor=0.0, times=5.0)}
    )
    assert widths.half_width(rows([0, 1]), np.array([0.1, 0.1])) == pytest.approx([0.2, 0.5])


def test_every_row_is_told_by_those_that_had_not_seen_it():
    size = 53
    asked = []

    def of_others(train, test):
        assert not set(train) & set(test)
        assert len(train) + len(test) == size
        asked.extend(test.tolist())
        return test.astype(float), np.full(len(test), len(train), np.float64)

    (told, sizes), fair, other_days = held_out(different(size), 7, of_others)
    assert fair.all()
    assert not other_days
    assert sorted(asked) == list(range(size))
    assert told.tolist() == list(range(size))
    assert set(sizes) == {size - size // FOLDS, size - size // FOLDS - 1}


def test_folds_are_of_the_seed_and_not_of_the_order_of_rows():
    def folds(seed):
        parts = []
        held_out(
            different(20),
            seed,
            lambda _, test: (parts.append(tuple(test)), [test.astype(float)])[1],
        )
        return parts

    assert folds(1) == folds(1) != folds(2)
    assert any(np.diff(part).max() > 1 for part in folds(1))


def test_two_rows_are_each_told_by_the_other():
    (told,) = held_out(different(2), 0, lambda train, _: [train.astype(float)]).columns
    assert told.tolist() == [1.0, 0.0]


def test_runs_of_a_configuration_are_held_out_together():
    """Else a run would be told by its like, and repetition would pass for certainty."""
    kind = np.array([*range(20), *range(20), 3, 3, 3])
    seen = different(20).take(kind)

    def of_others(train, test):
        assert not set(kind[train]) & set(kind[test])
        return (kind[test].astype(float),)

    (told,) = held_out(seen, 0, of_others).columns
    assert told.tolist() == kind.tolist()


def test_whole_campaigns_are_held_out_where_there_are_enough():
    campaign = np.repeat([0, 1, 2, 3], 10)

    def of_others(train, test):
        assert not set(campaign[train]) & set(campaign[test])
        return (campaign[test].astype(float),)

    (told,), _, other_days = held_out(different(40), 0, of_others, campaign)
    assert other_days
    assert told.tolist() == campaign.tolist()


@pytest.mark.parametrize("sizes", [(20, 20), (30, 5, 5)])
def test_one_large_campaign_or_two_are_not_held_out_whole(sizes):
    campaign = np.repeat(np.arange(len(sizes)), sizes)
    assert not held_out(different(40), 0, lambda _, test: [test], campaign).other_days


def test_rows_of_which_a_campaign_alone_tells_do_not_count_as_fair():
    campaign = np.repeat([0, 1, 2, 3], 10)
    gpus = rows((campaign == 2).astype(np.int64))
    fair = held_out(gpus, 0, lambda _, test: [test], campaign).fair
    assert fair.tolist() == (campaign != 2).tolist()


def test_rows_that_other_days_change_more_are_wider():
    random = np.random.default_rng(5)
    exposure = random.uniform(size=400)
    error = (0.01 + 0.2 * exposure) * random.standard_normal(400)
    where, spread = rows([0] * 400), np.full(400, 0.005)
    widths = calibrated(where, error, spread, exposure)
    half = widths.half_width(where, spread, exposure)
    for part in (exposure < 0.3, exposure > 0.7):
        assert 0.82 <= np.mean(np.abs(error[part]) <= half[part]) <= 0.99
    # A value that was measured is as uncertain as the days are different.
    calm, exposed = widths.half_width(rows([0, 0]), 0.0, np.array([0.0, 1.0]))
    assert exposed > 5 * calm

from __future__ import annotations

import math

import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.training.hazard import (
    Hazard,
    checkpoint_interval,
    daly_interval,
    read_hazard,
    write_hazard,
    young_interval,
)


def expected_slowdown(interval, save_s, mean_s):
    """Wall time per second of work with exponential losses (Daly 2006, without restart time)."""
    return mean_s * np.expm1((interval + save_s) / mean_s) / interval


def test_young_is_the_square_root():
    assert young_interval(10, 3600) == pytest.approx(math.sqrt(72_000))


@pytest.mark.parametrize("save_s", [0.05, 1.0, 10.0, 120.0, 900.0])
@pytest.mark.parametrize("mean_s", [600.0, 3600.0, 86_400.0])
def test_the_interval_is_as_good_as_the_best_one(save_s, mean_s):
    every = np.geomspace(0.01, 10 * mean_s, 20_000)
    best = expected_slowdown(every, save_s, mean_s).min()
    chosen = expected_slowdown(daly_interval(save_s, mean_s), save_s, mean_s)
    assert chosen <= best * 1.01


def test_daly_is_better_than_young_where_losses_are_frequent():
    save_s, mean_s = 100.0, 300.0
    assert expected_slowdown(daly_interval(save_s, mean_s), save_s, mean_s) < expected_slowdown(
        young_interval(save_s, mean_s), save_s, mean_s
    )


def test_where_a_save_takes_longer_than_a_node_lives_the_interval_is_its_life():
    assert daly_interval(1000.0, 100.0) == 100.0


def test_the_interval_stays_within_its_bounds():
    assert checkpoint_interval(0.0, 3600.0, least=7.0) == 7.0
    assert checkpoint_interval(100.0, 1e9, most=900.0) == 900.0
    assert checkpoint_interval(100.0, None, most=900.0) == 900.0
    assert checkpoint_interval(100.0, math.inf, most=900.0) == 900.0
    assert checkpoint_interval(2.0, 3600.0) == pytest.approx(daly_interval(2.0, 3600.0))


def test_the_users_own_interval_is_taken():
    assert checkpoint_interval(100.0, 10.0, every=1.5) == 1.5


def test_nonsense_is_refused():
    for call in (
        lambda: checkpoint_interval(1.0, 1.0, every=0),
        lambda: checkpoint_interval(1.0, 1.0, every=math.nan),
        lambda: checkpoint_interval(-1.0, 1.0),
        lambda: checkpoint_interval(1.0, 0.0),
        lambda: checkpoint_interval(1.0, 1.0, least=9, most=8),
        lambda: Hazard(losses=-1),
        lambda: Hazard(prior_node_s=0.0),
        lambda: Hazard().mean_time_between_losses_s(0),
    ):
        with pytest.raises(InvalidInput):
            call()


def test_with_nothing_seen_the_prior_speaks():
    assert Hazard().mean_time_between_losses_s() == pytest.approx(8 * 3600)
    assert Hazard().mean_time_between_losses_s(4) == pytest.approx(2 * 3600)


def test_what_is_seen_outweighs_the_prior():
    random = np.random.default_rng(1)
    hazard = Hazard()
    for life in random.exponential(600.0, 500):
        hazard = hazard.seen(1, life)
    assert hazard.mean_time_between_losses_s() == pytest.approx(600.0, rel=0.2)
    calm = Hazard().seen(0, 30 * 86_400.0)
    assert calm.mean_time_between_losses_s() > 30 * 86_400.0


def test_the_hazard_file_is_replaced_and_read(tmp_path):
    file = tmp_path / "hazard.json"
    assert read_hazard(file) is None
    write_hazard(file, 120.0)
    write_hazard(file, 60.0)
    assert read_hazard(file) == 60.0
    assert [path.name for path in tmp_path.iterdir()] == ["hazard.json"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        '{"mean_time_between_losses_s": 0}',
        '{"mean_time_between_losses_s": "x"}',
        '{"mean_time_between_losses_s": 1e999}',
    ],
)
def test_a_hazard_file_with_something_else_is_none(tmp_path, content):
    file = tmp_path / "hazard.json"
    file.write_text(content)
    assert read_hazard(file) is None

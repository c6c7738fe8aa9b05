"""Whether it fits: bounds that only the data know, and how much a classifier is believed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.estimate import EXTRAPOLATED
from duetune.knowledge.model.conformal import Widths
from duetune.knowledge.model.features import Physics, Reckoned, feature_matrix, seen_labels
from duetune.knowledge.model.forest import constant_forest, sortable
from duetune.knowledge.model.memory_model import fit_memory
from duetune.knowledge.model.validity_model import (
    SUREST,
    Odds,
    Validity,
    _logistic_fit,
    fit_validity,
    reserve_of,
)
from support.synthetic_history import TRUTH, drawn

TIGHT = {"batch_size": (4, 8, 16, 32), "tokens_per_sample": (1024, 2048, 4096), "num_gpus": (1,)}
"""About as many fit as not."""

PHYSICS_ALONE = Validity(
    memory=constant_forest(0.0),
    widths=Widths(),
    classifier=constant_forest(0.5),
    seen=dict.fromkeys(EXTRAPOLATED, frozenset()),
    transfer=dict.fromkeys(EXTRAPOLATED, 0.0),
)


class World:
    def __init__(self, rows, *, fits=None, bound=1.0, peaks=True, more=1.0):
        it = Described(rows)
        needed = more * TRUTH.memory.peak(it)
        self.fitted = needed <= bound * it.capacity if fits is None else fits
        noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(len(rows)))
        peak = np.where(self.fitted & peaks & ~it.paged, needed * noise, np.nan)
        weight = np.ones(len(rows))
        self.labels = seen_labels(rows)
        self.physics = Physics(memory=fit_memory(it, peak, self.fitted, weight))
        self.model = fit_validity(
            it,
            self.physics,
            self.labels,
            peak,
            self.fitted,
            weight,
            np.zeros(len(it), np.int64),
            seed=0,
        )

    def told(self, rows, model=None):
        model = self.model if model is None else model
        reckoned = Reckoned(Described(rows), self.physics)
        keys = sortable(feature_matrix(reckoned, self.labels))
        return model.p_valid(reckoned, keys, *model.peak(reckoned, keys))


def brier(told, truth):
    return float(np.mean((told - truth) ** 2))


FRESH = drawn(300, 2, **TIGHT)
LOAD = TRUTH.memory.peak(Described(FRESH)) / Described(FRESH).capacity


@pytest.fixture(scope="module")
def shifted():
    """Runs fail when three quarters of the memory are needed, whatever the driver says."""
    return World(drawn(120, 1, **TIGHT), bound=0.75)


def test_a_bound_that_physics_does_not_know_is_learnt(shifted):
    truth = LOAD <= 0.75
    learnt, alone = shifted.told(FRESH), shifted.told(FRESH, PHYSICS_ALONE)
    assert brier(learnt, truth) < 0.6 * brier(alone, truth)
    assert np.mean((learnt > 0.5) != truth) < 0.07
    between = (LOAD > 0.82) & (LOAD < 0.95)
    assert np.count_nonzero(between) >= 5
    assert learnt[between].mean() < 0.3
    assert alone[between].mean() > 0.7


def test_probabilities_mean_what_they_say(shifted):
    truth = LOAD <= 0.75
    told = shifted.told(FRESH)
    assert told.mean() == pytest.approx(truth.mean(), abs=0.06)
    sure, surely_not = told > 0.9, told < 0.1
    assert truth[sure].mean() > 0.9
    assert truth[surely_not].mean() < 0.1
    assert np.count_nonzero(sure | surely_not) > 150


def test_nothing_is_certain(shifted):
    told = shifted.told(drawn(300, 3))
    assert told.min() >= 1.0 - SUREST - 1e-12
    assert told.max() <= SUREST + 1e-12
    assert np.ptp(told) > 0.9


def test_more_memory_never_looks_much_worse(shifted):
    row = Configuration(
        model="meta-llama/Llama-3.2-1B", gpu_model="A100-80GB", batch_size=8, method="full"
    )
    caps = Configurations.of([row.replace(memory_cap_gb=float(cap)) for cap in range(4, 80, 2)])
    told = shifted.told(caps)
    assert told[0] < 0.05
    assert told[-1] > 0.9
    assert (np.diff(told) > -0.25).all()


def test_a_bound_of_one_card_only_is_learnt_for_that_card():
    rows = drawn(150, 5, **TIGHT)
    bound = np.where(rows.is_("gpu_model", "L40S"), 0.55, 1.0)
    it = Described(rows)
    world = World(rows, fits=TRUTH.memory.peak(it) <= bound * it.capacity)
    assert world.model.odds.trust > 0.1
    between = (LOAD > 0.62) & (LOAD < 0.95)
    told = world.told(FRESH)
    slow = FRESH.is_("gpu_model", "L40S")
    assert told[between & ~slow].mean() - told[between & slow].mean() > 0.3


def test_the_peak_is_corrected_and_its_interval_holds(shifted):
    reckoned = Reckoned(Described(FRESH), shifted.physics)
    keys = sortable(feature_matrix(reckoned, shifted.labels))
    peak, half = shifted.model.peak(reckoned, keys)
    fits = LOAD <= 0.75
    off = np.abs(peak - np.log(TRUTH.memory.peak(Described(FRESH))))[fits]
    assert np.median(off) < 0.02
    assert (off <= half[fits]).mean() >= 0.85
    assert (half > 0).all()


def hungry(rows):
    """What physics knows nothing of: long sequences need more on one card."""
    long = rows.number("tokens_per_sample") >= 2048
    return np.where(long & rows.is_("gpu_model", "L40S"), 1.5, 1.0)


def test_trees_learn_what_physics_does_not_know_of_memory():
    rows = drawn(120, 15)
    world = World(rows, more=hungry(rows))
    fresh = drawn(200, 16)
    it = Described(fresh)
    truth = hungry(fresh) * TRUTH.memory.peak(it)
    reckoned = Reckoned(it, world.physics)
    keys = sortable(feature_matrix(reckoned, world.labels))
    peak, _ = world.model.peak(reckoned, keys)
    near = truth < 1.2 * it.capacity
    off = np.abs(peak - np.log(truth))[near]
    assert off.mean() < 0.7 * np.abs(np.log(reckoned.peak / truth))[near].mean()
    assert np.mean((world.told(fresh) > 0.5) != (truth <= it.capacity)) < 0.06


@pytest.mark.more
def test_a_classifier_of_coin_tosses_is_believed_no_more_than_the_margin():
    trusts = []
    for seed in range(4):
        coins = np.random.default_rng(seed).random(80) < 0.5
        world = World(drawn(80, seed, **TIGHT), fits=coins, peaks=False)
        trusts.append(world.model.odds.trust)
    assert np.mean(trusts) <= 0.45


def test_a_classifier_with_few_runs_of_one_kind_is_believed_less():
    rows = drawn(60, 8, **TIGHT)
    few = World(rows, fits=np.arange(60) >= 3, peaks=False).model
    assert few.odds.trust <= 3 / 13 + 1e-9


def test_only_runs_that_fitted_do_not_mean_that_everything_fits():
    rows = drawn(40, 9, model=("HuggingFaceTB/SmolLM2-135M",), num_gpus=(1,), batch_size=(1, 2))
    world = World(rows)
    assert world.fitted.all()
    assert (world.model.odds.trust, world.model.odds.shift) == (0.0, 0.0)
    large = drawn(20, 10, model=("meta-llama/Llama-3.1-70B",), num_gpus=(1,))
    assert (world.told(large) < 0.05).all()
    assert (world.told(rows) > 0.9).all()


def test_only_runs_that_did_not_fit_do_not_mean_that_nothing_does():
    rows = drawn(40, 11, model=("meta-llama/Llama-3.1-70B",), num_gpus=(1,))
    world = World(rows, fits=np.zeros(40, np.bool_))
    small = drawn(20, 12, model=("HuggingFaceTB/SmolLM2-135M",), batch_size=(1,))
    assert (world.told(small) > 0.9).all()


def test_runs_that_fail_with_memory_to_spare_make_all_a_little_less_sure():
    small = {"model": ("HuggingFaceTB/SmolLM2-135M",), "batch_size": (1, 2), "num_gpus": (1,)}
    rows = drawn(120, 17, **small)
    unlucky = np.random.default_rng(0).random(len(rows)) < 0.2
    world = World(rows, fits=~unlucky)
    told = world.told(drawn(100, 18, **small))
    assert 0.7 < told.mean() < 0.93
    large = drawn(20, 10, model=("meta-llama/Llama-3.1-70B",), num_gpus=(1,))
    assert (world.told(large) < 0.05).all()


def test_no_run_helps_to_predict_its_own_memory():
    """Each has software of its own, which says what it needs once it was seen, and nothing of the
    others'.
    """
    small = {"model": ("HuggingFaceTB/SmolLM2-135M",), "batch_size": (1,), "num_gpus": (1,)}
    rows = Configurations.of(
        [row.replace(software=f"build {index}") for index, row in enumerate(drawn(18, 19, **small))]
    )
    luck = np.exp(0.5 * np.random.default_rng(1).standard_normal(len(rows)))
    world = World(rows, more=luck, fits=np.ones(len(rows), np.bool_))
    half = world.model.widths.half_width(rows, np.zeros(len(rows)))
    assert np.median(half) > 0.35


def test_nothing_measured_is_physics_alone():
    none = World(Configurations.of([]))
    assert none.model.odds.trust == 0.0
    assert none.told(FRESH).tolist() == none.told(FRESH, PHYSICS_ALONE).tolist()
    odds = np.log(none.told(FRESH) / (1 - none.told(FRESH)))
    margin = Reckoned(Described(FRESH), none.physics).margin
    near = np.abs(margin) < 0.2
    assert odds[near] == pytest.approx(20 * margin[near])


def test_paged_state_lets_more_fit():
    rows = drawn(
        150,
        13,
        method=("full",),
        optimiser=("adamw", "paged-adamw"),
        **TIGHT | {"batch_size": (1, 2, 4, 8)},
    )
    it = Described(rows)
    world = World(rows, fits=TRUTH.memory.peak(it) <= np.where(it.paged, 1.3, 1.0) * it.capacity)
    paged = it.paged
    assert world.fitted[paged].mean() > world.fitted[~paged].mean()
    plain = [row.replace(optimiser="adamw") for row in rows]
    moved = [row.replace(optimiser="paged-adamw") for row in rows]
    told, more = world.told(Configurations.of(plain)), world.told(Configurations.of(moved))
    assert (more >= told - 0.05).all()
    assert more.mean() > told.mean() + 0.03


@pytest.mark.parametrize("seed", range(5))
def test_the_curve_of_the_margin_is_found(seed):
    random = np.random.default_rng(seed)
    margin = random.uniform(-0.5, 0.5, 4000)
    fits = random.random(4000) < 1 / (1 + np.exp(-(12 * margin - 1.5)))
    slope, shift = _logistic_fit(margin, fits, np.ones(4000))
    assert slope == pytest.approx(12, rel=0.12)
    assert shift == pytest.approx(-1.5, abs=0.3)


def test_a_curve_never_falls_and_a_sharp_bound_stays_finite():
    margin = np.linspace(-0.5, 0.5, 200)
    assert _logistic_fit(margin, margin < 0, np.ones(200))[0] > 0
    sharp = np.concatenate([np.linspace(0.01, 0.02, 500), np.linspace(-0.02, -0.01, 500), [-5, 5]])
    slope, shift = _logistic_fit(sharp, sharp > 0, np.ones(len(sharp)))
    assert 100 < slope < 1e4
    assert abs(shift) < 1


def test_rows_that_weigh_nothing_do_not_move_the_curve():
    margin = np.linspace(-0.5, 0.5, 100)
    fits = margin > 0.1
    weight = np.ones(200)
    weight[100:] = 0.0
    both = _logistic_fit(np.concatenate([margin, margin]), np.concatenate([fits, ~fits]), weight)
    assert both == pytest.approx(_logistic_fit(margin, fits, np.ones(100)))


def test_a_sharp_bound_of_a_model_is_answered_without_overflow():
    model = msgspec.structs.replace(PHYSICS_ALONE, odds=Odds(slope=400.0))
    world = World(Configurations.of([]))
    told = world.told(drawn(50, 14), model)
    assert np.isfinite(told).all()


def test_what_the_allocator_wastes_is_known_by_software():
    rows = Configurations.grid({"model": ["a"], "gpu_model": ["H200"], "software": ["x", "y"]})
    used, peak = np.array([10.0, 10.0]), np.array([12.0, 10.1])
    found = reserve_of(rows, used, peak)
    assert found["x"] == pytest.approx(np.log(1.2))
    assert found["x"] == found[""] > found["y"]  # unknown software may waste as much as any
    model = msgspec.structs.replace(PHYSICS_ALONE, reserve=found)
    assert model.reserved(rows).tolist() == [found["x"], found["y"]]
    world = World(Configurations.of([]))
    tight = drawn(50, 14).take(np.arange(50))
    assert (world.told(tight, model) <= world.told(tight, PHYSICS_ALONE)).all()

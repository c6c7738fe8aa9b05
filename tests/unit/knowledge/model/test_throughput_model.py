"""How fast: physics and trees together, and intervals that hold on runs that nobody has seen."""

from __future__ import annotations

import numpy as np
import pytest

from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.estimate import EXTRAPOLATED
from duetune.knowledge.model.extrapolation import PACE
from duetune.knowledge.model.features import Physics, Reckoned, feature_matrix, seen_labels
from duetune.knowledge.model.forest import sortable
from duetune.knowledge.model.pace_model import PaceModel, fit_pace
from duetune.knowledge.model.throughput_model import FEWEST, fit_performance
from support.synthetic_history import TRUTH, drawn, measured

ROOMY = {"model": ("HuggingFaceTB/SmolLM2-135M", "meta-llama/Llama-3.2-1B"), "num_gpus": (1, 2)}
"""Small enough for all to fit, so that every row has a pace."""


def odd(rows):
    """What physics knows nothing of: long sequences are slower on one card."""
    long = rows.number("tokens_per_sample") >= 2048
    return np.where(long & rows.is_("gpu_model", "L40S"), 0.6, 1.0)


def together(it):
    """All rows are of one campaign."""
    return np.zeros(len(it), np.int64)


class World:
    """A fit to what was measured of ``rows``, and what it says of others."""

    def __init__(self, rows, seed=0, *, noise=0.03, weight=None):
        self.history = measured(rows, seed, noise=noise, slower=odd(rows), bound=1e9)
        it = Described(rows)
        weight = np.ones(len(rows)) if weight is None else weight
        pace = self.history.tokens_per_s
        self.physics = Physics(pace=fit_pace(it, pace, weight))
        self.labels = seen_labels(rows)
        self.model = fit_performance(
            it, self.physics, self.labels, pace, weight, together(it), seed=0
        )

    def told(self, rows):
        reckoned = Reckoned(Described(rows), self.physics)
        keys = sortable(feature_matrix(reckoned, self.labels))
        return self.model.tokens_per_s(reckoned, keys, self.model.unseen(rows))


@pytest.fixture(scope="module")
def world():
    return World(drawn(140, 1, **ROOMY))


FRESH = drawn(150, 2, **ROOMY)
TRUE_PACE = TRUTH.pace.tokens_per_s(Described(FRESH)) * odd(FRESH)


def off(told):
    return np.abs(np.log(told[:, 1] / TRUE_PACE))


def test_trees_learn_what_physics_does_not_know(world):
    alone = np.abs(np.log(world.physics.pace.tokens_per_s(Described(FRESH)) / TRUE_PACE))
    assert off(world.told(FRESH)).mean() < 0.75 * alone.mean()
    assert np.median(off(world.told(FRESH))) < 0.05


def test_nine_of_ten_new_runs_are_inside_the_interval(world):
    told = world.told(FRESH)
    noise = np.exp(0.03 * np.random.default_rng(9).standard_normal(len(FRESH)))
    inside = (told[:, 0] <= TRUE_PACE * noise) & (TRUE_PACE * noise <= told[:, 2])
    assert inside.mean() >= 0.82
    assert np.median(np.log(told[:, 2] / told[:, 0])) < 0.6


def test_low_middle_and_high_are_in_order_and_around_the_middle(world):
    told = world.told(FRESH)
    assert (told[:, 0] < told[:, 1]).all()
    assert (told[:, 1] < told[:, 2]).all()
    assert told[:, 1] ** 2 == pytest.approx(told[:, 0] * told[:, 2])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "Qwen/Qwen2.5-0.5B"),
        ("gpu_model", "H200"),
        ("method", "qlora"),
        ("software", "never seen"),
    ],
)
def test_what_was_never_seen_widens_the_interval_and_is_named(world, field, value):
    known = list(FRESH.take(np.arange(20)))
    foreign = Configurations.of([row.replace(**{field: value}) for row in known])
    unseen = world.model.unseen(foreign)
    assert unseen[:, EXTRAPOLATED.index(field)].all()
    assert unseen.sum() == 20
    assert not world.model.unseen(FRESH).any()

    reckoned = Reckoned(Described(foreign), world.physics)
    keys = sortable(feature_matrix(reckoned, world.labels))
    wide = world.model.tokens_per_s(reckoned, keys, unseen)
    narrow = world.model.tokens_per_s(reckoned, keys, np.zeros_like(unseen))
    half, less = np.log(wide[:, 2] / wide[:, 1]), np.log(narrow[:, 2] / narrow[:, 1])
    assert half**2 == pytest.approx(less**2 + world.model.transfer[field] ** 2)
    assert (half > less).all()
    assert wide[:, 1].tolist() == narrow[:, 1].tolist()


def test_the_default_software_is_known_once_it_was_measured(world):
    assert "" in world.model.seen["software"]


def test_how_far_labels_lie_apart_is_learnt_where_there_are_two(world):
    transfer = world.model.transfer
    assert transfer["software"] == PACE["software"]  # one label only
    assert all(value >= 0.05 for value in transfer.values())
    # The two cards differ by 1.25 / 0.8 from what is usual: forgetting one is off by some of it.
    assert 0.1 < transfer["gpu_model"] < 1.0


def test_few_rows_leave_the_answer_to_physics():
    rows = drawn(FEWEST - 1, 3, **ROOMY)
    few = World(rows)
    assert few.told(FRESH)[:, 1] == pytest.approx(
        few.physics.pace.tokens_per_s(Described(FRESH)), rel=1e-12
    )
    assert few.model.widths.usual.times > 0


def test_very_few_rows_have_the_cautious_width():
    few = World(drawn(5, 3, **ROOMY))
    told = few.told(drawn(5, 3, **ROOMY))
    assert np.log(told[:, 2] / told[:, 1]) == pytest.approx(np.full(5, 0.35))


@pytest.mark.more
def test_noisier_measurements_have_wider_intervals():
    rows = drawn(70, 4, **ROOMY)

    def half(noise):
        told = World(rows, noise=noise).told(FRESH)
        return np.median(np.log(told[:, 2] / told[:, 1]))

    assert half(0.2) > 1.5 * half(0.02)


def test_software_with_any_characters_is_learnt_from():
    words = ("a|b", "c=d, e", "torch 2|x, peft=1")
    rows = drawn(12, 5, software=words, **ROOMY)
    told = World(rows).told(rows)
    assert np.isfinite(told).all()


def test_no_run_helps_to_predict_itself():
    """Each has software of its own, which says all of its pace once it was seen, and nothing of
    the others': an interval from fits that saw the run would be far too narrow.
    """
    rows = Configurations.of(
        [row.replace(software=f"build {index}") for index, row in enumerate(drawn(18, 6, **ROOMY))]
    )
    it = Described(rows)
    luck = np.exp(0.4 * np.random.default_rng(1).standard_normal(len(rows)))
    pace = TRUTH.pace.tokens_per_s(it) * luck
    weight = np.ones(len(rows))
    physics = Physics(pace=fit_pace(it, pace, weight))
    model = fit_performance(it, physics, {}, pace, weight, together(it), seed=0)
    half = model.widths.half_width(rows, np.zeros(len(rows)))
    seen = np.abs(np.log(physics.pace.tokens_per_s(it) / pace))
    assert np.median(half) > 0.45
    assert np.median(half) > 2 * np.quantile(seen, 0.9)


def test_what_a_label_is_worth_is_how_far_off_physics_is_without_it():
    factors = {"gpu_model=A100-80GB": 1.8, "gpu_model=L40S": 0.5, "method=lora": 0.4}
    physics = Physics(pace=PaceModel(factors=factors))
    big = {"batch_size": (256,), "tokens_per_sample": (4096,), "num_gpus": (1,)}
    rows = drawn(8, 7, model=("meta-llama/Llama-3.1-8B",), **big)
    it = Described(rows)
    pace = physics.pace.tokens_per_s(it)
    model = fit_performance(it, physics, {}, pace, np.ones(len(rows)), together(it), seed=0)
    assert model.transfer["gpu_model"] == pytest.approx((np.log(1.8) - np.log(0.5)) / 2, rel=0.02)
    assert model.transfer["method"] == pytest.approx(-np.log(0.4) / 2, rel=0.02)


@pytest.mark.more
def test_runs_that_repeat_others_change_intervals_little(world):
    again = World(drawn(140, 1, **ROOMY).take(np.tile(np.arange(140), 8)))
    once, often = (
        np.median(np.log(each.told(FRESH)[:, 2] / each.told(FRESH)[:, 0]))
        for each in (world, again)
    )
    assert 0.6 < often / once < 1.6

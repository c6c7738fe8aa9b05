"""Constants are found again in measurements of a world in which they are known."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from duetune.knowledge.arithmetic import MemoryConstants, TimeConstants
from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.model.memory_model import CONSTANTS as MEMORY_CONSTANTS
from duetune.knowledge.model.memory_model import MemoryModel, fit_memory
from duetune.knowledge.model.pace_model import CONSTANTS as TIME_CONSTANTS
from duetune.knowledge.model.pace_model import PaceModel, fit_pace
from support.synthetic_history import TRUTH, drawn

ROWS = Described(drawn(120, 1))
FRESH = Described(drawn(100, 2))
NOTHING = Described(Configurations.of([]))


def spoiled(clean, seed, noise):
    """With noise, and every tenth off by a factor of two to four, either way."""
    random = np.random.default_rng(seed)
    numbers = clean * np.exp(noise * random.standard_normal(len(clean)))
    numbers[::20] *= random.uniform(2, 4, len(numbers[::20]))
    numbers[10::20] /= random.uniform(2, 4, len(numbers[10::20]))
    return numbers


@pytest.fixture(scope="module")
def pace():
    told = spoiled(TRUTH.pace.tokens_per_s(ROWS), 3, 0.03)
    return fit_pace(ROWS, told, np.ones(len(ROWS)))


@pytest.fixture(scope="module")
def memory():
    told = spoiled(TRUTH.memory.peak(ROWS), 4, 0.01)
    return fit_memory(ROWS, told, np.ones(len(ROWS), np.bool_), np.ones(len(ROWS)))


def off(told, truth):
    return np.abs(np.log(told / truth))


def test_the_pace_of_other_configurations_is_found_despite_gross_errors(pace):
    truth = TRUTH.pace.tokens_per_s(FRESH)
    error = off(pace.tokens_per_s(FRESH), truth)
    assert np.median(error) < 0.02
    assert np.quantile(error, 0.9) < 0.06
    assert np.median(off(PaceModel().tokens_per_s(FRESH), truth)) > 0.1


def test_the_constants_of_pace_are_found(pace):
    it = Described(drawn(1, 0, gpu_model=("A100-80GB",), method=("full",)))
    product = pace.factors["gpu_model=A100-80GB"] / pace.factors["gpu_model=L40S"]
    assert product == pytest.approx(1.25 / 0.8, rel=0.1)
    assert pace.constants.exchange_s == pytest.approx(0.006, rel=0.25)
    assert float(pace.terms(it)["launch"][0]) == pytest.approx(
        float(TRUTH.pace.terms(it)["launch"][0]), rel=0.15
    )


def test_constants_of_pace_without_data_stay_usual(pace):
    assert pace.constants.network_gb_s == pytest.approx(8.0, rel=1e-6)
    assert pace.constants.eager == pytest.approx(PaceModel().constants.eager, rel=1e-6)
    assert "software=never seen" not in pace.factors
    assert "software=" in pace.factors


def test_the_memory_of_other_configurations_is_found_despite_gross_errors(memory):
    truth = TRUTH.memory.peak(FRESH)
    error = off(memory.peak(FRESH), truth)
    assert np.median(error) < 0.01
    assert np.quantile(error, 0.9) < 0.03
    assert np.median(off(MemoryModel().peak(FRESH), truth)) > 0.05


def test_the_constants_of_memory_are_found(memory):
    it = Described(drawn(1, 0))
    assert float(memory.terms(it)["context"][0]) == pytest.approx(3.2e9, rel=0.05)
    assert float(memory.terms(it)["logits"][0]) == pytest.approx(
        float(TRUTH.memory.terms(it)["logits"][0]), rel=0.1
    )
    assert memory.constants.shard == pytest.approx(4.0, rel=0.15)


def test_constants_of_memory_without_data_stay_usual(memory):
    usual = MemoryConstants()
    for name in ("fused_logits", "bigcode_logits", "scores", "one_by_one", "quantised"):
        assert getattr(memory.constants, name) == pytest.approx(getattr(usual, name), rel=1e-6)


@pytest.mark.parametrize(
    ("usual", "defaults", "skipped"),
    [
        (MEMORY_CONSTANTS, MemoryConstants(), ()),
        (TIME_CONSTANTS, TimeConstants(), ("overlap", "vocabulary")),
    ],
)
def test_what_is_usual_is_the_same_before_and_after_a_fit(usual, defaults, skipped):
    numbers = msgspec.structs.asdict(defaults)
    for name in skipped:
        numbers.pop(name, None)
    found = {name: each.value for name, each in usual.items() if name not in skipped}
    assert found == numbers


def test_the_usual_overlap_is_the_same_before_and_after_a_fit():
    odds = TIME_CONSTANTS["overlap"].value
    assert odds / (1 + odds) == pytest.approx(TimeConstants().overlap, abs=1e-6)


def test_nothing_measured_leaves_all_usual():
    assert fit_pace(NOTHING, np.zeros(0), np.zeros(0)) == PaceModel()
    assert fit_memory(NOTHING, np.zeros(0), np.zeros(0, np.bool_), np.zeros(0)) == MemoryModel()


def test_rows_of_no_weight_teach_nothing():
    weight = np.ones(len(ROWS))
    weight[::2] = 1e-12
    odd = np.where(weight < 1, 5.0, 1.0)
    pace = fit_pace(ROWS, odd * TRUTH.pace.tokens_per_s(ROWS), weight)
    assert np.median(off(pace.tokens_per_s(FRESH), TRUTH.pace.tokens_per_s(FRESH))) < 0.02
    every = np.ones(len(ROWS), np.bool_)
    memory = fit_memory(ROWS, odd * TRUTH.memory.peak(ROWS), every, weight)
    assert np.median(off(memory.peak(FRESH), TRUTH.memory.peak(FRESH))) < 0.01


def test_one_row_is_followed_and_everything_stays_finite():
    it = Described(drawn(1, 5))
    told = 0.6 * PaceModel().tokens_per_s(it)
    model = fit_pace(it, told, np.ones(1))
    before = float(off(PaceModel().tokens_per_s(it), told)[0])
    assert float(off(model.tokens_per_s(it), told)[0]) < 0.2 * before
    assert np.isfinite(model.tokens_per_s(FRESH)).all()


def test_runs_of_which_only_is_known_that_they_fitted_or_not_move_memory_to_their_side():
    rows = drawn(40, 6, gpu_model=("L40S",), num_gpus=(1,), model=("meta-llama/Llama-3.2-1B",))
    it = Described(rows)
    usual = MemoryModel().peak(it)
    unknown = np.full(len(it), np.nan)
    every = np.ones(len(it))
    close = usual > 0.5 * it.capacity
    assert np.count_nonzero(close & (usual < it.capacity)) > 3

    def fitted(fits):
        return fit_memory(it, unknown, fits, every).peak(it)

    agreed = fitted(usual <= it.capacity)
    assert np.median(off(agreed, usual)) < 0.02
    needs_more = fitted(usual <= 0.5 * it.capacity)
    needs_less = fitted(usual <= 1.6 * it.capacity)
    assert needs_less[close].mean() < 0.97 * usual[close].mean()
    assert needs_more[close].mean() > 1.1 * usual[close].mean()


def test_one_run_out_of_memory_against_all_reason_does_not_close_every_card():
    usual = {"num_gpus": (1,), "batch_size": (1,), "method": ("lora",)}
    it = Described(drawn(1, 7, model=("meta-llama/Llama-3.2-1B",), gpu_model=("H200",), **usual))
    model = fit_memory(it, np.full(1, np.nan), np.zeros(1, np.bool_), np.ones(1))
    small = Described(drawn(5, 8, model=("HuggingFaceTB/SmolLM2-135M",), **usual))
    assert (model.peak(small) < small.capacity).all()


def test_a_fit_from_a_start_ends_where_a_fit_from_nothing_does(pace):
    told = spoiled(TRUTH.pace.tokens_per_s(ROWS), 3, 0.03)
    again = fit_pace(ROWS, told, np.ones(len(ROWS)), start=pace)
    assert off(again.tokens_per_s(FRESH), pace.tokens_per_s(FRESH)).max() < 0.02

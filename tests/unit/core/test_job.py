from __future__ import annotations

import math

import pytest

from duetune.core.job import (
    MAX_SLOTS,
    Job,
    Reconfiguration,
    ReconfigurationKey,
    ValueShape,
    linear_throughput,
)
from duetune.core.physics import value_of_finishing
from duetune.errors import InvalidInput

GOOD = {"work": 10.0, "deadline": 8, "value": 20.0, "throughput": (0.0, 1.0, 2.0, 2.5)}
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("work", 0, "positive"),
        ("work", -1.0, "positive"),
        ("work", NAN, "positive"),
        ("work", INF, "positive"),
        ("deadline", 0, "at least one slot from now"),
        ("deadline", -3, "at least one slot from now"),
        ("deadline", MAX_SLOTS + 1, str(MAX_SLOTS)),
        ("deadline", 2.5, "whole number"),
        ("deadline", True, "whole number"),
        ("value", -0.01, "zero or more"),
        ("value", NAN, "zero or more"),
        ("value", INF, "zero or more"),
        ("hard_deadline_factor", 0.99, "1 or more"),
        ("hard_deadline_factor", NAN, "1 or more"),
        ("hard_deadline_factor", 1e9, str(MAX_SLOTS)),
        ("decay", -0.1, "zero or more"),
        ("decay", INF, "zero or more"),
        ("budget", -5.0, "zero or more"),
        ("budget", NAN, "zero or more"),
        ("min_gpus", 0, "from 1 to max_gpus, which is 3"),
        ("min_gpus", 4, "from 1 to max_gpus, which is 3"),
    ],
)
def test_a_bad_field_is_named_with_its_value_and_what_is_allowed(field, value, allowed):
    with pytest.raises(InvalidInput) as caught:
        Job(**{**GOOD, field: value})
    error = caught.value
    assert error.field == field
    assert str(error).startswith(f"{field}: {value!r} is not allowed; expected ")
    assert allowed in str(error)
    assert "\n" not in str(error)
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("curve", "field"),
    [
        ((), "throughput"),
        ((0.0,), "throughput"),
        ((0.5, 1.0), "throughput[0]"),
        ((0.0, 0.0), "throughput[1]"),
        ((0.0, -1.0), "throughput[1]"),
        ((0.0, 1.0, NAN), "throughput[2]"),
        ((0.0, 1.0, INF), "throughput[2]"),
        ((0.0, 2.0, 1.9), "throughput[2]"),
    ],
)
def test_a_bad_throughput_curve_is_named_by_its_entry(curve, field):
    with pytest.raises(InvalidInput) as caught:
        Job(**{**GOOD, "throughput": curve})
    assert caught.value.field == field


def test_a_minimum_that_is_not_a_whole_number_is_refused():
    with pytest.raises(InvalidInput) as caught:
        Job(**{**GOOD, "min_gpus": 1.5})
    assert caught.value.field == "min_gpus"


def test_a_throughput_that_is_no_tuple_is_refused():
    with pytest.raises(InvalidInput, match="throughput"):
        Job(**{**GOOD, "throughput": [0.0, 1.0]})


def test_below_the_minimum_the_curve_may_be_anything():
    job = Job(**{**GOOD, "throughput": (0.0, 9.0, 2.0, 2.5), "min_gpus": 2})
    assert job.max_gpus == 3


def test_a_flat_curve_is_allowed():
    assert Job(**{**GOOD, "throughput": (0.0, 1.0, 1.0)}).max_gpus == 2


def test_a_budget_of_zero_is_not_the_same_as_none():
    assert Job(**{**GOOD, "budget": 0.0}).budget == 0.0
    assert Job(**GOOD).budget is None


@pytest.mark.parametrize("field", ["grow", "shrink", "preempted"])
@pytest.mark.parametrize("value", [0.0, -0.1, 1.01, NAN, INF])
def test_a_bad_reconfiguration_is_named(field, value):
    with pytest.raises(InvalidInput) as caught:
        Reconfiguration(**{field: value})
    assert caught.value.field == f"reconfiguration.{field}"
    assert repr(value) in str(caught.value)
    assert "(0, 1]" in str(caught.value)


def test_the_default_key_is_that_of_the_paper():
    rule = Reconfiguration()
    assert rule.key is ReconfigurationKey.TOTAL
    assert (rule.grow, rule.shrink) == (0.90, 0.95)


def test_fractions_follow_from_measured_delays():
    rule = Reconfiguration.from_delays(grow_s=180, shrink_s=90, preempted_s=0, slot_s=1800)
    assert (rule.grow, rule.shrink, rule.preempted) == (0.9, 0.95, 1.0)


@pytest.mark.parametrize("delay", [-1.0, 1800.0, 2000.0, NAN])
@pytest.mark.parametrize("field", ["grow_s", "shrink_s", "preempted_s"])
def test_a_delay_that_does_not_fit_in_a_slot_is_refused(field, delay):
    delays = {"grow_s": 1.0, "shrink_s": 1.0, "preempted_s": 1.0, field: delay}
    with pytest.raises(InvalidInput, match=field) as caught:
        Reconfiguration.from_delays(**delays, slot_s=1800)
    assert "1800" in str(caught.value)


@pytest.mark.parametrize("slot_s", [0, -1, NAN])
def test_a_slot_needs_a_length(slot_s):
    with pytest.raises(InvalidInput, match="slot_s"):
        Reconfiguration.from_delays(grow_s=0, shrink_s=0, preempted_s=0, slot_s=slot_s)


def test_linear_throughput_is_alpha_n_plus_beta_and_nothing_for_none():
    assert linear_throughput(3, slope=2, intercept=0.5) == (0.0, 2.5, 4.5, 6.5)


@pytest.mark.parametrize("gpus", [0, -1, 1.5, True])
def test_linear_throughput_needs_a_whole_number_of_gpus(gpus):
    with pytest.raises(InvalidInput, match="max_gpus"):
        linear_throughput(gpus)


@pytest.mark.parametrize(
    ("deadline", "factor", "last"),
    [
        (8, 1.0, 8),
        (8, 1.5, 12),
        (5, 1.5, 7),
        (10, 1.1, 11),
        (1, 1.5, 1),
        (3, 1.3333333333333333, 4),
    ],
)
def test_the_hard_deadline_is_the_floor_of_gamma_d(deadline, factor, last):
    job = Job(**{**GOOD, "deadline": deadline, "hard_deadline_factor": factor})
    assert job.hard_deadline == last


def value_at(slots, **fields):
    job = Job(**{**GOOD, **fields})
    return [value_of_finishing(job, slot) for slot in slots]


def test_linear_value_is_full_at_the_deadline_and_gone_at_gamma_d():
    assert value_at([1, 8, 9, 10, 11, 12, 13]) == [20, 20, 15, 10, 5, 0, 0]


def test_linear_value_between_slots_keeps_its_slope_where_gamma_d_is_not_whole():
    # gamma d = 7.5: two late slots of the 2.5 there are.
    assert value_at([5, 6, 7, 8], deadline=5) == pytest.approx([20, 12, 4, 0])


def test_step_value_is_full_up_to_and_including_the_hard_deadline():
    assert value_at([8, 9, 12, 13], value_shape=ValueShape.STEP) == [20, 20, 20, 0]


def test_exponential_value_decays_per_slot_and_ends_at_the_hard_deadline():
    values = value_at([8, 9, 12, 13], value_shape=ValueShape.EXPONENTIAL, decay=0.5)
    assert values == pytest.approx([20, 20 * math.exp(-0.5), 20 * math.exp(-2), 0])


@pytest.mark.parametrize("shape", list(ValueShape))
def test_without_grace_the_deadline_is_hard(shape):
    assert value_at([8, 9], hard_deadline_factor=1.0, value_shape=shape) == [20, 0]

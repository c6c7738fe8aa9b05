from __future__ import annotations

import pytest

from duetune.engine.effects import calibrated

PRIOR = (0.0, 3.0, 6.0, 9.0)


def test_without_a_measurement_the_curve_stays():
    assert calibrated(PRIOR, {}) == PRIOR


def test_what_was_not_measured_is_scaled_like_what_was():
    assert calibrated(PRIOR, {2: 3.0}) == (0.0, 1.5, 3.0, 4.5)


def test_the_median_of_several_measurements_counts():
    curve = calibrated(PRIOR, {1: 3.0, 2: 3.0, 3: 90.0})
    assert curve == (0.0, 3.0, 3.0, 90.0)


def test_more_gpus_never_do_less():
    curve = calibrated(PRIOR, {2: 5.0, 3: 4.0})
    assert curve[3] == curve[2] == 5.0


@pytest.mark.parametrize("nonsense", [{0: 5.0}, {-1: 5.0}, {4: 5.0}, {2: 0.0}, {2: -1.0}])
def test_measurements_that_cannot_be_are_passed_over(nonsense):
    assert calibrated(PRIOR, nonsense) == PRIOR

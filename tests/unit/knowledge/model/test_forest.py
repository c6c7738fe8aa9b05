"""Flat trees say exactly what scikit-learn's own do."""

from __future__ import annotations

import numpy as np
import pytest

from duetune.knowledge.model.forest import (
    BLOCK,
    SMALLEST,
    TRIED,
    Forest,
    _flat,
    constant_forest,
    grow_classification,
    grow_regression,
    sortable,
)
from support.later import later

ensemble = later("sklearn.ensemble")

TREES = 12
random = np.random.default_rng(0)
MATRIX = random.normal(size=(90, 6)).astype(np.float32)
MATRIX[:, 2] = np.round(MATRIX[:, 2])  # ties, and both zeros
MATRIX[::7, 2] = -0.0
MATRIX[::5, 3] = 0.0
TARGET = MATRIX[:, 0] + np.sin(3 * MATRIX[:, 1]) + 0.3 * random.normal(size=90)
LABEL = TARGET > 0.2
WEIGHT = random.uniform(0.2, 3.0, size=90)
ASKED = random.normal(size=(2 * BLOCK + 5, 6)).astype(np.float32)
ASKED[:10, 2] = -0.0
ASKED[10:20, 2] = 0.0


def library(trees, seed):
    return ensemble.ExtraTreesRegressor(
        trees, random_state=seed, max_features=TRIED, min_samples_leaf=SMALLEST
    )


@pytest.fixture(scope="module")
def regressor():
    grown = library(TREES, seed=5).fit(MATRIX, TARGET, sample_weight=WEIGHT)
    return grown, grow_regression(MATRIX, TARGET, WEIGHT, trees=TREES, seed=5)


@pytest.fixture(scope="module")
def classifier():
    grown = ensemble.ExtraTreesClassifier(
        TREES, random_state=5, max_features=0.5, monotonic_cst=[1, 0, 0, 0, 0, 0]
    ).fit(MATRIX, LABEL, sample_weight=WEIGHT)
    return grown, grow_classification(MATRIX, LABEL, WEIGHT, rising=[0], trees=TREES, seed=5)


@pytest.mark.parametrize("matrix", [MATRIX, ASKED])
def test_regression_equals_the_library_bit_by_bit(regressor, matrix):
    grown, forest = regressor
    told, spread = forest.predict(sortable(matrix))
    assert (told == grown.predict(matrix)).all()
    each = np.array([tree.predict(matrix) for tree in grown.estimators_])
    assert spread == pytest.approx(each.std(axis=0), abs=1e-7)


@pytest.mark.parametrize("matrix", [MATRIX, ASKED])
def test_classification_equals_the_library_bit_by_bit(classifier, matrix):
    grown, forest = classifier
    assert (forest.predict(sortable(matrix))[0] == grown.predict_proba(matrix)[:, 1]).all()


def test_rows_on_a_threshold_and_next_to_it_go_the_same_way(regressor):
    grown, forest = regressor
    tree = grown.estimators_[0].tree_
    inner = tree.children_left >= 0
    rows = []
    for feature, threshold in zip(tree.feature[inner], tree.threshold[inner], strict=True):
        near = np.float32(threshold)
        for value in (
            near,
            np.nextafter(near, np.float32(np.inf)),
            np.nextafter(near, np.float32(-np.inf)),
        ):
            row = MATRIX[len(rows) % len(MATRIX)].copy()
            row[feature] = value
            rows.append(row)
    matrix = np.array(rows, np.float32)
    assert (forest.predict(sortable(matrix))[0] == grown.predict(matrix)).all()


def test_thresholds_between_two_neighbouring_numbers_divide_them():
    low = np.float32(1.0)
    high = np.nextafter(low, np.float32(2.0))
    for sign in (1, -1):
        matrix = np.array([[sign * low], [sign * high]] * 4, np.float32)
        target = np.array([1.0, 2.0] * 4)
        grown = library(20, seed=0).fit(matrix, target)
        forest = grow_regression(matrix, target, np.ones(8), trees=20, seed=0)
        assert (forest.predict(sortable(matrix))[0] == grown.predict(matrix)).all()


class Stump:
    """One split, as scikit-learn keeps it."""

    node_count = 3
    feature = np.array([0, -2, -2])
    children_left = np.array([1, -1, -1])
    children_right = np.array([2, -1, -1])
    value = np.array([[[0.0]], [[1.0]], [[2.0]]])

    def __init__(self, threshold):
        self.threshold = np.array([threshold, -2.0, -2.0])


@pytest.mark.parametrize(
    "threshold", [0.5, 0.0, -0.0, -0.5, 0.1, -0.1, 1e-50, -1e-50, 16777217.0, -16777217.0]
)
def test_what_is_not_above_the_threshold_goes_to_the_first_child(threshold):
    near = np.float32(threshold)
    asked = np.array(
        [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))],
        np.float32,
    )
    forest = _flat([Stump(threshold)], lambda tree: tree.value[:, 0, 0])
    told, _ = forest.predict(sortable(asked[:, None]))
    assert told.tolist() == [1.0 if float(each) <= threshold else 2.0 for each in asked]


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("nodes", lambda array: array[:, :2]),
        ("nodes", lambda array: array + np.array([6, 0, 0], np.int32)),
        ("nodes", lambda array: array + np.array([0, 0, len(array)], np.int32)),
        ("nodes", lambda array: array - np.array([0, 0, len(array)], np.int32)),
        ("roots", lambda array: array + 10**6),
        ("roots", lambda array: array - 1),
        ("roots", lambda array: array[:0]),
        ("depths", lambda array: array[:-1]),
        ("value", lambda array: array[:-1]),
    ],
)
def test_arrays_that_lead_out_of_themselves_are_refused(regressor, part, change):
    _, forest = regressor
    with pytest.raises(ValueError, match="tree"):
        Forest.of_arrays(forest.arrays | {part: change(forest.arrays[part])}, columns=6)


def test_both_zeros_are_one_number():
    zeros = np.array([0.0, -0.0], np.float32)
    first, second = sortable(zeros).tolist()
    assert first == second


def test_keys_are_in_the_order_of_the_numbers():
    numbers = np.array(
        [-np.inf, -3e38, -1.5, -1e-45, 0.0, 1e-45, 1e-38, 1.0, 1.0000001, 3e38, np.inf],
        np.float32,
    )
    keys = sortable(numbers)
    assert (np.diff(keys.astype(np.int64)) > 0).all()


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_one_by_one_is_the_same_as_all_at_once(regressor, size):
    _, forest = regressor
    keys = sortable(ASKED[:size])
    told, spread = forest.predict(keys)
    single = [forest.predict(keys[row : row + 1]) for row in range(size)]
    assert told.tolist() == [float(each[0][0]) for each in single]
    assert spread.tolist() == [float(each[1][0]) for each in single]


def test_the_probability_never_falls_in_a_rising_column(classifier):
    _, forest = classifier
    for row in ASKED[:40]:
        line = np.repeat(row[None, :], 50, axis=0)
        line[:, 0] = np.linspace(-4, 4, 50)
        told, _ = forest.predict(sortable(np.ascontiguousarray(line)))
        assert (np.diff(told) >= 0).all()
    assert np.ptp(forest.predict(sortable(ASKED))[0]) > 0.5


def test_without_a_rising_column_it_may_fall():
    falling = grow_classification(MATRIX, MATRIX[:, 0] < 0, WEIGHT, rising=[1], trees=8, seed=0)
    line = np.zeros((2, 6), np.float32)
    line[:, 0] = [-2, 2]
    told, _ = falling.predict(sortable(line))
    assert told[0] > 0.8
    assert told[1] < 0.2


@pytest.mark.parametrize("value", [0.0, 0.25, -3.0])
def test_a_constant_forest_says_the_same_of_all_and_is_sure(value):
    told, spread = constant_forest(value).predict(sortable(ASKED))
    assert told.tolist() == [value] * len(ASKED)
    assert spread.tolist() == [0.0] * len(ASKED)


def test_trees_of_one_leaf_say_what_they_were_told():
    forest = grow_regression(MATRIX, np.full(90, 2.5), WEIGHT, trees=3, seed=0)
    assert len(forest.roots) == 3
    told, spread = forest.predict(sortable(ASKED))
    assert told == pytest.approx(np.full(len(ASKED), 2.5))
    assert spread == pytest.approx(np.zeros(len(ASKED)), abs=1e-6)


def test_trees_of_one_leaf_among_others_say_what_the_library_says():
    matrix = np.array([[0.0], [0.0], [0.0], [1.0]], np.float32)
    target = np.array([1.0, 1.0, 1.0, 9.0])
    weight = np.array([1.0, 1.0, 1.0, 1e-3])
    grown = library(10, seed=1)
    grown.fit(matrix, target, sample_weight=weight)
    forest = grow_regression(matrix, target, weight, trees=10, seed=1)
    assert (forest.predict(sortable(matrix))[0] == grown.predict(matrix)).all()


@pytest.mark.parametrize("valid", [True, False])
def test_one_class_only_is_a_constant(valid):
    forest = grow_classification(MATRIX, np.full(90, valid), WEIGHT, rising=[0], trees=4, seed=0)
    assert forest.predict(sortable(ASKED))[0].tolist() == [float(valid)] * len(ASKED)


def test_arrays_are_all_there_is(regressor):
    _, forest = regressor
    kept = {name: array.copy() for name, array in forest.arrays.items()}
    again = Forest.of_arrays(kept, columns=6)
    for mine, theirs in zip(
        forest.predict(sortable(ASKED)), again.predict(sortable(ASKED)), strict=True
    ):
        assert (mine == theirs).all()
    assert not any(array.dtype.hasobject for array in forest.arrays.values())


def test_the_seed_decides():
    def told(seed):
        forest = grow_regression(MATRIX, TARGET, WEIGHT, trees=4, seed=seed)
        return forest.predict(sortable(ASKED))[0].tolist()

    assert told(1) == told(1) != told(2)


def test_rows_that_weigh_more_count_more():
    matrix = np.zeros((2, 1), np.float32)
    forest = grow_regression(matrix, np.array([0.0, 1.0]), np.array([1.0, 3.0]), trees=2, seed=0)
    assert forest.predict(sortable(matrix))[0] == pytest.approx([0.75, 0.75])

"""Trees as plain arrays: grown by scikit-learn, stored without pickle, evaluated by compiled
code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from duetune.core.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

BLOCK = 64
FEATURE, THRESHOLD, CHILD = 0, 1, 2
TRIED = 0.33
"""Share of the features that are tried for a split of a regression tree."""

SMALLEST = 2
"""Fewest runs in a leaf of a regression tree. Both errors and trees are smaller than with 1."""

_HIGHEST = np.iinfo(np.int32).max


class Forest:
    """Trees stored one after the other.

    - ``nodes``: feature, threshold and first child of each node. The two children are neighbours; a
      row goes to the second if its feature is above the threshold. A leaf is its own child.
    - ``value``: the value of each leaf.
    - ``roots``, ``depths``: the first node and the depth of each tree.
    """

    PARTS = ("nodes", "value", "roots", "depths")

    def __init__(
        self,
        *,
        nodes: NDArray[np.int32],
        value: NDArray[np.float64],
        roots: NDArray[np.int32],
        depths: NDArray[np.int32],
    ) -> None:
        self.nodes, self.value, self.roots, self.depths = nodes, value, roots, depths

    def predict(self, keys: NDArray[np.int32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation over the trees, for each row of ``sortable``
        features.
        """
        if len(self.nodes) == 1:
            return np.full(len(keys), self.value[0]), np.zeros(len(keys))
        return _walk(keys, self.nodes, self.value, self.roots, self.depths)

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays by name, to be saved."""
        return {part: getattr(self, part) for part in self.PARTS}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[np.generic]], *, columns: int) -> Forest:
        """Return the forest of saved arrays; ``columns`` is the number of features.

        Raises ``ValueError`` for arrays with which compiled code would read out of bounds.
        """
        nodes, roots = arrays["nodes"].astype(np.int32), arrays["roots"].astype(np.int32)
        value, depths = arrays["value"].astype(np.float64), arrays["depths"].astype(np.int32)
        count = len(nodes)
        if nodes.shape != (count, 3) or value.shape != (count,) or roots.shape != depths.shape:
            raise ValueError("tree arrays of the wrong shape")
        leaf = nodes[:, CHILD] == np.arange(count)
        last = nodes[:, CHILD] + np.where(leaf, 0, 1)
        if not len(roots) or min(nodes[:, FEATURE].min(), nodes[:, CHILD].min(), roots.min()) < 0:
            raise ValueError("tree nodes that point outside the arrays")
        if max(last.max(), roots.max()) >= count or nodes[:, FEATURE].max() >= columns:
            raise ValueError("tree nodes that point outside the arrays")
        return cls(nodes=nodes, value=value, roots=roots, depths=depths)


def grow_regression(
    matrix: NDArray[np.float32],
    target: NDArray[np.float64],
    weight: NDArray[np.float64],
    *,
    trees: int,
    seed: int,
) -> Forest:
    """Return extremely randomised trees."""
    from sklearn.ensemble import ExtraTreesRegressor  # noqa: PLC0415 - takes seconds

    grown = ExtraTreesRegressor(
        trees, random_state=seed, max_features=TRIED, min_samples_leaf=SMALLEST
    )
    grown.fit(matrix, target, sample_weight=weight)
    return _flat([tree.tree_ for tree in grown.estimators_], lambda tree: tree.value[:, 0, 0])


def grow_classification(
    matrix: NDArray[np.float32],
    valid: NDArray[np.bool_],
    weight: NDArray[np.float64],
    *,
    rising: Sequence[int],
    trees: int,
    seed: int,
) -> Forest:
    """Return trees that predict the probability of ``valid``.

    The probability never falls when one of the columns ``rising`` increases.
    """
    from sklearn.ensemble import ExtraTreesClassifier  # noqa: PLC0415 - takes seconds

    # A list, because scikit-learn flips the signs of an array in place for every tree.
    monotone = [int(column in rising) for column in range(matrix.shape[1])]
    grown = ExtraTreesClassifier(
        trees, random_state=seed, monotonic_cst=monotone, max_features=0.5, min_samples_leaf=1
    )
    grown.fit(matrix, valid, sample_weight=weight)
    if len(grown.classes_) == 1:
        return constant_forest(float(grown.classes_[0]))

    def share(tree: _Tree) -> NDArray[np.float64]:
        counts = tree.value[:, 0, :]
        shares: NDArray[np.float64] = counts[:, 1] / counts.sum(axis=1)
        return shares

    return _flat([tree.tree_ for tree in grown.estimators_], share)


def constant_forest(value: float) -> Forest:
    """Return one tree with one leaf, for cases with nothing to learn from."""
    return Forest(
        nodes=np.array([[0, _HIGHEST, 0]], np.int32),
        value=np.array([value]),
        roots=np.zeros(1, np.int32),
        depths=np.zeros(1, np.int32),
    )


class _Tree(Protocol):
    """The part of scikit-learn's tree that is read."""

    node_count: int
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    children_left: NDArray[np.int64]
    children_right: NDArray[np.int64]
    value: NDArray[np.float64]


def _flat(trees: Sequence[_Tree], value: Callable[[_Tree], NDArray[np.float64]]) -> Forest:
    """Return scikit-learn's trees as one forest."""
    starts = np.cumsum([0, *(tree.node_count for tree in trees)]).astype(np.int32)
    nodes = np.empty((int(starts[-1]), 3), np.int32)
    values = np.empty(int(starts[-1]))
    depths = np.empty(len(trees), np.int32)
    for index, (tree, start) in enumerate(zip(trees, starts[:-1].tolist(), strict=True)):
        depths[index] = _levelled(
            tree.feature,
            sortable(_not_above(tree.threshold)),
            tree.children_left,
            tree.children_right,
            np.ascontiguousarray(value(tree)),
            start,
            nodes,
            values,
        )
    return Forest(nodes=nodes, value=values, roots=starts[:-1], depths=depths)


def _not_above(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the largest 32-bit number not above each threshold, which splits 32-bit features
    alike.
    """
    nearest = threshold.astype(np.float32)
    above = nearest > threshold
    nearest[above] = np.nextafter(nearest[above], np.float32(-np.inf))
    return nearest


def sortable(numbers: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return whole numbers in the same order as ``numbers``: a node is then three numbers of one
    type.
    """
    # Adding 0.0 turns -0.0 into 0.0: both are equal, but their bits are not.
    bits = np.ascontiguousarray(numbers + np.float32(0.0)).view(np.int32)
    return np.where(bits >= 0, bits, bits ^ np.int32(_HIGHEST)).astype(np.int32, copy=False)


@compiled
def _levelled(
    feature: NDArray[np.int64],
    threshold: NDArray[np.int32],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    value: NDArray[np.float64],
    start: int,
    nodes: NDArray[np.int32],
    values: NDArray[np.float64],
) -> int:
    """Write one tree into ``nodes`` from ``start``, level by level, and return its depth."""
    count = len(feature)
    queue = np.empty(count, np.int64)
    level = np.empty(count, np.int64)
    queue[0], level[0] = 0, 0
    filled = 1
    for place in range(count):
        node = queue[place]
        at = start + place
        values[at] = value[node]
        if left[node] < 0:
            nodes[at, FEATURE], nodes[at, THRESHOLD], nodes[at, CHILD] = 0, _HIGHEST, at
            continue
        nodes[at, FEATURE], nodes[at, THRESHOLD] = feature[node], threshold[node]
        nodes[at, CHILD] = start + filled
        queue[filled], queue[filled + 1] = left[node], right[node]
        level[filled] = level[filled + 1] = level[place] + 1
        filled += 2
    return int(level[count - 1])


@compiled
def _walk(
    keys: NDArray[np.int32],
    nodes: NDArray[np.int32],
    value: NDArray[np.float64],
    roots: NDArray[np.int32],
    depths: NDArray[np.int32],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of the leaves that each row reaches."""
    rows, trees = len(keys), len(roots)
    total = np.zeros(rows)
    squares = np.zeros(rows)
    at = np.empty(BLOCK, np.int32)
    # A block of rows descends one tree level by level without a branch, so that the memory
    # accesses of its rows overlap.
    for begin in range(0, rows, BLOCK):
        size = min(BLOCK, rows - begin)
        for tree in range(trees):
            for row in range(size):
                at[row] = roots[tree]
            for _ in range(depths[tree]):
                moved = 0
                for row in range(size):
                    node = at[row]
                    above = keys[begin + row, nodes[node, FEATURE]] > nodes[node, THRESHOLD]
                    following = nodes[node, CHILD] + np.int32(above)
                    moved |= following ^ node
                    at[row] = following
                if moved == 0:
                    break
            for row in range(size):
                leaf = value[at[row]]
                total[begin + row] += leaf
                squares[begin + row] += leaf * leaf
    for row in range(rows):
        total[row] /= trees
        squares[row] = np.sqrt(max(squares[row] / trees - total[row] ** 2, 0.0))
    return total, squares

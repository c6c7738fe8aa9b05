"""How many measured runs lie near a configuration: within one doubling of every size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.model.least_squares import grouped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations

_FIELDS = "model, method, gpu_model"
_SIZES = ("num_gpus", "batch_size", "tokens_per_sample")
_BINS = 20
"""Doublings; what is larger counts as the largest."""


class Support:
    """``counts[cell, sizes...]`` are runs within one step; ``cells`` the labels of those that have
    any.
    """

    def __init__(self, cells: list[str], counts: NDArray[np.int32]) -> None:
        self.cells, self.counts = cells, counts
        self._place = {cell: index for index, cell in enumerate(cells)}

    @classmethod
    def of_arrays(cls, cells: list[str], counts: NDArray[np.generic]) -> Support:
        if counts.shape != (len(cells), _BINS, _BINS, _BINS):
            raise ValueError("counts of another shape")
        return cls(cells, counts.astype(np.int32))

    @classmethod
    def of(cls, rows: Configurations) -> Support:
        (group,) = grouped(rows, {_FIELDS: 0.0})
        found = np.zeros((len(group.keys), _BINS, _BINS, _BINS), np.int32)
        np.add.at(found, (group.codes, *_bins(rows)), 1)
        for axis in (1, 2, 3):
            near = found.copy()
            before = [slice(None)] * 4
            after = [slice(None)] * 4
            before[axis], after[axis] = slice(None, -1), slice(1, None)
            near[tuple(before)] += found[tuple(after)]
            near[tuple(after)] += found[tuple(before)]
            found = near
        return cls(group.keys, found)

    def count(self, rows: Configurations) -> NDArray[np.int64]:
        (group,) = grouped(rows, {_FIELDS: 0.0})
        cells = np.array([self._place.get(key, -1) for key in group.keys], np.int64)[group.codes]
        known = cells >= 0
        result = np.zeros(len(rows), np.int64)
        if known.any():
            sizes = tuple(bins[known] for bins in _bins(rows))
            result[known] = self.counts[(cells[known], *sizes)]
        return result


def _bins(rows: Configurations) -> tuple[NDArray[np.int64], ...]:
    return tuple(
        np.clip(np.round(np.log2(np.maximum(rows.number(field), 1.0))), 0, _BINS - 1).astype(
            np.int64
        )
        for field in _SIZES
    )

"""How many measured runs lie near a configuration: within one doubling of every size."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.configuration import Configurations

_FIELDS = ("model", "method", "gpu_model")
_SIZES = ("num_gpus", "batch_size", "tokens_per_sample")
_BINS = 20
"""Doublings; what is larger counts as the largest."""


class Support:
    """``counts[cell, sizes...]`` are runs within one step; ``words`` the labels of the cells."""

    def __init__(self, words: dict[str, list[str]], counts: NDArray[np.int32]) -> None:
        self.words, self.counts = words, counts

    @classmethod
    def of(cls, rows: Configurations) -> Support:
        words = {
            field: [rows.labels[field][code] for code in np.unique(rows.columns[field]).tolist()]
            for field in _FIELDS
        }
        cells = int(np.prod([len(labels) for labels in words.values()], dtype=np.int64))
        found = np.zeros((max(cells, 1), _BINS, _BINS, _BINS), np.int32)
        support = cls(words, found)
        if len(rows):
            cell, _ = support._cells(rows)
            np.add.at(found, (cell, *_bins(rows)), 1)
        for axis in (1, 2, 3):
            near = found.copy()
            before = [slice(None)] * 4
            after = [slice(None)] * 4
            before[axis], after[axis] = slice(None, -1), slice(1, None)
            near[tuple(before)] += found[tuple(after)]
            near[tuple(after)] += found[tuple(before)]
            found = near
        support.counts = found
        return support

    def count(self, rows: Configurations) -> NDArray[np.int64]:
        cell, known = self._cells(rows)
        return np.where(known, self.counts[(cell, *_bins(rows))], 0).astype(np.int64)

    def _cells(self, rows: Configurations) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        cell = np.zeros(len(rows), np.int64)
        known = np.ones(len(rows), np.bool_)
        for field in _FIELDS:
            words = self.words[field]
            code = rows.gather(field, functools.partial(_place, words))
            known &= code >= 0
            cell = cell * max(len(words), 1) + np.maximum(code, 0).astype(np.int64)
        return cell, known


def _place(words: list[str], word: str) -> int:
    return words.index(word) if word in words else -1


def _bins(rows: Configurations) -> tuple[NDArray[np.int64], ...]:
    return tuple(
        np.clip(np.round(np.log2(np.maximum(rows.number(field), 1.0))), 0, _BINS - 1).astype(
            np.int64
        )
        for field in _SIZES
    )

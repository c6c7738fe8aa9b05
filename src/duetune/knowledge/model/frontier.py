"""What measured runs say without a fitted model: the memory frontier, and the number of runs
nearby.

A configuration that needs more memory than one that ran out will run out too. One that needs less
than a run that fitted will fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.model.least_squares import grouped
from duetune.knowledge.observation import RunOutcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations
    from duetune.knowledge.history import History

    Column = NDArray[np.float64]


UNKNOWN, INVALID, VALID = -1, 0, 1
_CELL = (
    "model, method, gpu_model, num_gpus, num_nodes, precision, sharding, grad_checkpoint, "
    "lora_rank, lora_targets, optimiser, attention, fast_kernels, fast_moe, software, grad_accum, "
    "packed"
)


class Frontier:
    """Answers from runs that differ only in tokens, lengths of rows and memory of the card."""

    def __init__(self, history: History) -> None:
        labelled = history.having(RunOutcome.VALID, RunOutcome.OOM)
        self._cells: dict[str, tuple[Column, NDArray[np.bool_]]] = {}
        if not len(labelled):
            return
        fitted = labelled.outcome == RunOutcome.VALID.value
        sizes = _sizes(labelled.configurations)
        (group,) = grouped(labelled.configurations, {_CELL: 0.0})
        for code, key in enumerate(group.keys):
            mine = group.codes == code
            self._cells[key] = (sizes[mine], fitted[mine])

    def answers(self, configurations: Configurations) -> NDArray[np.int8]:
        """Return ``VALID`` or ``INVALID`` for each configuration that a run decides.

        The answer is ``UNKNOWN`` if no run decides it, or if runs contradict each other.
        """
        result = np.full(len(configurations), UNKNOWN, np.int8)
        if not self._cells or not len(configurations):
            return result
        sizes = _sizes(configurations)
        (group,) = grouped(configurations, {_CELL: 0.0})
        for code, key in enumerate(group.keys):
            if key not in self._cells:
                continue
            known, fitted = self._cells[key]
            rows = np.flatnonzero(group.codes == code)
            asked = sizes[rows][:, None, :]
            below = np.all(asked <= known[None, :, :], axis=2)  # needs at most as much as that run
            above = np.all(asked >= known[None, :, :], axis=2)
            fits = np.any(below & fitted, axis=1)
            fails = np.any(above & ~fitted, axis=1)
            result[rows[fits & ~fails]] = VALID
            result[rows[fails & ~fits]] = INVALID
        return result


def _sizes(configurations: Configurations) -> Column:
    """Return columns that increase the need for memory: rows or packed tokens, lengths, and a
    smaller card.
    """
    it = Described(configurations)
    size = np.where(it.packed, it.tokens, it.batch)
    return np.stack([size, it.sequence, -it.capacity], axis=1)


_FIELDS = "model, method, gpu_model"
_BINS = 20
"""Number of doublings; larger sizes count as the largest."""


class Support:
    """Counts of measured runs within one doubling of every size.

    - ``cells``: labels of the combinations of model, method and GPU that were measured.
    - ``counts``: the number of runs for each cell and each combination of sizes.
    """

    def __init__(self, cells: list[str], counts: NDArray[np.int32]) -> None:
        self.cells, self.counts = cells, counts
        self._place = {cell: index for index, cell in enumerate(cells)}

    @classmethod
    def of_arrays(cls, cells: list[str], counts: NDArray[np.generic]) -> Support:
        """Return the counts of a saved model; raises ``ValueError`` for another shape."""
        if counts.shape != (len(cells), _BINS, _BINS, _BINS):
            raise ValueError("support counts of the wrong shape")
        return cls(cells, counts.astype(np.int32))

    @classmethod
    def of(cls, rows: Configurations) -> Support:
        """Return the counts for a table of measured configurations."""
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
        """Return the number of measured runs near each row; it becomes ``Estimate.support``."""
        (group,) = grouped(rows, {_FIELDS: 0.0})
        cells = np.array([self._place.get(key, -1) for key in group.keys], np.int64)[group.codes]
        known = cells >= 0
        result = np.zeros(len(rows), np.int64)
        if known.any():
            sizes = tuple(bins[known] for bins in _bins(rows))
            result[known] = self.counts[(cells[known], *sizes)]
        return result


def _bins(rows: Configurations) -> tuple[NDArray[np.int64], ...]:
    """Return the doubling of each size for each row."""
    sizes = (rows.number("num_gpus"), rows.samples, rows.number("tokens_per_sample"))
    return tuple(
        np.clip(np.round(np.log2(np.maximum(size, 1.0))), 0, _BINS - 1).astype(np.int64)
        for size in sizes
    )

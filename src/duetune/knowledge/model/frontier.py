"""What follows from runs alone: more of the same than one that ran out of memory does too, and less
than one that fitted fits.
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
    "lora_rank, lora_targets, optimiser, attention, fast_kernels, fast_moe, software, grad_accum"
)


class Frontier:
    """Cells are configurations that differ in batch, sequence length and memory only."""

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
        """``UNKNOWN`` where nothing follows, or where runs contradict each other."""
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
            below = np.all(asked <= known[None, :, :], axis=2)  # needs no more than that run did
            above = np.all(asked >= known[None, :, :], axis=2)
            fits = np.any(below & fitted, axis=1)
            fails = np.any(above & ~fitted, axis=1)
            result[rows[fits & ~fails]] = VALID
            result[rows[fails & ~fits]] = INVALID
        return result


def _sizes(configurations: Configurations) -> Column:
    """What more of needs more memory: batch, sequence, and a smaller card."""
    it = Described(configurations)
    return np.stack([it.batch, it.sequence, -it.capacity], axis=1)

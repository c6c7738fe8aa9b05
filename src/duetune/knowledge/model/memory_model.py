"""Peak memory by physics, with constants fitted to history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.arithmetic import MemoryConstants, memory_terms, peak_bytes
from duetune.knowledge.model.least_squares import Usual, Vector, grouped, product

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration_table import Described

    Column = NDArray[np.float64]

ROBUST = 0.05
_USUAL = MemoryConstants()
CONSTANTS = {
    "logits": Usual(_USUAL.logits, 0.2),
    "fused_logits": Usual(_USUAL.fused_logits, 0.5),
    "bigcode_logits": Usual(_USUAL.bigcode_logits, 0.3),
    "chunked_logits": Usual(_USUAL.chunked_logits, 0.5),
    "input": Usual(_USUAL.input, 0.15),
    "block": Usual(_USUAL.block, 0.3),
    "frozen": Usual(_USUAL.frozen, 0.3),
    "scores": Usual(_USUAL.scores, 0.4),
    "slack": Usual(_USUAL.slack, 1.0),
    "upcast": Usual(_USUAL.upcast, 1.0),
    "scratch": Usual(_USUAL.scratch, 0.7),
    "one_by_one": Usual(_USUAL.one_by_one, 0.4),
    "adapter": Usual(_USUAL.adapter, 0.2),
    "cast": Usual(_USUAL.cast, 0.7),
    "quantised": Usual(_USUAL.quantised, 0.03),
    "shard": Usual(_USUAL.shard, 0.3),
    "context": Usual(_USUAL.context, 0.5),
}
FACTORS = {
    "context": {"software": 0.5},
    "activations": {
        "software": 0.15,
        "attention": 0.1,
        "method": 0.1,
        "method, precision, grad_checkpoint": 0.15,
        "method, lora_targets, grad_checkpoint": 0.15,
    },
    "scratch": {"software": 1.0},
}
"""The labels on which each factor depends, with the usual spread of their logarithms."""

CENSORED = 0.5
"""Weight of a run that is only known to have fitted or not, relative to one with a measured
peak.
"""


BELIEVABLE = 0.5
"""Largest contradiction (of a logarithm) that counts: beyond it the run failed or fitted for
another reason.
"""


class MemoryModel(msgspec.Struct, frozen=True, kw_only=True):
    """Fitted constants, and factors by label (``field=label``); a missing label counts as 1."""

    constants: MemoryConstants = MemoryConstants()
    context: dict[str, float] = {}
    activations: dict[str, float] = {}
    scratch: dict[str, float] = {}

    def terms(self, it: Described) -> dict[str, Column]:
        """Return the bytes of one GPU by purpose."""
        factors = {
            name: product(it.configurations, fields, getattr(self, name))
            for name, fields in FACTORS.items()
        }
        return memory_terms(it, self.constants, **factors)

    def peak(self, it: Described) -> Column:
        """Return the peak of one GPU in bytes."""
        return peak_bytes(it, self.terms(it))


def fit_memory(
    it: Described,
    peak: Column,
    fitted: NDArray[np.bool_],
    weight: Column,
    start: MemoryModel | None = None,
) -> MemoryModel:
    """Return the model that explains the measured peaks best.

    - ``peak``: measured bytes, NaN if only ``fitted`` is known of a run.
    - ``weight``: weight of each run.
    - ``start``: a model of nearly the same rows, from which the search starts.
    """
    if not len(it):
        return MemoryModel()
    groups = {name: grouped(it.configurations, fields) for name, fields in FACTORS.items()}
    vector = Vector(CONSTANTS, groups)
    known = np.isfinite(peak)
    target = np.log(np.where(known, peak, it.capacity))
    root = np.sqrt(weight) * np.where(known, 1.0, CENSORED)

    def error(constants: dict[str, float], factors: dict[str, Column]) -> Column:
        terms = memory_terms(it, MemoryConstants(**constants), **factors)
        over = np.log(peak_bytes(it, terms)) - target
        # A run without a peak is an error only if the prediction contradicts its outcome.
        side = np.where(fitted, np.maximum(over, 0.0), np.minimum(over, 0.0))
        # A run that physics cannot explain must not distort the other constants.
        side = np.clip(side, -BELIEVABLE, BELIEVABLE)
        return root * np.where(known, over, side)

    begin = None
    if start is not None:
        named = {name: getattr(start, name) for name in FACTORS}
        begin = vector.values(msgspec.structs.asdict(start.constants), named)
    values = vector.fit(error, ROBUST, begin)
    constants = MemoryConstants(**vector.constants(values))
    return MemoryModel(constants=constants, **vector.named(values))

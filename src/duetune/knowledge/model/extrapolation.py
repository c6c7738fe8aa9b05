"""Widens intervals for what was never measured: another GPU, method or sharding."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from duetune.knowledge.estimate import EXTRAPOLATED
from duetune.knowledge.model.least_squares import APART, grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations

    Column = NDArray[np.float64]

Model = TypeVar("Model", bound=msgspec.Struct)

PACE = {
    "model": 0.25,
    "gpu_model": 0.5,
    "method": 0.3,
    "software": 0.2,
    "sharding": 0.3,
    "num_gpus": 0.15,
    "optimiser": 0.1,
    "attention": 0.2,
    "packed": 0.3,
    "fast_kernels": 0.25,
}
"""How far off (a logarithm, in 9 of 10 cases) a throughput may be for a label that was never seen.
Used until history has two labels to compare.
"""

MEMORY = {
    "model": 0.06,
    "gpu_model": 0.08,
    "method": 0.2,
    "software": 0.25,
    "sharding": 0.35,
    "num_gpus": 0.15,
    "optimiser": 0.12,
    "attention": 0.15,
    "packed": 0.2,
    "fast_kernels": 0.2,
}
"""The same for peak memory."""

_LEAST = 0.05
_FEW = 4
"""With fewer labels, the next one may differ by more than these differ among each other."""

_UNLEARNT = 0.5
"""Least share of the usual width for a field that no fitted factor depends on: physics was fitted
to its labels, so its errors on them look smaller than they would be elsewhere.
"""


def foreign(unseen: NDArray[np.bool_] | Column, transfer: Mapping[str, float]) -> Column:
    """Return the extra half-width (a logarithm) for the labels of each row that were never seen."""
    squares = np.array([transfer[field] for field in EXTRAPOLATED]) ** 2
    width: Column = np.sqrt(unseen @ squares)
    return width


def transfers(
    rows: Configurations,
    model: Model,
    factors: Mapping[str, Mapping[str, float]],
    error: Callable[[Model], Column],
    usual: Mapping[str, float],
) -> dict[str, float]:
    """Return how far off a fitted model is for each label if everything learned about that label is
    removed.

    ``factors`` are its fields with factors by label. ``error`` returns the error of the logarithm
    for each row, NaN where it is not known.
    """
    found = dict(usual)
    for field in EXTRAPOLATED:
        (group,) = grouped(rows, {field: 0.0})
        if len(group.keys) < 2:
            continue
        learnt = any(field in names.split(", ") for each in factors.values() for names in each)
        errors = []
        for code, key in enumerate(group.keys):
            label = key.removeprefix(f"{field}=")
            apart = error(_forgetting(model, factors, field, label) if learnt else model)
            apart = apart[(group.codes == code) & np.isfinite(apart)]
            if len(apart):
                errors.append(float(np.quantile(np.abs(apart), 0.9)))
        if errors:
            least = _LEAST if learnt else max(_LEAST, _UNLEARNT * usual[field])
            if len(group.keys) < _FEW:
                least = usual[field]
            found[field] = max(least, float(np.median(errors)))
    return found


def _forgetting(
    model: Model, factors: Mapping[str, Mapping[str, float]], field: str, label: str
) -> Model:
    """Return the model without the factors of one label."""

    def kept(key: str) -> bool:
        names, _, words = key.partition("=")
        return dict(zip(names.split(", "), words.split(APART), strict=True)).get(field) != label

    remaining = {
        name: {key: value for key, value in getattr(model, name).items() if kept(key)}
        for name in factors
    }
    return msgspec.structs.replace(model, **remaining)

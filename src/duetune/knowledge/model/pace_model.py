"""Throughput by physics, with constants fitted to history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.arithmetic import TimeConstants, step_seconds, time_terms
from duetune.knowledge.model.least_squares import Usual, Vector, grouped, product

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration_table import Described

    Column = NDArray[np.float64]

ROBUST = 0.1
_USUAL = TimeConstants()
CONSTANTS = {
    "launch_s": Usual(_USUAL.launch_s, 1.0),
    "exchange_s": Usual(_USUAL.exchange_s, 0.7),
    "optimiser": Usual(_USUAL.optimiser, 0.5),
    "weights": Usual(_USUAL.weights, 0.7),
    "eager": Usual(_USUAL.eager, 0.7),
    "network_gb_s": Usual(_USUAL.network_gb_s, 0.8),
    "overlap": Usual(_USUAL.overlap / (1.0 - _USUAL.overlap), 1.0),
}
"""Usual values. ``overlap`` is stored as odds here: the share is odds / (1 + odds)."""

UTILISATION = 0.5
LINK = 0.6
METHODS = {"lora": 0.87, "qlora": 0.75, "gptq-lora": 0.9, "pt": 0.9}
"""How well a method uses the GPU's arithmetic, relative to training all weights."""

FACTORS = {
    "factors": {
        "gpu_model": 0.35,
        "method": 0.15,
        "method, precision": 0.5,
        "software": 0.15,
        "software, method": 0.1,
        "fast_kernels": 0.15,
    },
    "launch": {
        "method": 0.7,
        "software": 0.8,
        "gpu_model": 0.3,
        "attention": 0.3,
        "method, lora_targets": 0.4,
        "method, optimiser": 0.4,
        "method, precision": 0.2,
    },
    "link": {"gpu_model": 0.6},
}
"""The labels on which each factor depends, with the usual spread of their logarithms."""

_PEAK = 0.95


class PaceModel(msgspec.Struct, frozen=True, kw_only=True):
    """Fitted constants, and factors by label; a missing label counts as 1.

    Keys are ``field=label``, or for several fields ``field, field=`` and the labels with
    ``least_squares.APART`` between them.
    """

    constants: TimeConstants = TimeConstants()
    factors: dict[str, float] = {}
    launch: dict[str, float] = {}
    link: dict[str, float] = {}

    def terms(self, it: Described) -> dict[str, Column]:
        """Return the seconds of a micro-step by purpose."""
        factors = {
            name: product(it.configurations, fields, getattr(self, name))
            for name, fields in FACTORS.items()
        }
        return _terms(it, self.constants, factors)

    def step_s(self, it: Described) -> Column:
        """Return the seconds of a micro-step."""
        return step_seconds(self.terms(it), self.constants.overlap)

    def tokens_per_s(self, it: Described) -> Column:
        """Return the throughput of all GPUs together."""
        return it.tokens * it.gpus / self.step_s(it)


def fit_pace(
    it: Described, tokens_per_s: Column, weight: Column, start: PaceModel | None = None
) -> PaceModel:
    """Return the model that explains the measured throughputs best.

    ``start`` is a model of nearly the same rows, from which the search starts.
    """
    if not len(it):
        return PaceModel()
    groups = {name: grouped(it.configurations, fields) for name, fields in FACTORS.items()}
    vector = Vector(CONSTANTS, groups)
    target, root = np.log(tokens_per_s), np.sqrt(weight)

    def error(found: dict[str, float], factors: dict[str, Column]) -> Column:
        constants = _constants(found)
        terms = _terms(it, constants, factors)
        pace = it.tokens * it.gpus / step_seconds(terms, constants.overlap)
        misfit: Column = root * (np.log(pace) - target)
        return misfit

    begin = None
    if start is not None:
        named = {name: getattr(start, name) for name in FACTORS}
        begin = vector.values(_numbers(start), named)
    values = vector.fit(error, ROBUST, begin)
    return PaceModel(constants=_constants(vector.constants(values)), **vector.named(values))


def _constants(found: dict[str, float]) -> TimeConstants:
    """Return the constants of a fit, with the overlap as a share."""
    odds = found["overlap"]
    return TimeConstants(**{**found, "overlap": odds / (1.0 + odds)})


def _numbers(model: PaceModel) -> dict[str, float]:
    """Return the constants of a model, with the overlap as odds."""
    found: dict[str, float] = msgspec.structs.asdict(model.constants)
    share = found["overlap"]
    return {**found, "overlap": share / (1.0 - share)}


def _terms(
    it: Described, constants: TimeConstants, factors: Mapping[str, Column]
) -> dict[str, Column]:
    """Return the seconds by purpose, for these factors of each row."""
    method = it.configurations.gather("method", lambda word: METHODS.get(word, 1.0))
    return time_terms(
        it,
        constants,
        utilisation=np.minimum(UTILISATION * method * factors["factors"], _PEAK),
        launch=factors["launch"],
        link=LINK * factors["link"],
    )

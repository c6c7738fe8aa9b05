"""Estimates from the nearest measured runs.

Distances are counted in doublings: a run with twice the tokens is as far away as one with half of
them. Words that differ add a fixed number of doublings; models and GPUs also differ by size.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.knowledge.configurations.configuration import FIELDS, Configurations
from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.configurations.expressions import DERIVED
from duetune.knowledge.estimate import MEMORY, NONE, Estimates, around
from duetune.knowledge.sources.knowledge_source import Neighbour
from duetune.knowledge.sources.past_runs import Encoder, Remembering

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.history import History
    from duetune.knowledge.sources.past_runs import Measured

    Column = NDArray[np.float64]
    Index = NDArray[np.int64]

APART: Mapping[str, float] = {
    "model": 0.5,
    "method": 2.0,
    "gpu_model": 0.5,
    "precision": 1.0,
    "sharding": 1.0,
    "grad_checkpoint": 1.0,
    "lora_targets": 0.25,
    "optimiser": 0.5,
    "attention": 0.5,
    "fast_kernels": 0.5,
    "fast_moe": 1.0,
    "interconnect": 0.25,
    "software": 0.25,
}
"""Doublings that a difference in each of these fields adds."""

CUT_OFF = 2.0
COUNT = 5
_PACKED = 2 * CUT_OFF  # packed and padded rows are never neighbours
_BLOCK = 2**21
_CLOSEST = 0.05  # a neighbour at distance 0 outweighs the others but does not silence them
_UNKNOWN_GB = 80.0
GROWTH = 0.15  # standard deviation of the log throughput per doubling of distance


class Near(NamedTuple):
    """One row per configuration, one column per neighbour; ``row`` is -1 if fewer are within the
    cut-off.
    """

    row: Index
    distance: Column


class Metric:
    """Finds the nearest of ``rows``.

    Words are compared once per combination that occurs; numbers only where the words are near
    enough.
    """

    def __init__(self, rows: Configurations) -> None:
        self._rows = rows
        self._numbers = _numbers(rows)
        self._cell, self._cells = _cells_of(rows)
        self._sizes = _sizes(self._cells)

    def nearest(self, configurations: Configurations, count: int, cut_off: float) -> Near:
        """Return the ``count`` nearest rows within ``cut_off`` doublings of each configuration."""
        size = len(configurations)
        row = np.full((size, count), -1, np.int64)
        distance = np.full((size, count), np.inf)
        if not len(self._rows) or not size:
            return Near(row, distance)
        cell, cells = _cells_of(configurations)
        numbers = _numbers(configurations)
        apart = _words_apart(cells, self._cells)
        away = _sizes(cells)[:, None, :] - self._sizes
        apart += (away * away).sum(axis=2)
        order = np.argsort(cell, kind="stable")
        bounds = np.searchsorted(cell[order], np.arange(len(cells) + 1))
        for each in np.flatnonzero((apart < cut_off**2).any(axis=1)).tolist():
            mine = order[bounds[each] : bounds[each + 1]]
            among = np.flatnonzero(apart[each, self._cell] < cut_off**2)
            words = apart[each, self._cell[among]]
            step = max(1, _BLOCK // len(among))
            for start in range(0, len(mine), step):
                part = mine[start : start + step]
                squares = words + np.zeros((len(part), 1))
                for column in range(numbers.shape[1]):
                    away = numbers[part, column][:, None] - self._numbers[among, column]
                    squares += away * away
                chosen = _closest(squares, min(count, len(among)))
                away = np.sqrt(np.take_along_axis(squares, chosen, axis=1))
                row[part, : chosen.shape[1]] = among[chosen]
                distance[part, : chosen.shape[1]] = away
        far = ~(distance < cut_off)
        row[far], distance[far] = -1, np.inf
        return Near(row, distance)


def _closest(squares: Column, count: int) -> Index:
    """Columns of the ``count`` least of each row, the least first; of equals the first."""
    if count == 1:
        least: Index = np.argmin(squares, axis=1)
        return least[:, None]
    chosen = np.sort(np.argpartition(squares, count - 1, axis=1)[:, :count], axis=1)
    order = np.argsort(np.take_along_axis(squares, chosen, axis=1), axis=1, kind="stable")
    return np.take_along_axis(chosen, order, axis=1)


def _numbers(rows: Configurations) -> Column:
    """In doublings."""
    lora = np.where(rows.is_("method", "full"), 1.0, np.maximum(rows.number("lora_rank"), 1.0))
    # For packed rows the tokens of a microbatch count, and their lengths only for attention.
    packed = rows.packed
    columns = [
        np.log2(rows.number("num_gpus")),
        np.log2(rows.number("num_nodes")),
        np.log2(np.where(packed, rows.per_gpu_tokens, rows.per_gpu_batch)),
        np.where(packed, 0.5, 1.0) * np.log2(rows.span),
        _PACKED * packed,
        0.25 * np.log2(rows.number("grad_accum")),
        0.25 * np.log2(lora),
        np.log2(np.nan_to_num(DERIVED["gpu_memory_gb"](rows), nan=_UNKNOWN_GB)),
    ]
    return np.stack(columns, axis=1)


def _cells_of(rows: Configurations) -> tuple[Index, Configurations]:
    """Return which combination of words each row has, and one row of each combination."""
    encoder = Encoder(rows, tuple(APART))
    which = encoder.find(rows)
    first = np.zeros(len(encoder), np.int64)
    first[which[::-1]] = np.arange(len(rows))[::-1]
    return which, rows.take(first)


def _words_apart(cells: Configurations, known: Configurations) -> Column:
    """Return the squared distance between combinations of words."""
    squares = np.zeros((len(cells), len(known)))
    for field, weight in APART.items():
        mine, theirs = cells.columns[field], known.columns[field]
        if field in cells.labels:
            code = {word: index for index, word in enumerate(known.labels[field])}
            codes = np.array([code.get(word, -1) for word in cells.labels[field]], np.int64)
            mine = codes[cells.columns[field]]
        squares += weight**2 * (mine[:, None] != theirs)
    return squares


def _sizes(cells: Configurations) -> Column:
    """Return the sizes of models and GPUs in doublings."""
    it = Described(cells)
    return np.stack(
        [2.0 * np.log2(it.parameters), np.log2(it.peak), 0.5 * np.log2(it.bandwidth)], axis=1
    )


def from_neighbours(measured: Measured, near: Near, gpus: Column, source: str) -> Estimates:
    """Return estimates from neighbours, weighted by nearness; throughputs are compared per GPU."""
    there = near.row >= 0
    rows = np.where(there, near.row, 0)
    weight = np.where(there, 1.0 / (near.distance**2 + _CLOSEST**2), 0.0)
    total = weight.sum(axis=1)
    result = Estimates.unknown(len(rows), source)
    known = total > 0
    if not known.any():
        return result
    fitted = measured.valid[rows] / measured.count[rows]
    doubt = 1.0 / CUT_OFF**2  # the prior counts as much as one far neighbour
    result.p_valid = ((weight * fitted).sum(axis=1) + 0.5 * doubt) / (total + doubt)
    result.cause = np.where(result.p_valid < 0.5, MEMORY, NONE)
    each = measured.tokens_per_s[rows] / measured.rows.number("num_gpus")[rows]
    middle, deviation = _mean(np.log(each), weight)
    nearest = np.where(known, near.distance[:, 0], 0.0)
    deviation = np.sqrt(deviation**2 + measured.noise**2 + (GROWTH * nearest) ** 2)
    result.tokens_per_s = around(np.exp(middle) * gpus, deviation)
    middle, deviation = _mean(np.log(measured.memory_gb[rows]), weight)
    result.memory_gb = around(np.exp(middle), np.sqrt(deviation**2 + (GROWTH * nearest) ** 2))
    result.support = there.sum(axis=1)
    result.measured = known & (near.distance[:, 0] == 0)
    return result


def _mean(values: Column, weight: Column) -> tuple[Column, Column]:
    """Return weighted mean and standard deviation of each row; NaN if all values are."""
    weight = np.where(np.isnan(values), 0.0, weight)
    values = np.where(np.isnan(values), 0.0, values)
    total = weight.sum(axis=1)
    with np.errstate(invalid="ignore"):
        mean = (weight * values).sum(axis=1) / total
        spread = (weight * (values - mean[:, None]) ** 2).sum(axis=1) / total
    return mean, np.sqrt(spread)


class NearestSource(Remembering):
    """Answers from the ``count`` nearest measured configurations within ``cut_off`` doublings."""

    name = "nearest"

    def __init__(
        self, history: History | None = None, *, count: int = COUNT, cut_off: float = CUT_OFF
    ) -> None:
        super().__init__(history)
        self.count = count
        self.cut_off = cut_off

    @functools.cached_property
    def metric(self) -> Metric:
        """Return the index of all measured configurations."""
        return Metric(self.measured.rows)

    def changed(self) -> None:
        """Drop what was derived from the old history."""
        super().changed()
        self.__dict__.pop("metric", None)

    def estimate(self, configurations: Configurations) -> Estimates:
        """Return the estimates from the nearest runs."""
        near = self.metric.nearest(configurations, self.count, self.cut_off)
        gpus = configurations.number("num_gpus")
        result = from_neighbours(self.measured, near, gpus, self.name)
        result.extrapolated = self.measured.unseen(configurations)
        return result

    def neighbours(self, configuration: Configuration) -> tuple[Neighbour, ...]:
        """Return the nearest measured runs, as evidence."""
        one = Configurations.of([configuration])
        near = self.metric.nearest(one, self.count, self.cut_off)
        return tuple(
            Neighbour(
                observation=self.measured.latest[row],
                distance=away,
                differs=differing(configuration, self.measured.latest[row].configuration),
            )
            for row, away in zip(near.row[0].tolist(), near.distance[0].tolist(), strict=True)
            if row >= 0
        )


def differing(one: Configuration, other: Configuration) -> tuple[str, ...]:
    """Return the fields in which two configurations differ."""
    return tuple(field for field in FIELDS if getattr(one, field) != getattr(other, field))

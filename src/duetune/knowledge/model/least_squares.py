"""Constants fitted to history by robust least squares, each pulled to what is usual.

Constants and factors are one vector of logarithms, zero where all is usual. A constant that history
says nothing of stays usual; one that it says little of moves little.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations

    Column = NDArray[np.float64]

APART = "\x1f"
"""Between the labels of several fields: no name has it."""

ROUNDS = 40
ROUNDS_AGAIN = 6
"""From a start that is nearly right."""


class Usual(NamedTuple):
    """What a constant is before anything was measured, and how far off that may well be (one
    standard deviation of its logarithm).
    """

    value: float
    spread: float


class ConstantGroup(NamedTuple):
    """Rows by label: ``keys[codes[row]]`` is that of a row."""

    keys: list[str]
    codes: NDArray[np.int64]
    spread: float


def grouped(rows: Configurations, fields: Mapping[str, float]) -> list[ConstantGroup]:
    """For each field (or several, separated by commas) and its spread."""
    groups = []
    for field, spread in fields.items():
        codes, labels = _codes(rows, field)
        groups.append(ConstantGroup([f"{field}={label}" for label in labels], codes, spread))
    return groups


def _codes(rows: Configurations, field: str) -> tuple[NDArray[np.int64], list[str]]:
    codes: NDArray[np.int64] = np.zeros(len(rows), np.int64)
    columns = [_field_codes(rows, name) for name in field.split(", ")]
    for mine, words in columns:
        # Numbered anew after each field, so that the numbers stay small however many fields.
        codes = _numbered(codes * max(len(words), 1) + mine)
    first = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    parts = [[words[code] for code in mine[first].tolist()] for mine, words in columns]
    return codes, [APART.join(each) for each in zip(*parts, strict=True)]


def _numbered(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... in the order of the codes, without gaps."""
    size = int(codes.max(initial=-1)) + 1
    if size > 16 * len(codes) + 1024:
        return np.unique(codes, return_inverse=True)[1]
    used = np.zeros(size, np.bool_)
    used[codes] = True
    return (np.cumsum(used) - 1)[codes]


def _field_codes(rows: Configurations, name: str) -> tuple[NDArray[np.int64], list[str]]:
    if name in rows.labels:
        return rows.columns[name].astype(np.int64), list(rows.labels[name])
    values, codes = rows.distinct(name)
    return codes, [f"{value:g}" for value in values.tolist()]


def product(
    rows: Configurations, fields: Mapping[str, float], learnt: Mapping[str, float]
) -> Column:
    """Of the learnt factors of each row's labels; those never seen are 1."""
    result = np.ones(len(rows))
    for group in grouped(rows, fields):
        result *= np.array([learnt.get(key, 1.0) for key in group.keys])[group.codes]
    return result


class Vector:
    """Named constants first, then the factors of groups."""

    def __init__(
        self, constants: Mapping[str, Usual], groups: Mapping[str, Iterable[ConstantGroup]]
    ) -> None:
        self._constants = constants
        self._groups = {name: list(members) for name, members in groups.items()}
        spreads = [usual.spread for usual in constants.values()]
        for members in self._groups.values():
            for group in members:
                spreads.extend([group.spread] * len(group.keys))
        self.spreads = np.array(spreads)

    def constants(self, values: Column) -> dict[str, float]:
        return {
            name: usual.value * math.exp(value)
            for (name, usual), value in zip(
                self._constants.items(), values[: len(self._constants)], strict=True
            )
        }

    def factors(self, values: Column) -> dict[str, Column]:
        """By row, the product over the groups of each name."""
        rest = values[len(self._constants) :]
        found = {}
        for name, members in self._groups.items():
            total: Column = np.zeros(1)
            for group in members:
                mine, rest = rest[: len(group.keys)], rest[len(group.keys) :]
                total = total + mine[group.codes]
            found[name] = np.exp(total)
        return found

    def named(self, values: Column) -> dict[str, dict[str, float]]:
        """By label."""
        rest = values[len(self._constants) :]
        found: dict[str, dict[str, float]] = {}
        for name, members in self._groups.items():
            found[name] = {}
            for group in members:
                mine, rest = rest[: len(group.keys)], rest[len(group.keys) :]
                found[name] |= dict(zip(group.keys, np.exp(mine).tolist(), strict=True))
        return found

    def values(
        self, constants: Mapping[str, float], named: Mapping[str, Mapping[str, float]]
    ) -> Column:
        """The vector of what ``constants`` and ``named`` gave."""
        found = [math.log(constants[name] / usual.value) for name, usual in self._constants.items()]
        for name, members in self._groups.items():
            for group in members:
                found.extend(math.log(named[name].get(key, 1.0)) for key in group.keys)
        return np.array(found)

    def fit(
        self, error: Callable[[Column], Column], robust: float, start: Column | None = None
    ) -> Column:
        """``error`` in logarithms; beyond ``robust`` it counts by its size, not by its square."""
        from scipy.optimize import least_squares  # noqa: PLC0415 - takes most of a second

        def misfit(values: Column) -> Column:
            scaled = error(values) / robust
            soft = np.sign(scaled) * np.sqrt(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0))
            return np.concatenate([soft, values / self.spreads])

        begin = np.zeros(len(self.spreads)) if start is None else start
        rounds = ROUNDS if start is None else ROUNDS_AGAIN
        # MINPACK's: the others decompose the tall matrix of derivatives, which takes most of a fit.
        found = least_squares(
            misfit, begin, method="lm", max_nfev=rounds * (len(begin) + 1), xtol=1e-4, ftol=1e-4
        )
        return np.asarray(found.x, np.float64)

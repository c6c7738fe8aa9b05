"""Constants fitted to history by robust least squares, each pulled towards its usual value.

Constants and factors form one vector of logarithms, which is zero if everything is usual. A
constant without data stays at its usual value; one with little data moves little.
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
"""Separator between the labels of several fields: no name contains it."""

ROUNDS = 40
ROUNDS_AGAIN = 6
"""Rounds for a start that is close to the solution."""

MOVE = 1e-7
"""Change of a logarithm by which slopes are measured."""


class Usual(NamedTuple):
    """The usual value of a constant, and the standard deviation of its logarithm."""

    value: float
    spread: float


class ConstantGroup(NamedTuple):
    """Rows grouped by label: ``keys[codes[row]]`` is the label of a row."""

    keys: list[str]
    codes: NDArray[np.int64]
    spread: float


def grouped(rows: Configurations, fields: Mapping[str, float]) -> list[ConstantGroup]:
    """Return one group for each field (or several fields, separated by commas) with its spread."""
    groups = []
    for field, spread in fields.items():
        codes, labels = _codes(rows, field)
        groups.append(ConstantGroup([f"{field}={label}" for label in labels], codes, spread))
    return groups


def _codes(rows: Configurations, field: str) -> tuple[NDArray[np.int64], list[str]]:
    """Return the code of each row, and the label of each code."""
    codes: NDArray[np.int64] = np.zeros(len(rows), np.int64)
    columns = [rows.coded(name) for name in field.split(", ")]
    for mine, words in columns:
        # Renumbered after each field, so that the codes stay small for any number of fields.
        codes = _numbered(codes * max(len(words), 1) + mine)
    first = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    parts = [[words[code] for code in mine[first].tolist()] for mine, words in columns]
    return codes, [APART.join(each) for each in zip(*parts, strict=True)]


def _numbered(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the codes renumbered 0, 1, ... in their order, without gaps."""
    size = int(codes.max(initial=-1)) + 1
    if size > 16 * len(codes) + 1024:
        return np.unique(codes, return_inverse=True)[1]
    used = np.zeros(size, np.bool_)
    used[codes] = True
    return (np.cumsum(used) - 1)[codes]


def product(
    rows: Configurations, fields: Mapping[str, float], learnt: Mapping[str, float]
) -> Column:
    """Return the product of the fitted factors of each row's labels; unseen labels count as 1."""
    result = np.ones(len(rows))
    for group in grouped(rows, fields):
        result *= np.array([learnt.get(key, 1.0) for key in group.keys])[group.codes]
    return result


class Vector:
    """The vector of a fit: named constants first, then the factors of groups."""

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
        """Return the named constants of a vector."""
        return {
            name: usual.value * math.exp(value)
            for (name, usual), value in zip(
                self._constants.items(), values[: len(self._constants)], strict=True
            )
        }

    def factors(self, values: Column) -> dict[str, Column]:
        """Return the factors of each row, by name: the product over the groups of that name."""
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
        """Return the factors of each label, by name, as a model stores them."""
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
        """Return the vector of these constants and factors, to start a fit from a fitted model."""
        found = [math.log(constants[name] / usual.value) for name, usual in self._constants.items()]
        for name, members in self._groups.items():
            for group in members:
                found.extend(math.log(named[name].get(key, 1.0)) for key in group.keys)
        return np.array(found)

    def fit(
        self,
        error: Callable[[dict[str, float], dict[str, Column]], Column],
        robust: float,
        start: Column | None = None,
    ) -> Column:
        """Return the vector with the least error.

        ``error`` returns a logarithm for each row, given the constants and each row's factor by
        name. Beyond ``robust`` an error counts by its size instead of its square.
        """
        from scipy.optimize import least_squares  # noqa: PLC0415 - takes most of a second

        first = len(self._constants)

        def soft(values: Column, factors: dict[str, Column]) -> Column:
            scaled = error(self.constants(values), factors) / robust
            return np.sign(scaled) * np.sqrt(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0))

        def misfit(values: Column) -> Column:
            return np.concatenate([soft(values, self.factors(values)), values / self.spreads])

        def slopes(values: Column) -> Column:
            # A row depends on its own factors only. So one more evaluation for each name gives the
            # slopes of all labels of that name.
            factors = self.factors(values)
            here = soft(values, factors)
            rows = np.arange(len(here))
            found = np.zeros((len(here), len(values)))
            for place in range(first):
                moved = values.copy()
                moved[place] += MOVE
                found[:, place] = (soft(moved, factors) - here) / MOVE
            place = first
            for name, members in self._groups.items():
                moved_factors = {**factors, name: factors[name] * math.exp(MOVE)}
                slope = (soft(values, moved_factors) - here) / MOVE
                for group in members:
                    found[rows, place + group.codes] = slope
                    place += len(group.keys)
            return np.concatenate([found, np.diag(1.0 / self.spreads)])

        # MINPACK, because the other methods spend most of the fit on decomposing the Jacobian.
        found = least_squares(
            misfit,
            np.zeros(len(self.spreads)) if start is None else start,
            jac=slopes,
            method="lm",
            max_nfev=ROUNDS if start is None else ROUNDS_AGAIN,
            xtol=1e-4,
            ftol=1e-4,
        )
        return np.asarray(found.x, np.float64)

"""Points of a space, drawn at random or spread evenly over it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import FIELDS
from duetune.knowledge.configurations.space import CHUNK, Role

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations
    from duetune.knowledge.configurations.space import Space

METHODS = ("random", "latin-hypercube")
_SMALL = 2**21
"""Spaces with at most this many combinations are enumerated, so that the allowed points are
known.
"""

_ROUNDS = 200


def sample(
    space: Space, count: int, rng: np.random.Generator, method: str = "random"
) -> Configurations:
    """Return distinct allowed points of a space; campaigns and benchmarks call this.

    ``method`` is random or latin-hypercube. A Latin hypercube uses every value of every field about
    equally often.
    """
    if method not in METHODS:
        raise InvalidInput("method", method, f"one of {', '.join(METHODS)}")
    if count < 0:
        raise InvalidInput("count", count, "a whole number, zero or more")
    if method == "random":
        return space.at(_distinct(space, count, rng, np.zeros(0, np.int64)))
    spread = _spread(space, count, rng)
    rest = _distinct(space, count - len(spread), rng, spread)
    return space.at(np.concatenate([spread, rest]))


def _distinct(
    space: Space, count: int, rng: np.random.Generator, taken: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return numbers of distinct allowed points, none of them in ``taken``."""
    if space.combinations <= _SMALL:
        there = np.setdiff1d(_all_allowed(space), taken)
        if count > len(there):
            raise _too_many(count + len(taken), len(there) + len(taken))
        return rng.choice(there, count, replace=False)
    found = taken
    for _ in range(_ROUNDS):
        short = count + len(taken) - len(found)
        if short <= 0:
            break
        drawn = rng.integers(0, space.combinations, max(CHUNK, 2 * short))
        drawn = drawn[space.allowed(space.at(drawn))]
        both = np.concatenate([found, drawn])
        _, first = np.unique(both, return_index=True)
        found = both[np.sort(first)]
    if len(found) < count + len(taken):
        raise _too_many(count + len(taken), len(found))
    return found[len(taken) : len(taken) + count]


def _too_many(count: int, there: int) -> InvalidInput:
    return InvalidInput("count", count, f"at most {there}: no more points of the space are allowed")


def _all_allowed(space: Space) -> NDArray[np.int64]:
    """Return the numbers of all allowed points of a small space."""
    parts = []
    for start in range(0, space.combinations, CHUNK):
        index = np.arange(start, min(start + CHUNK, space.combinations), dtype=np.int64)
        parts.append(index[space.allowed(space.at(index))])
    return np.concatenate(parts)


def _spread(space: Space, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the points of a Latin hypercube that are allowed and distinct.

    A row that is not allowed swaps one field with an allowed row if both are allowed afterwards, so
    every value keeps its share.
    """
    sizes = np.array([len(space.values[field]) for field in FIELDS], np.int64)
    varying = np.flatnonzero(sizes > 1)
    strata = np.arange(count, dtype=np.int64)[:, None] * sizes // max(1, count)
    digits = rng.permuted(strata, axis=0)
    numbers = _resolved(space, digits)
    good = np.zeros(count, np.bool_)
    good[np.unique(numbers, return_index=True)[1]] = True
    good &= numbers >= 0
    taken = set(numbers[good].tolist())
    for _ in range(_ROUNDS):
        partner = rng.permutation(np.flatnonzero(good))
        bad = rng.permutation(np.flatnonzero(~good))[: len(partner)]
        if not len(bad):
            break
        partner = partner[: len(bad)]
        column = varying[rng.integers(0, len(varying), len(bad))]
        ours, theirs = digits[bad], digits[partner]
        row = np.arange(len(bad))
        ours[row, column], theirs[row, column] = theirs[row, column], ours[row, column].copy()
        now, then = _resolved(space, ours), _resolved(space, theirs)
        for each in np.flatnonzero((now >= 0) & (then >= 0) & (now != then)).tolist():
            mine, other = bad[each], partner[each]
            if now[each] in taken or (then[each] in taken and then[each] != numbers[other]):
                continue
            taken.discard(int(numbers[other]))
            taken.update((int(now[each]), int(then[each])))
            digits[mine], digits[other] = ours[each], theirs[each]
            numbers[mine], numbers[other] = now[each], then[each]
            good[mine] = True
    return numbers[good]


def _resolved(space: Space, digits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of each row of digits, or -1 if no point of it is allowed.

    A fixed field with several values takes the first value that the constraints allow.
    """
    fixed = [
        column
        for column, field in enumerate(FIELDS)
        if field in space.domains and space.domains[field].role is Role.FIXED
    ]
    choices = [range(len(space.values[FIELDS[column]])) for column in fixed]
    found = np.full(len(digits), -1, np.int64)
    for choice in itertools.product(*choices):
        open_rows = np.flatnonzero(found < 0)
        tried = digits[open_rows]
        tried[:, fixed] = choice
        numbers = np.zeros(len(tried), np.int64)
        for column, field in enumerate(FIELDS):
            numbers = numbers * len(space.values[field]) + tried[:, column]
        allowed = space.allowed(space.at(numbers))
        found[open_rows[allowed]] = numbers[allowed]
    return found

"""Which rows to learn from and which to be judged on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.stats import qmc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.history import History

    Index = NDArray[np.int64]

HYPERCUBE_FIELDS = (
    *("model", "method", "gpu_model", "precision"),
    *("num_gpus", "batch_size", "tokens_per_sample"),
)


class Split(NamedTuple):
    train: Index
    test: Index
    name: str = ""


def random_splits(rows: Index, test_share: float, seeds: range) -> list[Split]:
    splits = []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(rows)
        size = round(test_share * len(rows))
        splits.append(Split(np.sort(order[size:]), np.sort(order[:size]), f"seed {seed}"))
    return splits


def folds(rows: Index, count: int, seeds: range) -> list[Split]:
    """Every row is judged once for each seed."""
    splits = []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(rows)
        for number, test in enumerate(np.array_split(order, count)):
            train = np.setdiff1d(rows, test)
            splits.append(Split(train, np.sort(test), f"seed {seed}, fold {number}"))
    return splits


def group_folds(rows: Index, group: NDArray[np.str_], count: int, seeds: range) -> list[Split]:
    """Folds of about equal size in which no group is on both sides."""
    splits = []
    for seed in seeds:
        random = np.random.default_rng(seed)
        names, sizes = np.unique(group[rows], return_counts=True)
        order = random.permutation(len(names))
        order = order[np.argsort(-sizes[order], kind="stable")]
        parts: list[list[str]] = [[] for _ in range(count)]
        weight = np.zeros(count)
        for place in order.tolist():
            lightest = int(np.argmin(weight))
            parts[lightest].append(str(names[place]))
            weight[lightest] += sizes[place]
        for number, part in enumerate(parts):
            held = np.isin(group[rows], part)
            if held.any():
                splits.append(Split(rows[~held], rows[held], f"seed {seed}, fold {number}"))
    return splits


def one_group_out(rows: Index, group: NDArray[np.str_]) -> list[Split]:
    return [
        Split(rows[group[rows] != name], rows[group[rows] == name], str(name))
        for name in np.unique(group[rows])
    ]


def latin_rows(history: History, rows: Index, count: int, random: np.random.Generator) -> Index:
    """``count`` of ``rows`` that fill the space evenly: the nearest to each point of a Latin
    hypercube over the values that occur, each row once.
    """
    places = np.stack([_ranks(history, field)[rows] for field in HYPERCUBE_FIELDS], axis=1)
    places = places[:, np.ptp(places, axis=0) > 0]
    wanted = qmc.LatinHypercube(places.shape[1], rng=random).random(count)
    chosen: list[int] = []
    free = np.ones(len(rows), np.bool_)
    for point in wanted:
        distance = np.where(free, ((places - point) ** 2).sum(axis=1), np.inf)
        nearest = int(np.argmin(distance))
        free[nearest] = False
        chosen.append(nearest)
    return np.sort(rows[chosen])


def _ranks(history: History, field: str) -> NDArray[np.float64]:
    """The place of each row's value among those that occur, from 0 to 1."""
    values = [getattr(each.configuration, field) for each in history]
    known = sorted(set(values))
    return np.array([(known.index(value) + 0.5) / len(known) for value in values])

"""How rows are held out, and how wrong predictions of them are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from scipy.stats import qmc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.history import History

    Index = NDArray[np.int64]
    Column = NDArray[np.float64]


HYPERCUBE_FIELDS = (
    *("model", "method", "gpu_model", "precision"),
    *("num_gpus", "batch_size", "tokens_per_sample"),
)


class Split(NamedTuple):
    """Rows to learn from and rows to judge."""

    train: Index
    test: Index
    name: str = ""


def random_splits(rows: Index, test_share: float, seeds: range) -> list[Split]:
    """Return one random split per seed."""
    splits = []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(rows)
        size = round(test_share * len(rows))
        splits.append(Split(np.sort(order[size:]), np.sort(order[:size]), f"seed {seed}"))
    return splits


def folds(rows: Index, count: int, seeds: range) -> list[Split]:
    """Return random folds; every row is judged once per seed."""
    splits = []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(rows)
        for number, test in enumerate(np.array_split(order, count)):
            train = np.setdiff1d(rows, test)
            splits.append(Split(train, np.sort(test), f"seed {seed}, fold {number}"))
    return splits


def group_folds(rows: Index, group: NDArray[np.str_], count: int, seeds: range) -> list[Split]:
    """Return folds of about equal size in which no group is on both sides."""
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
    """Return one split per group, which holds that group out."""
    return [
        Split(rows[group[rows] != name], rows[group[rows] == name], str(name))
        for name in np.unique(group[rows])
    ]


def latin_rows(history: History, rows: Index, count: int, random: np.random.Generator) -> Index:
    """Return ``count`` of ``rows`` that fill the space evenly: the nearest row to each point of a
    Latin hypercube over the values that occur, each row once.
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
    """Return the rank of each row's value among those that occur, from 0 to 1."""
    values = [getattr(each.configuration, field) for each in history]
    known = sorted(set(values))
    return np.array([(known.index(value) + 0.5) / len(known) for value in values])


CLOSE = 0.2
BINS = 10


class PaceError(msgspec.Struct, frozen=True):
    """Errors of tokens per second as shares; ``answered`` is the share with a prediction."""

    mape: float
    mdape: float
    close: float
    rows: int
    answered: float = 1.0


def pace_error(measured: Column, predicted: Column) -> PaceError:
    """Return the errors of predicted paces."""
    known = np.isfinite(predicted)
    if not known.any():
        return PaceError(np.nan, np.nan, np.nan, len(measured), 0.0)
    off = np.abs(predicted[known] / measured[known] - 1.0)
    return PaceError(
        mape=float(off.mean()),
        mdape=float(np.median(off)),
        close=float(np.mean(off <= CLOSE)),
        rows=len(measured),
        answered=float(known.mean()),
    )


def mean_pace_error(errors: list[PaceError]) -> PaceError:
    """Return the mean of each figure over several splits."""
    return PaceError(
        mape=float(np.mean([each.mape for each in errors])),
        mdape=float(np.mean([each.mdape for each in errors])),
        close=float(np.mean([each.close for each in errors])),
        rows=sum(each.rows for each in errors),
        answered=float(np.mean([each.answered for each in errors])),
    )


class ValidityError(msgspec.Struct, frozen=True):
    """Errors about fitting.

    ``false_valid`` is the share of invalid rows called valid, ``false_invalid`` the reverse, and
    ``accepted_wrongly`` the invalid share of what is accepted at 0.8.
    """

    error: float
    false_valid: float
    false_invalid: float
    accepted_wrongly: float
    auc: float
    brier: float
    ece: float
    rows: int


def validity_error(valid: NDArray[np.bool_], likely: Column) -> ValidityError:
    """Return the errors of predicted probabilities to fit."""
    called = likely >= 0.5
    accepted = likely >= 0.8
    return ValidityError(
        error=float(np.mean(called != valid)),
        false_valid=_share(called, ~valid),
        false_invalid=_share(~called, valid),
        accepted_wrongly=_share(~valid, accepted),
        auc=_auc(valid, likely),
        brier=float(np.mean((likely - valid) ** 2)),
        ece=_ece(valid, likely),
        rows=len(valid),
    )


def _share(flags: NDArray[np.bool_], among: NDArray[np.bool_]) -> float:
    return float(np.mean(flags[among])) if among.any() else float("nan")


def _auc(valid: NDArray[np.bool_], likely: Column) -> float:
    """Return the probability that a valid row is believed likelier than an invalid one."""
    above, below = likely[valid], likely[~valid]
    if not len(above) or not len(below):
        return float("nan")
    wins = (above[:, None] > below).mean() + 0.5 * (above[:, None] == below).mean()
    return float(wins)


def _ece(valid: NDArray[np.bool_], likely: Column) -> float:
    place = np.minimum((likely * BINS).astype(int), BINS - 1)
    gaps = [
        abs(float(likely[place == each].mean() - valid[place == each].mean()))
        * float(np.mean(place == each))
        for each in range(BINS)
        if (place == each).any()
    ]
    return float(sum(gaps))

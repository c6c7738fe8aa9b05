"""How wrong predictions are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[np.float64]

CLOSE = 0.2
BINS = 10


class PaceError(msgspec.Struct, frozen=True):
    """Of tokens per second; shares of one. ``answered`` is the share with any prediction."""

    mape: float
    mdape: float
    close: float
    rows: int
    answered: float = 1.0


def pace_error(measured: Column, predicted: Column) -> PaceError:
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
    """Of several splits: the mean of each figure."""
    return PaceError(
        mape=float(np.mean([each.mape for each in errors])),
        mdape=float(np.mean([each.mdape for each in errors])),
        close=float(np.mean([each.close for each in errors])),
        rows=sum(each.rows for each in errors),
        answered=float(np.mean([each.answered for each in errors])),
    )


class ValidityError(msgspec.Struct, frozen=True):
    """``false_valid`` is the share of invalid rows called valid, ``false_invalid`` the reverse;
    ``accepted_wrongly`` the share that does not fit of what is accepted at 0.8.
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
    """The probability that a valid row is believed likelier than an invalid one."""
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

"""Standings of forecasters: scores per horizon, skill over all horizons, and regret in dollars.

The loss functions and tests are in ``scores``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.errors import InvalidInput
from duetune.market.forecast.forecast_source import ForecastKind, ForecastSource
from duetune.simulate.backtest.scores import (
    Atoms,
    at_levels,
    atoms_read,
    better_by_chance,
    pinball,
    share_below,
)
from duetune.simulate.cases import JobMix, draw_cases
from duetune.simulate.summary import margin_of_mean
from duetune.simulate.tournament import run_tournament

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duetune.core.market import MarketTrace
    from duetune.market.forecast.forecast_table import ForecastTable
    from duetune.policies.compiled_policy import CompiledPolicy
    from duetune.simulate.backtest.past_forecasts import Rolled
    from duetune.simulate.cases import Case


_USUAL_GPUS = 16
_ROUNDING = 1e-9  # dollars


class Regret(msgspec.Struct, frozen=True):
    """The dollars per job that a policy earns less with a forecast than with the perfect one.

    - ``margin`` is half the width of the 95% interval of ``dollars`` over jobs.
    - ``share`` is ``dollars`` relative to what the perfect forecast earns.

    Regret can be below zero: a policy that looks a few slots ahead is not optimal even with perfect
    foresight.
    """

    mean_utility: float
    dollars: float
    margin: float
    share: float | None


class AlreadyMade(ForecastSource, frozen=True):
    """A source of forecasts that were made before, for these traces only."""

    made: tuple[tuple[MarketTrace, ForecastTable], ...] = ()

    def table(self, trace: MarketTrace, horizon: int) -> ForecastTable:
        """Return the forecasts of this trace; called by the tournament."""
        for known, table in self.made:
            if known is trace and horizon <= table.horizon:
                return table
        raise InvalidInput("trace", trace.name, "a trace whose forecasts were made before")


def usual_mix(traces: Sequence[MarketTrace]) -> JobMix:
    """Return the usual job mix with jobs as large as the markets: at most 16 GPUs."""
    most = max(1, min(_USUAL_GPUS, *(int(trace.available[0].max()) for trace in traces)))
    least = max(1, most // 2)
    return JobMix(max_gpus=(least, most), min_gpus=(1, min(2, least)))


def jobs_on(
    mix: JobMix, traces: tuple[MarketTrace, ...], count: int, seed: int, warm_up: float
) -> tuple[Case, ...]:
    """Return random jobs that begin and end in the scored part of the traces."""
    return draw_cases(mix, traces, count, np.random.default_rng(seed), part=(warm_up, 1.0))


def regrets(
    tables: Mapping[str, Sequence[ForecastTable]],
    traces: tuple[MarketTrace, ...],
    cases: Sequence[Case],
    policy: CompiledPolicy,
    *,
    workers: int | None,
) -> tuple[float, dict[str, Regret]]:
    """Return the mean utility with the perfect forecast, and every forecaster's regret."""

    def utility(source: ForecastSource) -> NDArray[np.float64]:
        return run_tournament([policy], cases, traces, source, workers=workers).utility[:, 0]

    perfect = utility(ForecastSource())
    best = float(perfect.mean())
    found = {}
    for name, made in tables.items():
        earned = utility(AlreadyMade(made=tuple(zip(traces, made, strict=True))))
        lost = perfect - earned
        lost[np.abs(lost) < _ROUNDING] = 0.0
        found[name] = Regret(
            mean_utility=float(earned.mean()),
            dollars=float(lost.mean()),
            margin=float(margin_of_mean(lost[:, np.newaxis])[0]),
            share=float(lost.mean()) / best if best > 0 else None,
        )
    return best, found


PERSISTENCE = ForecastSource(kind=ForecastKind.LAST)


class Quantity(StrEnum):
    """What is forecast: a count of GPUs, or dollars per GPU-hour."""

    AVAILABLE = "available"
    SPOT_PRICE = "spot_price"


class Score(msgspec.Struct, frozen=True):
    """One forecaster at one horizon, over all forecasts of all markets.

    - ``mae`` is the mean absolute error of the value that policies plan with.
    - ``pinball`` is the quantile loss, the mean over ``LEVELS``.
    - ``below`` is the share of actual values below each quantile of ``LEVELS``; for a calibrated
      forecaster it equals the levels.
    - ``coverage`` is the share of actual values in the 90% range.
    - ``skill`` is the part of persistence's pinball loss that is saved, and ``p_value`` its
      Diebold-Mariano test. Both are None if persistence is never wrong; ``p_value`` also if both
      have the same losses.
    """

    forecaster: str
    hours: float
    quantity: Quantity
    forecasts: int
    mae: float
    pinball: float
    coverage: float
    below: tuple[float, ...]
    skill: float | None
    p_value: float | None


class ForecasterStanding(msgspec.Struct, frozen=True):
    """One forecaster over all horizons.

    Skills use the geometric mean of losses relative to persistence, so a market that hardly moves
    does not outweigh the others. ``skill`` is over both quantities.
    """

    forecaster: str
    skill: float | None
    skill_available: float | None
    skill_price: float | None
    coverage_available: float
    coverage_price: float
    regret: Regret | None


def slots_ahead(hours: float, trace: MarketTrace) -> int:
    """Return the number of slots of the trace in these hours."""
    return round(hours / trace.slot_hours)


class _Losses(msgspec.Struct, frozen=True, eq=False):
    """The losses of one forecaster at one horizon, one array per market."""

    absolute: list[NDArray[np.float64]]
    pinball: list[NDArray[np.float64]]
    below: NDArray[np.float64]


def horizon_scores(
    made: Mapping[str, Sequence[Rolled]],
    markets: Sequence[MarketTrace],
    place: int,
    hours: float,
    quantity: Quantity,
) -> list[Score]:
    """Return every forecaster's score at horizon number ``place``, ``hours`` ahead."""
    ahead = [slots_ahead(hours, trace) for trace in markets]
    losses = {name: _losses(row, markets, ahead, place, quantity) for name, row in made.items()}
    control = losses[str(PERSISTENCE)].pinball
    basis = float(np.concatenate(control).mean())
    scores = []
    for name, each in losses.items():
        loss = float(np.concatenate(each.pinball).mean())
        gains = [theirs - own for theirs, own in zip(control, each.pinball, strict=True)]
        below = each.below.mean(axis=1)
        scores.append(
            Score(
                forecaster=name,
                hours=hours,
                quantity=quantity,
                forecasts=each.below.shape[1],
                mae=float(np.concatenate(each.absolute).mean()),
                pinball=loss,
                coverage=float(below[-1] - below[0]),
                below=tuple(below.tolist()),
                skill=1 - loss / basis if basis > 0 else None,
                p_value=better_by_chance(gains, ahead) if basis > 0 else None,
            )
        )
    return scores


def _losses(
    made: Sequence[Rolled],
    markets: Sequence[MarketTrace],
    ahead: Sequence[int],
    place: int,
    quantity: Quantity,
) -> _Losses:
    absolute, quantile_loss, below = [], [], []
    for each, trace, slots in zip(made, markets, ahead, strict=True):
        rows = trace.slots - each.first - slots
        certain = each.certain[:rows]
        if quantity is Quantity.AVAILABLE:
            actual = trace.available[0, each.first + slots :].astype(np.float64)
            point = each.available[:rows, place]
            quantiles = each.available_quantiles[:, :rows, place]
            most = float(trace.available[0].max())
            read = atoms_read(each.levels, quantiles, actual, certain=certain, step=1.0, most=most)
            known = ~np.isnan(each.count_to[:rows, place])
            atoms = Atoms(
                lower=np.where(known, each.count_below[:rows, place], read.lower),
                upper=np.where(known, each.count_to[:rows, place], read.upper),
            )
        else:
            actual = trace.spot_price[0, each.first + slots :] / trace.slot_hours
            point = each.price[:rows, place] / trace.slot_hours
            quantiles = each.price_quantiles[:, :rows, place] / trace.slot_hours
            atoms = atoms_read(each.levels, quantiles, actual, certain=certain)
        absolute.append(np.abs(point - actual))
        quantile_loss.append(pinball(at_levels(each.levels, quantiles), actual))
        below.append(share_below(each.levels, quantiles, actual, atoms))
    return _Losses(absolute=absolute, pinball=quantile_loss, below=np.concatenate(below, axis=1))


def standing(name: str, scores: Sequence[Score], regret: Regret | None) -> ForecasterStanding:
    """Return the standing of one forecaster from its scores."""
    own = [score for score in scores if score.forecaster == name]
    available = [score for score in own if score.quantity is Quantity.AVAILABLE]
    price = [score for score in own if score.quantity is Quantity.SPOT_PRICE]
    return ForecasterStanding(
        forecaster=name,
        skill=_overall(own),
        skill_available=_overall(available),
        skill_price=_overall(price),
        coverage_available=float(np.mean([score.coverage for score in available])),
        coverage_price=float(np.mean([score.coverage for score in price])),
        regret=regret,
    )


def _overall(scores: Sequence[Score]) -> float | None:
    """Return 1 minus the geometric mean of the relative losses."""
    ratios = [1 - score.skill for score in scores if score.skill is not None]
    if not ratios:
        return None
    with np.errstate(divide="ignore"):  # the loss of a perfect forecaster is 0
        return float(1 - np.exp(np.log(ratios).mean()))

"""The backtest of forecasters: how well they would have done on recorded markets.

The origin rolls: in every slot after the warm-up each forecaster forecasts once from what it has
observed so far, for the longest horizon. A forecast is scored when its slot has come. Persistence
(``last``) always takes part, because it is what other forecasters must beat.
"""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.market import MarketTrace
from duetune.errors import InvalidInput
from duetune.market.forecast.distribution import LEVELS
from duetune.policies.ahap import Ahap
from duetune.simulate.backtest.past_forecasts import Rolled, rolled, source_name
from duetune.simulate.backtest.standings import (
    PERSISTENCE,
    ForecasterStanding,
    Quantity,
    Regret,
    Score,
    horizon_scores,
    jobs_on,
    regrets,
    slots_ahead,
    standing,
    usual_mix,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO

    from duetune.core.ports import Forecaster
    from duetune.market.forecast.forecast_source import ForecastSource
    from duetune.policies.compiled_policy import CompiledPolicy
    from duetune.simulate.cases import JobMix

USUAL_HOURS = (1.0, 3.0, 6.0, 12.0)
WARM_UP = 0.3


class Backtest(msgspec.Struct, frozen=True):
    """The result of a backtest. ``standings`` is sorted by skill, the best forecaster first."""

    horizons: tuple[float, ...]
    levels: tuple[float, ...]
    warm_up: float
    policy: str
    jobs: int
    perfect_utility: float | None
    standings: tuple[ForecasterStanding, ...]
    scores: tuple[Score, ...]

    def score(self, forecaster: str, hours: float, quantity: Quantity) -> Score:
        """Return the score of one forecaster at one horizon for one quantity."""
        wanted = (forecaster, hours, quantity)
        return next(
            score
            for score in self.scores
            if (score.forecaster, score.hours, score.quantity) == wanted
        )


def backtest(
    sources: Sequence[ForecastSource | Forecaster],
    traces: MarketTrace | Sequence[MarketTrace],
    horizons: Sequence[float] = (),
    *,
    warm_up: float = WARM_UP,
    jobs: int = 100,
    mix: JobMix | None = None,
    policy: CompiledPolicy | None = None,
    seed: int = 0,
    workers: int | None = None,
    advance: Callable[[str, str], None] | None = None,
) -> Backtest:
    """Score forecasters on the first pool of each trace.

    - ``horizons`` are in hours. The default is 1, 3, 6 and 12, as far as they are whole slots.
    - A forecaster object must be fresh. It is copied for each trace and shown all its slots.
    - ``jobs`` is the number of jobs drawn for the regret of ``policy`` (by default AHAP); 0 omits
      it.
    - ``advance`` is called with forecaster and trace whenever a forecaster finishes a trace.
    """
    markets = (traces,) if isinstance(traces, MarketTrace) else tuple(traces)
    contestants = _named(sources)
    hours = checked_horizons(horizons, markets, warm_up)
    deciding = policy or Ahap()
    # Before the long work: this rejects traces that are too short for the jobs.
    cases = () if not jobs else jobs_on(mix or usual_mix(markets), markets, jobs, seed, warm_up)
    made: dict[str, list[Rolled]] = {}
    for name, source in contestants.items():
        for trace in markets:
            made.setdefault(name, []).append(
                rolled(
                    source,
                    trace,
                    first=first_scored(trace, warm_up),
                    ahead=np.array([slots_ahead(each, trace) for each in hours]),
                    lookahead=max(1, deciding.lookahead),
                )
            )
            if advance is not None:
                advance(name, trace.name)
    scores = [
        score
        for place, each in enumerate(hours)
        for quantity in Quantity
        for score in horizon_scores(made, markets, place, each, quantity)
    ]
    perfect, lost = None, dict[str, Regret]()
    if cases:
        tables = {name: [each.table for each in row] for name, row in made.items()}
        perfect, lost = regrets(tables, markets, cases, deciding, workers=workers)
    standings = [standing(name, scores, lost.get(name)) for name in contestants]
    return Backtest(
        horizons=hours,
        levels=LEVELS,
        warm_up=warm_up,
        policy=deciding.name,
        jobs=len(cases),
        perfect_utility=perfect,
        standings=tuple(
            sorted(standings, key=lambda row: (row.skill is None, -(row.skill or 0.0)))
        ),
        scores=tuple(scores),
    )


def first_scored(trace: MarketTrace, warm_up: float) -> int:
    """Return the slot in which the first forecast is scored."""
    return round(warm_up * trace.slots)


def checked_horizons(
    horizons: Sequence[float], traces: Sequence[MarketTrace], warm_up: float = WARM_UP
) -> tuple[float, ...]:
    """Return the horizons in hours, ascending, after checking them against every trace.

    Each must be a whole number of slots and short enough for the trace. Without any, the usual ones
    that meet this are returned.
    """
    if not traces:
        raise InvalidInput("traces", "none", "at least one market")
    if not 0 < warm_up < 1:
        raise InvalidInput("warm_up", warm_up, "a share of the trace, above 0 and below 1")
    for trace in traces:
        first = first_scored(trace, warm_up)
        if not 1 <= first <= trace.slots - 3:
            allowed = f"a trace long enough for a warm-up of {warm_up:.0%} and slots to score"
            raise InvalidInput("trace", f"{trace.name}, {trace.slots} slots", allowed)
    if not horizons:
        usual = [each for each in USUAL_HOURS if all(_fits(each, trace) for trace in traces)]
        short = [each for each in usual if each <= min(_longest(t, warm_up) for t in traces)]
        return tuple(short) or (max(trace.slot_hours for trace in traces),)
    for each in horizons:
        for trace in traces:
            minutes = f"{trace.slot_hours * 60:g} min"
            if not (math.isfinite(each) and each > 0 and _fits(each, trace)):
                allowed = f"hours, whole slots of {minutes} in {trace.name!r}"
                raise InvalidInput("horizons", each, allowed)
            longest = _longest(trace, warm_up)
            if each > longest + 1e-9:
                scored = trace.slots - first_scored(trace, warm_up)
                raise InvalidInput(
                    "horizons",
                    each,
                    f"at most {longest:g} hours: {trace.name!r} has {scored} slots of {minutes} "
                    f"after a warm-up of {warm_up:.0%}, and a horizon must be shorter than half",
                )
    return tuple(sorted({float(each) for each in horizons}))


def write_scores(result: Backtest, file: IO[str]) -> None:
    """Write a CSV file with one row per score."""
    writer = csv.writer(file, lineterminator="\n")
    fields = [name for name in Score.__struct_fields__ if name != "below"]
    writer.writerow((*fields, *(f"below_{level:g}" for level in result.levels)))
    for score in result.scores:
        cells = [getattr(score, name) for name in fields]
        writer.writerow("" if cell is None else cell for cell in (*cells, *score.below))


def _named(
    sources: Sequence[ForecastSource | Forecaster],
) -> dict[str, ForecastSource | Forecaster]:
    """Return the forecasters by name, persistence included."""
    contestants: dict[str, ForecastSource | Forecaster] = {}
    for source in sources:
        name = source_name(source)
        if name in contestants:
            raise InvalidInput("forecasters", name, "each forecaster once, under its own name")
        contestants[name] = source
    contestants.setdefault(str(PERSISTENCE), PERSISTENCE)
    return contestants


def _fits(hours: float, trace: MarketTrace) -> bool:
    """Return whether the hours are a whole number of slots, at least one."""
    slots = hours / trace.slot_hours
    return round(slots) >= 1 and abs(slots - round(slots)) < 1e-6


def _longest(trace: MarketTrace, warm_up: float) -> float:
    """Return the longest horizon in hours that still leaves more forecasts than slots ahead."""
    return (trace.slots - first_scored(trace, warm_up) - 1) // 2 * trace.slot_hours

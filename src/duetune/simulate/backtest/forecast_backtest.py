"""The backtest of forecasters: how well they would have done on recorded markets.

Rolling origin: in every slot after the warm-up each forecaster forecasts from what it has seen so
far, once, for the longest horizon; each forecast is scored when its slot has come. Persistence
(``last``) always takes part: it is what others have to beat.
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
    """``standings`` has the best forecaster first, in the order of skill."""

    horizons: tuple[float, ...]
    levels: tuple[float, ...]
    warm_up: float
    policy: str
    jobs: int
    perfect_utility: float | None
    standings: tuple[ForecasterStanding, ...]
    scores: tuple[Score, ...]

    def score(self, forecaster: str, hours: float, quantity: Quantity) -> Score:
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

    ``horizons`` are hours; by default 1, 3, 6 and 12, those that are whole slots. A forecaster of
    your own must be fresh: it is copied for each trace and shown it from the first slot on.
    ``jobs`` are drawn for the regret of ``policy`` (AHAP); 0 leaves it out. ``advance`` is told
    which forecaster is done with which trace.
    """
    markets = (traces,) if isinstance(traces, MarketTrace) else tuple(traces)
    contestants = _named(sources)
    hours = checked_horizons(horizons, markets, warm_up)
    deciding = policy or Ahap()
    # Before the long work: this refuses traces that are too short for jobs.
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
    """The slot in which the first forecast is scored."""
    return round(warm_up * trace.slots)


def checked_horizons(
    horizons: Sequence[float], traces: Sequence[MarketTrace], warm_up: float = WARM_UP
) -> tuple[float, ...]:
    """Hours in ascending order, each a whole number of slots that every trace is long enough for.

    Without any, the usual ones that are.
    """
    if not traces:
        raise InvalidInput("traces", "none", "at least one market")
    if not 0 < warm_up < 1:
        raise InvalidInput("warm_up", warm_up, "a share of the trace, above 0 and below 1")
    for trace in traces:
        first = first_scored(trace, warm_up)
        if not 1 <= first <= trace.slots - 3:
            allowed = f"one with slots before and after a warm-up of {warm_up:.0%}"
            raise InvalidInput("trace", f"{trace.name}, {trace.slots} slots", allowed)
    if not horizons:
        usual = [each for each in USUAL_HOURS if all(_fits(each, trace) for trace in traces)]
        short = [each for each in usual if each <= min(_longest(t, warm_up) for t in traces)]
        return tuple(short) or (max(trace.slot_hours for trace in traces),)
    for each in horizons:
        for trace in traces:
            minutes = f"{trace.slot_hours * 60:g} min"
            if not (math.isfinite(each) and each > 0 and _fits(each, trace)):
                allowed = f"hours, whole slots of {minutes} each in {trace.name!r}"
                raise InvalidInput("horizons", each, allowed)
            longest = _longest(trace, warm_up)
            if each > longest + 1e-9:
                scored = trace.slots - first_scored(trace, warm_up)
                raise InvalidInput(
                    "horizons",
                    each,
                    f"at most {longest:g} hours: {trace.name!r} has {scored} slots of {minutes} "
                    f"after a warm-up of {warm_up:.0%}, and a horizon may take less than half",
                )
    return tuple(sorted({float(each) for each in horizons}))


def write_scores(result: Backtest, file: IO[str]) -> None:
    """Every score as a row of CSV."""
    writer = csv.writer(file, lineterminator="\n")
    fields = [name for name in Score.__struct_fields__ if name != "below"]
    writer.writerow((*fields, *(f"below_{level:g}" for level in result.levels)))
    for score in result.scores:
        cells = [getattr(score, name) for name in fields]
        writer.writerow("" if cell is None else cell for cell in (*cells, *score.below))


def _named(
    sources: Sequence[ForecastSource | Forecaster],
) -> dict[str, ForecastSource | Forecaster]:
    contestants: dict[str, ForecastSource | Forecaster] = {}
    for source in sources:
        name = source_name(source)
        if name in contestants:
            raise InvalidInput("forecasters", name, "each forecaster once, under its own name")
        contestants[name] = source
    contestants.setdefault(str(PERSISTENCE), PERSISTENCE)
    return contestants


def _fits(hours: float, trace: MarketTrace) -> bool:
    slots = hours / trace.slot_hours
    return round(slots) >= 1 and abs(slots - round(slots)) < 1e-6


def _longest(trace: MarketTrace, warm_up: float) -> float:
    """In hours: more forecasts than slots ahead are scored, or a test of them says nothing."""
    return (trace.slots - first_scored(trace, warm_up) - 1) // 2 * trace.slot_hours

"""What errors of forecasts cost: the same policy on the same jobs, by each forecast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.simulate.cases import JobMix, draw_cases
from duetune.simulate.summary import margin_of_mean
from duetune.simulate.tournament import run_tournament

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from duetune.core.market import MarketTrace
    from duetune.market.forecast.forecast_table import ForecastTable
    from duetune.policies.compiled_policy import CompiledPolicy
    from duetune.simulate.cases import Case

_USUAL_GPUS = 16
_ROUNDING = 1e-9  # dollars


class Regret(msgspec.Struct, frozen=True):
    """Dollars per job that a policy earns less by this forecast than by the perfect one.

    ``margin`` is half the width of the 95% interval of ``dollars``, over jobs. ``share`` is of what
    the perfect forecast earns. Below zero is possible: a policy that looks a few slots ahead is not
    optimal even if it sees them.
    """

    mean_utility: float
    dollars: float
    margin: float
    share: float | None


class AlreadyMade(ForecastSource, frozen=True):
    """Forecasts that were made before, of these traces and no others."""

    made: tuple[tuple[MarketTrace, ForecastTable], ...] = ()

    def table(self, trace: MarketTrace, horizon: int) -> ForecastTable:
        for known, table in self.made:
            if known is trace and horizon <= table.horizon:
                return table
        raise InvalidInput("trace", trace.name, "one whose forecasts were made")


def usual_mix(traces: Sequence[MarketTrace]) -> JobMix:
    """Jobs as large as the markets: up to 16 GPUs, or the most that were ever there."""
    most = max(1, min(_USUAL_GPUS, *(int(trace.available[0].max()) for trace in traces)))
    least = max(1, most // 2)
    return JobMix(max_gpus=(least, most), min_gpus=(1, min(2, least)))


def jobs_on(
    mix: JobMix, traces: tuple[MarketTrace, ...], count: int, seed: int, warm_up: float
) -> tuple[Case, ...]:
    """Jobs that begin and end in the scored part of the traces."""
    return draw_cases(mix, traces, count, np.random.default_rng(seed), part=(warm_up, 1.0))


def regrets(
    tables: Mapping[str, Sequence[ForecastTable]],
    traces: tuple[MarketTrace, ...],
    cases: Sequence[Case],
    policy: CompiledPolicy,
    *,
    workers: int | None,
) -> tuple[float, dict[str, Regret]]:
    """The mean utility by the perfect forecast, and every forecaster's regret."""

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

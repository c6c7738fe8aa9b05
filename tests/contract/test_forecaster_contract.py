from __future__ import annotations

import pytest

import duetune.market.forecast
from duetune.errors import MissingExtra
from duetune.market.forecast import ErrorRegime, ForecastKind, ForecastSource
from duetune.market.forecast.forecast_source import LEARNING
from duetune.testing import (
    CausalForecasterContract,
    ForecasterContract,
    constant_market,
    random_market,
)
from duetune.testing.forecaster_contract import DistributionForecasterContract
from support.discovery import classes_with

ORACLES = {ForecastKind.PERFECT, ForecastKind.NOISY}
SOURCES = [
    ForecastSource(kind=kind, regime=regime, level=level, period_slots=12, seed=5)
    for kind in ForecastKind
    for regime, level in (
        [(regime, level) for regime in ErrorRegime for level in (0.0, 0.7, 2.0)]
        if kind is ForecastKind.NOISY
        else [(ErrorRegime.PROPORTIONAL_UNIFORM, 0.0)]
    )
]


def made_by(source, trace, *, spread=False):
    try:
        return source.forecaster(trace, spread=spread)
    except MissingExtra as missing:
        pytest.skip(str(missing))


def test_every_forecaster_of_the_package_runs_through_the_suite():
    made = {
        type(source.forecaster(random_market(0, 10)))
        for source in SOURCES
        if source.kind not in {ForecastKind.ARIMA, ForecastKind.ETS, ForecastKind.BOOSTED}
    }
    assert set(classes_with(duetune.market.forecast, "observe", "forecast")) <= made


class _Learning(DistributionForecasterContract):
    def markets(self):
        # Two are enough: these forecasters take milliseconds, not microseconds.
        yield random_market(1, 60)
        yield constant_market(60, available=0, spot_price=0.0)


def _contract(source, *, spread):
    if source.kind in LEARNING or spread:
        return _Learning
    return ForecasterContract if source.kind in ORACLES else CausalForecasterContract


for _number, _source in enumerate(SOURCES):
    for _spread in (False, True):
        if _spread and (_source.kind in ORACLES or _source.kind in LEARNING):
            continue
        _name = f"Test{_source.kind.value.title()}{_number}{'WithSpread' * _spread}"
        globals()[_name] = type(
            _name,
            (_contract(_source, spread=_spread),),
            {
                "make": lambda _self, trace, source=_source, spread=_spread: made_by(
                    source, trace, spread=spread
                )
            },
        )

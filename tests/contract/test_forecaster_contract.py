from __future__ import annotations

from discovery import classes_with

import duetune.forecast
from duetune.forecast import ErrorRegime, ForecastKind, ForecastSource
from duetune.testing import CausalForecasterContract, ForecasterContract, random_market

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


def test_every_forecaster_of_the_package_runs_through_the_suite():
    made = {type(source.forecaster(random_market(0, 10))) for source in SOURCES}
    assert set(classes_with(duetune.forecast, "observe", "forecast")) <= made


for _number, _source in enumerate(SOURCES):
    _contract = ForecasterContract if _source.kind in ORACLES else CausalForecasterContract
    _name = f"Test{_source.kind.value.title()}{_number}"
    globals()[_name] = type(
        _name,
        (_contract,),
        {"make": lambda _self, trace, source=_source: source.forecaster(trace)},
    )

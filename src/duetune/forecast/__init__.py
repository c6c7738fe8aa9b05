"""The market to come as believed now: simple forecasters, those that learn, and oracles."""

from duetune.forecast.distribution import Distribution, DistributionForecaster
from duetune.forecast.error import ErrorRegime, PerfectPlusError
from duetune.forecast.simple import LastValue, Perfect, SeasonalNaive
from duetune.forecast.source import ForecastKind, ForecastSource, forecast_table
from duetune.forecast.table import ForecastTable, table_by_steps

__all__ = [
    "Distribution",
    "DistributionForecaster",
    "ErrorRegime",
    "ForecastKind",
    "ForecastSource",
    "ForecastTable",
    "LastValue",
    "Perfect",
    "PerfectPlusError",
    "SeasonalNaive",
    "forecast_table",
    "table_by_steps",
]

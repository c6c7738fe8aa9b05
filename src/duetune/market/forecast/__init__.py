"""Forecasts of price and availability: simple forecasters, learning forecasters, and oracles.

``ForecastSource`` names them all. ``market_chain`` and ``regimes`` are the Markov models that
rubato plans against.
"""

from duetune.market.forecast.distribution import Distribution, DistributionForecaster
from duetune.market.forecast.forecast_source import ForecastKind, ForecastSource, forecast_table
from duetune.market.forecast.forecast_table import ForecastTable, table_by_steps
from duetune.market.forecast.noisy_oracle import ErrorRegime, PerfectPlusError
from duetune.market.forecast.simple import LastValue, Perfect, SeasonalNaive

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

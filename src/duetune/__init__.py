"""duetune: fine-tunes by their due date at the least cost, on spot and on-demand GPUs.

The names below are imported when they are first used, so that ``import duetune`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duetune.core.job import Job, linear_throughput
    from duetune.core.market import MarketTrace
    from duetune.market.forecast.forecast_source import ForecastSource
    from duetune.market.synthetic import synthetic_market
    from duetune.market.traces import load_trace
    from duetune.policies.ahanp import Ahanp
    from duetune.policies.ahap import Ahap
    from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
    from duetune.policies.guard import deadline_guard
    from duetune.policies.select.adaptive import AdaHedge, FixedShare
    from duetune.policies.select.hedge import Hedge
    from duetune.policies.solve.dynamic import offline_optimum
    from duetune.simulate.episode import simulate as simulate_job
    from duetune.simulate.tournament import run_tournament

__version__ = "0.1.0"

__all__ = [
    "AdaHedge",
    "Ahanp",
    "Ahap",
    "FixedShare",
    "ForecastSource",
    "Hedge",
    "Job",
    "MarketTrace",
    "MaximalSpot",
    "OnDemandOnly",
    "UniformProgress",
    "__version__",
    "deadline_guard",
    "linear_throughput",
    "load_trace",
    "offline_optimum",
    "run_tournament",
    "simulate_job",
    "synthetic_market",
]

_HOMES = {
    "AdaHedge": "duetune.policies.select.adaptive:AdaHedge",
    "Ahanp": "duetune.policies.ahanp:Ahanp",
    "Ahap": "duetune.policies.ahap:Ahap",
    "FixedShare": "duetune.policies.select.adaptive:FixedShare",
    "ForecastSource": "duetune.market.forecast.forecast_source:ForecastSource",
    "Hedge": "duetune.policies.select.hedge:Hedge",
    "Job": "duetune.core.job:Job",
    "MarketTrace": "duetune.core.market:MarketTrace",
    "MaximalSpot": "duetune.policies.baselines:MaximalSpot",
    "OnDemandOnly": "duetune.policies.baselines:OnDemandOnly",
    "UniformProgress": "duetune.policies.baselines:UniformProgress",
    "deadline_guard": "duetune.policies.guard:deadline_guard",
    "linear_throughput": "duetune.core.job:linear_throughput",
    "load_trace": "duetune.market.traces:load_trace",
    "offline_optimum": "duetune.policies.solve.dynamic:offline_optimum",
    "run_tournament": "duetune.simulate.tournament:run_tournament",
    # Not "simulate": that name is the subpackage, and whichever came first would win.
    "simulate_job": "duetune.simulate.episode:simulate",
    "synthetic_market": "duetune.market.synthetic:synthetic_market",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name].split(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

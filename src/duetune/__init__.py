"""duetune fine-tunes LLMs by their deadline at the least cost, on spot and on-demand GPUs.

    >>> import duetune
    >>> duetune.plan("job.yaml")       # how it would be trained, what it would cost
    >>> duetune.launch("job.yaml")     # run it; status() and explain() tell how it goes

To run jobs: ``JobSpec``, ``plan``, ``launch``, ``status``, ``metrics``, ``amend``, ``explain``,
``fits``, ``recommend``.
To study them: ``load_trace`` or ``synthetic_market``, a policy such as ``Rubato``, ``simulate_job``
and ``run_tournament``. Each name is imported on first use, so ``import duetune`` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duetune.api import amend, explain, fits, launch, metrics, plan, recommend, status
    from duetune.core.job import Job, linear_throughput
    from duetune.core.market import MarketTrace
    from duetune.home import Home
    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.jobs.spec.load import load_spec
    from duetune.market.forecast.forecast_source import ForecastSource
    from duetune.market.synthetic import synthetic_market
    from duetune.market.traces import load_trace
    from duetune.policies.ahanp import Ahanp
    from duetune.policies.ahap import Ahap
    from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
    from duetune.policies.guard import deadline_guard
    from duetune.policies.rubato import Rubato
    from duetune.policies.select.adaptive import AdaHedge, FixedShare
    from duetune.policies.select.hedge import Hedge
    from duetune.policies.solve.dynamic import offline_optimum
    from duetune.registry.markets import forecast_named
    from duetune.registry.policies import policy_named
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
    "Home",
    "Job",
    "JobSpec",
    "MarketTrace",
    "MaximalSpot",
    "OnDemandOnly",
    "Rubato",
    "UniformProgress",
    "__version__",
    "amend",
    "deadline_guard",
    "explain",
    "fits",
    "forecast_named",
    "launch",
    "linear_throughput",
    "load_spec",
    "load_trace",
    "metrics",
    "offline_optimum",
    "plan",
    "policy_named",
    "recommend",
    "run_tournament",
    "simulate_job",
    "status",
    "synthetic_market",
]

_HOMES = {
    "AdaHedge": "duetune.policies.select.adaptive",
    "Ahanp": "duetune.policies.ahanp",
    "Ahap": "duetune.policies.ahap",
    "FixedShare": "duetune.policies.select.adaptive",
    "ForecastSource": "duetune.market.forecast.forecast_source",
    "Hedge": "duetune.policies.select.hedge",
    "Home": "duetune.home",
    "Job": "duetune.core.job",
    "JobSpec": "duetune.jobs.spec.job_spec",
    "MarketTrace": "duetune.core.market",
    "MaximalSpot": "duetune.policies.baselines",
    "OnDemandOnly": "duetune.policies.baselines",
    "Rubato": "duetune.policies.rubato",
    "UniformProgress": "duetune.policies.baselines",
    "amend": "duetune.api",
    "deadline_guard": "duetune.policies.guard",
    "explain": "duetune.api",
    "fits": "duetune.api",
    "forecast_named": "duetune.registry.markets",
    "launch": "duetune.api",
    "linear_throughput": "duetune.core.job",
    "load_spec": "duetune.jobs.spec.load",
    "load_trace": "duetune.market.traces",
    "metrics": "duetune.api",
    "offline_optimum": "duetune.policies.solve.dynamic",
    "plan": "duetune.api",
    "policy_named": "duetune.registry.policies",
    "recommend": "duetune.api",
    "run_tournament": "duetune.simulate.tournament",
    "status": "duetune.api",
    "synthetic_market": "duetune.market.synthetic",
}


def __getattr__(name: str) -> object:
    # "simulate" is the subpackage: the function has another name here.
    if name == "simulate_job":
        return import_module("duetune.simulate.episode").simulate
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The regimes of the paper's experiments: one thing varies at a time around a base setting."""

from __future__ import annotations

import msgspec

from duetune.core.job import Reconfiguration, ReconfigurationKey
from duetune.core.market import MarketTrace
from duetune.market.datasets import data_folder, h100_counts, spot_traces_slots, v100_paired
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.market.forecast.noisy_oracle import PAPER_REGIMES
from duetune.market.synthetic import SYNTHETIC_MARKETS, synthetic_market
from duetune.simulate.cases import JobMix

BASE_FORECAST = "noisy:proportional-uniform:0.2"
SLOTS = 3000
V100_ON_DEMAND, V100_SPOT = 3.06, 0.918  # dollars per GPU-hour on AWS at the time of the traces
SWEEPS = (
    "deadline tightness",
    "spot price level",
    "availability level",
    "reconfiguration cost",
    "forecast error",
    "forecast kind",
    "market kind",
    "real market",
)


class Regime(msgspec.Struct, frozen=True, eq=False):
    """One setting: markets, jobs and forecast."""

    sweep: str
    label: str
    markets: tuple[MarketTrace, ...]
    mix: JobMix
    source: ForecastSource


def all_regimes(seed: int, *, quick: bool) -> list[Regime]:
    """Return all regimes, or for a first look the ends of each sweep."""
    regimes = [
        *_tightness(seed),
        *_levels(seed),
        *_reconfiguration(seed),
        *_forecasts(seed),
        *_kinds(seed),
        *_real(seed),
    ]
    if not quick:
        return regimes
    by_sweep = {sweep: [each for each in regimes if each.sweep == sweep] for sweep in SWEEPS}
    return [each for group in by_sweep.values() for each in (group[:1] + group[-1:])]


def _markets(seed: int, **levels: float) -> tuple[MarketTrace, ...]:
    """Return the base markets: half daily pattern, half regime switching."""
    return tuple(
        synthetic_market(kind, seed=seed + number, slots=SLOTS, **levels)
        for number in range(2)
        for kind in ("diurnal", "regime_switching")
    )


def _source(seed: int, text: str = BASE_FORECAST) -> ForecastSource:
    return ForecastSource.parse(text, seed=seed)


def _tightness(seed: int) -> list[Regime]:
    return [
        Regime(
            "deadline tightness",
            f"{share:.0%} of capacity",
            _markets(seed),
            JobMix(tightness=(share, share)),
            _source(seed),
        )
        for share in (0.2, 0.35, 0.5, 0.65, 0.8)
    ]


def _levels(seed: int) -> list[Regime]:
    prices = [
        Regime(
            "spot price level",
            f"x{level:g}",
            _markets(seed, price_level=level),
            JobMix(),
            _source(seed),
        )
        for level in (0.5, 0.75, 1.0, 1.5, 2.0)
    ]
    counts = [
        Regime(
            "availability level",
            f"x{level:g}",
            _markets(seed, availability_level=level),
            JobMix(),
            _source(seed),
        )
        for level in (0.25, 0.5, 0.75, 1.0, 1.5)
    ]
    return prices + counts


def _reconfiguration(seed: int) -> list[Regime]:
    rules = {
        "none": Reconfiguration(grow=1.0, shrink=1.0, preempted=1.0),
        "5% / 2.5%": Reconfiguration(grow=0.95, shrink=0.975, preempted=0.95),
        "10% / 5%": Reconfiguration(),
        "20% / 10%": Reconfiguration(grow=0.8, shrink=0.9, preempted=0.8),
        "40% / 20%": Reconfiguration(grow=0.6, shrink=0.8, preempted=0.6),
        "10% / 5%, by composition": Reconfiguration(key=ReconfigurationKey.COMPOSITION),
    }
    return [
        Regime(
            "reconfiguration cost",
            label,
            _markets(seed),
            # The exact optimum by composition has many more states: smaller jobs keep it quick.
            JobMix(reconfiguration=rule, max_gpus=(4, 6), deadline=(12, 20))
            if rule.key is ReconfigurationKey.COMPOSITION
            else JobMix(reconfiguration=rule),
            _source(seed),
        )
        for label, rule in rules.items()
    ]


def _forecasts(seed: int) -> list[Regime]:
    errors = [
        Regime(
            "forecast error",
            f"{kind.value}, {level:.0%}",
            _markets(seed),
            JobMix(),
            _source(seed, f"noisy:{kind.value}:{level}"),
        )
        for kind in PAPER_REGIMES
        for level in (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)
    ]
    kinds = [
        Regime("forecast kind", text, _markets(seed), JobMix(), _source(seed, text))
        for text in ("perfect", "last", "seasonal:48")
    ]
    return errors + kinds


def _kinds(seed: int) -> list[Regime]:
    return [
        Regime(
            "market kind",
            kind,
            tuple(synthetic_market(kind, seed=seed + number, slots=SLOTS) for number in range(4)),
            JobMix(),
            _source(seed),
        )
        for kind in SYNTHETIC_MARKETS
    ]


def _real(seed: int) -> list[Regime]:
    """Return regimes with real availability and prices; nothing is synthetic."""
    if not data_folder().is_dir():
        return []
    counts = _pools(h100_counts(slot_hours=0.5))
    sixteen, four = (
        _pools(
            spot_traces_slots(
                trace_set=name, on_demand_usd_gpu_h=V100_ON_DEMAND, spot_usd_gpu_h=V100_SPOT
            )
        )
        for name in ("availability/16-node/aws-08-27-2023", "preemption/4-node/aws-08-03-2023")
    )
    cases = {
        "H100 counts, 9 zones": (counts, JobMix(deadline=(12, 20))),
        "V100, 16 nodes, 2 zones": (sixteen, JobMix(deadline=(12, 20))),
        "V100, 4 nodes, 2 zones": (four, JobMix(deadline=(12, 20), max_gpus=(2, 4))),
        "V100 with prices, 1 GPU": (
            _pools(v100_paired()),
            JobMix(deadline=(12, 32), max_gpus=(1, 1), min_gpus=(1, 1)),
        ),
    }
    return [
        Regime("real market", f"{label}, {name}", markets, mix, _source(seed, forecast))
        for label, (markets, mix) in cases.items()
        for name, forecast in (("last value", "last"), ("20% error", BASE_FORECAST))
    ]


def _pools(trace: MarketTrace) -> tuple[MarketTrace, ...]:
    return tuple(trace.pool(pool.name) for pool in trace.pools)

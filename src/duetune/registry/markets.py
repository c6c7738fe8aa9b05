"""Markets to simulate: synthetic markets by name, and trace files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.registry.plugins import Listed

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.core.market import MarketTrace

SYNTHETIC_SLOTS = 480
"""The usual length of a synthetic market."""


def market_named(
    kind: str, *, seed: int, slot_hours: float | None = None, slots: int = SYNTHETIC_SLOTS
) -> MarketTrace:
    """Return a synthetic market of ``slots`` slots, but at least of the usual length."""
    from duetune.market.synthetic import MarketKind, synthetic_market

    if kind not in set(MarketKind):
        raise InvalidInput("market", kind, f"one of {', '.join(MarketKind)}")
    if seed < 0:
        raise InvalidInput("seed", seed, "a whole number, zero or more")
    return synthetic_market(
        kind,
        seed=seed,
        slots=max(SYNTHETIC_SLOTS, slots),
        slot_hours=0.5 if slot_hours is None else slot_hours,
    )


def markets_listed() -> tuple[Listed, ...]:
    """Return the synthetic markets, each with the first line of its docstring."""
    from duetune.market.synthetic import SYNTHETIC_MARKETS

    return tuple(
        Listed(kind.value, (recipe.__doc__ or "").strip().splitlines()[0])
        for kind, recipe in SYNTHETIC_MARKETS.items()
    )


def markets_from_file(
    path: Path | str,
    *,
    pool: str | None = None,
    slot_hours: float | None = None,
    gaps: str = "error",
    spot_price: float | None = None,
    on_demand_price: float | None = None,
    available: int | None = None,
    gpus_per_instance: int | None = None,
) -> tuple[MarketTrace, ...]:
    """Return one trace for each pool of a file, or only for the named ``pool``.

    Prices are dollars per GPU-hour.
    """
    from duetune.market.traces import load_trace

    trace = load_trace(
        path,
        pool=pool,
        slot_hours=slot_hours,
        gaps=gaps,
        spot_usd_gpu_h=spot_price,
        on_demand_usd_gpu_h=on_demand_price,
        available=available,
        gpus_per_instance=gpus_per_instance,
    )
    return tuple(trace.pool(each.name) for each in trace.pools)

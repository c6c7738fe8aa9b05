"""Seeded synthetic markets of several pools: zones, regions and GPU types.

Every pool is a market of ``synthetic``, with a price and capacity of its own. With a correlation,
pools follow one common market in spells of about a day, so that their outages coincide then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.market import MarketTrace, Pool
from duetune.errors import InvalidInput
from duetune.market.synthetic import PriceMotion, synthetic_market

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.market.synthetic import MarketKind

_SPELL_HOURS = 24.0


class SyntheticPool(msgspec.Struct, frozen=True):
    """A pool of a synthetic market; levels are as in ``synthetic_market``."""

    name: str
    accelerator: str = "GPU"
    zone: str = ""
    on_demand_usd_gpu_h: float = 3.0
    price_level: float = 1.0
    availability_level: float = 1.0


def synthetic_pools(
    kind: MarketKind | str,
    pools: Sequence[SyntheticPool],
    *,
    seed: int,
    slots: int = 480,
    slot_hours: float = 0.5,
    max_available: int = 16,
    correlation: float = 0.0,
    price_motion: PriceMotion | str = PriceMotion.SLOW,
) -> MarketTrace:
    """Return a market of several pools; the same seed gives the same bytes.

    ``correlation`` is the share of time in which a pool has the capacity of the common market
    instead of its own, from 0 (outages are independent) to 1 (all pools have the same).
    """
    if not pools:
        raise InvalidInput("pools", list(pools), "one or more pools")
    if not 0 <= correlation <= 1:
        raise InvalidInput("correlation", correlation, "0 to 1")
    random = np.random.default_rng(seed)

    def market(pool: SyntheticPool) -> MarketTrace:
        return synthetic_market(
            kind,
            random=random,
            slots=slots,
            slot_hours=slot_hours,
            max_available=max_available,
            on_demand_usd_gpu_h=pool.on_demand_usd_gpu_h,
            price_level=pool.price_level,
            availability_level=pool.availability_level,
            price_motion=price_motion,
        )

    common = market(SyntheticPool("common")).available[0]
    found = [market(pool) for pool in pools]
    available = [
        np.where(_follows(random, slots, slot_hours, correlation), common, each.available[0])
        for each in found
    ]
    return MarketTrace(
        spot_price=np.vstack([each.spot_price for each in found]),
        available=np.array(available),
        on_demand_price=np.vstack([each.on_demand_price for each in found]),
        slot_hours=slot_hours,
        pools=tuple(Pool(pool.name, pool.accelerator, pool.zone) for pool in pools),
        name=f"synthetic-pools-{kind}-{seed}",
    )


def _follows(
    random: np.random.Generator, slots: int, slot_hours: float, share: float
) -> NDArray[np.bool_]:
    """Return in which slots a pool follows the common market."""
    drawn = random.random(slots) < share
    changes = random.random(slots) < slot_hours / _SPELL_HOURS
    changes[0] = True
    last = np.maximum.accumulate(np.where(changes, np.arange(slots), 0))
    return np.asarray(drawn[last])

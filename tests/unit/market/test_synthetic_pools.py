from __future__ import annotations

import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.market.synthetic_pools import SyntheticPool, synthetic_pools

POOLS = (
    SyntheticPool("a", "H100", "east", on_demand_usd_gpu_h=10.0),
    SyntheticPool("b", "A100", "west", on_demand_usd_gpu_h=4.0, price_level=0.5),
    SyntheticPool("c", "A100", "west", on_demand_usd_gpu_h=4.0, availability_level=0.0),
)


def made(**fields):
    return synthetic_pools("outage", POOLS, **{"seed": 1, "slots": 4000, **fields})


def agreement(trace) -> float:
    """How much oftener two pools are up or down together than independent ones would be."""
    up = trace.available[:2] > 0
    return float(np.corrcoef(up)[0, 1])


def test_pools_have_their_own_names_types_prices_and_capacity():
    trace = made()
    assert [(pool.name, pool.accelerator, pool.zone) for pool in trace.pools] == [
        ("a", "H100", "east"),
        ("b", "A100", "west"),
        ("c", "A100", "west"),
    ]
    assert trace.on_demand_price[:, 0] / trace.slot_hours == pytest.approx([10.0, 4.0, 4.0])
    assert trace.spot_price[0].mean() > 2 * trace.spot_price[1].mean()
    assert trace.available[2].max() == 0 < trace.available[1].max()


def test_the_same_seed_gives_the_same_market_and_another_seed_another():
    first, second, other = made(), made(), made(seed=2)
    assert (first.available == second.available).all()
    assert (first.spot_price == second.spot_price).all()
    assert (first.available != other.available).any()


def test_outages_coincide_as_far_as_the_correlation_says():
    independent, half, same = (agreement(made(correlation=share)) for share in (0.0, 0.7, 1.0))
    assert abs(independent) < 0.15
    assert independent < half < same
    assert same == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("field", "fields"),
    [("correlation", {"correlation": 1.1}), ("correlation", {"correlation": -0.1})],
)
def test_a_bad_value_is_refused(field, fields):
    with pytest.raises(InvalidInput) as refused:
        made(**fields)
    assert refused.value.field == field
    with pytest.raises(InvalidInput, match="pools"):
        synthetic_pools("outage", (), seed=1)

"""A job whose members have several GPUs: policies count members, fleet and bill count GPUs."""

from __future__ import annotations

import msgspec
import numpy as np

from duetune.core.decision import Forecast, Outlook
from duetune.core.events import NodeRequest, Requested
from duetune.core.fleet import Launch, NodeKind
from duetune.core.market import Slot
from duetune.engine.engine import Engine
from duetune.engine.state import highest_price
from duetune.testing.sample_events import submission


def test_the_policy_is_shown_members_and_the_fleet_is_asked_for_their_gpus():
    alone = submission()
    whole = msgspec.structs.replace(alone, task=msgspec.structs.replace(alone.task, gpus=4))
    engine = Engine("job", lambda _name: None)
    engine.handle(whole)
    seen = engine.observed(
        at=whole.at,
        market=Slot(spot_price=0.5, available=11, on_demand_price=1.0),
        forecast=Forecast(spot_price=np.array([0.5, 0.25]), available=np.array([3, 8])),
        outlook=Outlook(available=2.0, spot_price=2.0),
        pace={},
    )
    assert seen.market == Slot(spot_price=2.0, available=2, on_demand_price=4.0)
    assert (seen.forecast_price, seen.forecast_available) == ((2.0, 1.0), (0, 2))
    assert highest_price(whole) == 4 * highest_price(alone)
    engine.handle(
        Requested(at=whole.at, launches=(NodeRequest("n", NodeKind.SPOT, 1),), releases=())
    )
    (launch,) = (each for each in engine.outstanding() if isinstance(each, Launch))
    assert launch.task.gpus == 4
    assert launch.max_price == whole.max_price, "the fleet's prices are those of one GPU"
    assert engine.state.nodes["n"].gpus == 4

from __future__ import annotations

import numpy as np
import pytest

from duetune.core.fleet import NodeKind
from duetune.errors import InvalidInput
from duetune.fleets.embedded.replay import MarketReplay
from duetune.testing import market_of, random_market

BEGAN = 1_700_000_000.0
THREE = market_of([0.2, 0.6, 0.4], [3, 1, 2], [1.0, 2.0, 3.0])


def test_the_first_slot_begins_when_the_replay_does():
    replay = MarketReplay(THREE, began=BEGAN, first_slot=1)
    report = replay.report(BEGAN)
    assert (report.index, report.slot_began, report.slot_s) == (1, BEGAN, 1800.0)
    assert report.slot == THREE.slot(1)
    assert replay.report(BEGAN + 1799.9).index == 1
    assert replay.report(BEGAN + 1800).slot == THREE.slot(2)


def test_after_its_end_the_last_slot_repeats():
    replay = MarketReplay(THREE, began=BEGAN)
    late = replay.report(BEGAN + 100 * 1800 + 5)
    assert (late.index, late.slot) == (100, THREE.slot(2))


def test_with_wrap_the_trace_begins_anew_after_its_end():
    replay = MarketReplay(THREE, began=BEGAN, first_slot=2, wrap=True)
    slots = [replay.report(BEGAN + number * 1800).slot for number in range(5)]
    assert slots == [THREE.slot(number) for number in (2, 0, 1, 2, 0)]


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("kind", list(NodeKind))
def test_a_cost_is_the_price_of_every_moment_added_up(wrap, kind):
    trace = random_market(3, 7)
    replay = MarketReplay(trace, began=BEGAN, first_slot=2, wrap=wrap)
    random = np.random.default_rng(1)
    for _ in range(50):
        start, stop = BEGAN + np.sort(random.uniform(0, 20 * 1800, 2))
        added = 0.0
        for number in range(20):
            begins = BEGAN + number * 1800
            held_s = max(0.0, min(stop, begins + 1800) - max(start, begins))
            added += replay.hourly(kind, number) * held_s / 3600
        assert replay.cost(kind, start, stop) == pytest.approx(added, abs=1e-9)


@pytest.mark.parametrize("wrap", [False, True])
def test_a_cost_never_falls_as_time_goes_by(wrap):
    replay = MarketReplay(random_market(4, 5), began=BEGAN, wrap=wrap)
    moments = np.sort(np.random.default_rng(2).uniform(BEGAN, BEGAN + 15 * 1800, 5000))
    costs = [replay.cost(NodeKind.SPOT, BEGAN + 7, moment) for moment in moments]
    assert np.all(np.diff(costs) > -1e-12)
    assert costs[0] >= 0


def test_history_is_what_was_recorded_before_and_what_was_replayed():
    replay = MarketReplay(THREE, began=BEGAN, first_slot=1)
    assert replay.history(BEGAN, 5).spot_price.tolist() == [[0.2]]
    later = replay.history(BEGAN + 3 * 1800 + 1, 3)
    assert later.spot_price.tolist() == [[0.6, 0.4, 0.4]]
    assert later.start.timestamp() == BEGAN
    assert replay.history(BEGAN, 0) is None
    assert MarketReplay(THREE, began=BEGAN).history(BEGAN + 9, 5) is None


def test_a_first_slot_beyond_the_trace_is_refused():
    with pytest.raises(InvalidInput, match="first_slot: 3 is not allowed; expected from 0 to 2"):
        MarketReplay(THREE, began=BEGAN, first_slot=3)

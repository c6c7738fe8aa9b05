"""The rules of the emulated cloud, by a clock that is set by hand."""

from __future__ import annotations

import msgspec
import pytest

from duetune.core.fleet import Launch, Limit, NodeKind, NodeState, Release, Task
from duetune.fleets.embedded import FleetFaults, FleetSettings
from duetune.testing import MemoryFleet, constant_market, market_of

TASK = Task(folder="/nonexistent", command=("true",))
SLOT = 1800.0
PLAIN = FleetSettings(grant_delay_s=0.0, notice_s=0.0)
NOTICED = msgspec.structs.replace(PLAIN, notice_s=120.0)


def launch(node, *, job="job", kind=NodeKind.SPOT, max_price=None):
    return Launch(node, job, kind, 1, TASK, max_price)


def fleet_with(market, settings=PLAIN, nodes=("a", "b", "c"), **options):
    fleet = MemoryFleet(market, settings)
    fleet.apply([launch(node, **options) for node in nodes])
    return fleet


def states(fleet, job="job"):
    return {node.id: node.state.value for node in fleet.observe(job).nodes}


def test_the_newest_nodes_go_when_fewer_are_available():
    fleet = fleet_with(market_of([0.4, 0.4], [3, 1]))
    began = fleet.clock.now()
    fleet.clock.advance(SLOT - 1)
    assert states(fleet) == {"a": "running", "b": "running", "c": "running"}
    fleet.clock.advance(5)
    assert states(fleet) == {"a": "running", "b": "lost", "c": "lost"}
    lost = fleet.node("c")
    assert (lost.reason, lost.notice_at) == ("capacity", None)
    assert lost.ended_at == began + SLOT, "at the boundary, however late anybody looks"
    assert lost.billed == pytest.approx(0.4)


def test_notice_is_given_before_the_boundary():
    fleet = fleet_with(market_of([0.4, 0.4], [2, 1]), NOTICED, nodes=("a", "b"))
    boundary = fleet.clock.now() + SLOT
    fleet.clock.advance(SLOT - 121)
    assert fleet.node("b").notice_at is None
    fleet.clock.advance(2)
    assert fleet.node("b").notice_at == boundary
    assert fleet.node("a").notice_at is None
    assert states(fleet) == {"a": "running", "b": "running"}
    fleet.clock.advance(120)
    assert states(fleet) == {"a": "running", "b": "lost"}
    assert fleet.node("b").ended_at == boundary


def test_a_notice_may_be_longer_than_a_slot():
    settings = msgspec.structs.replace(PLAIN, notice_s=2.5 * SLOT)
    fleet = fleet_with(market_of([0.4] * 4, [3, 3, 2, 0]), settings)
    began = fleet.clock.now()
    notices = {node: fleet.node(node).notice_at for node in "abc"}
    assert notices == {"a": None, "b": None, "c": began + 2 * SLOT}
    fleet.clock.advance(SLOT)
    assert fleet.node("a").notice_at == fleet.node("b").notice_at == began + 3 * SLOT
    fleet.clock.advance(2.1 * SLOT)
    assert set(states(fleet).values()) == {"lost"}


def test_a_node_granted_after_the_notice_of_others_gets_its_own_at_once():
    fleet = fleet_with(market_of([0.4, 0.4], [2, 0]), NOTICED, nodes=("a",))
    boundary = fleet.clock.now() + SLOT
    fleet.clock.advance(SLOT - 60)
    fleet.apply([launch("late")])
    assert fleet.node("late").state is NodeState.RUNNING
    assert fleet.node("late").notice_at == boundary


def test_giving_a_node_back_saves_another_one_only_before_the_notice():
    market = market_of([0.4, 0.4], [2, 1])
    early, late = fleet_with(market, NOTICED, "ab"), fleet_with(market, NOTICED, "ab")
    early.clock.advance(SLOT - 200)
    early.apply([Release("a", "job")])
    late.clock.advance(SLOT - 20)
    late.apply([Release("a", "job")])
    early.clock.advance(SLOT)
    late.clock.advance(SLOT)
    assert states(early) == {"a": "released", "b": "running"}
    assert states(late) == {"a": "released", "b": "lost"}


def test_silent_nodes_are_taken_without_notice_and_the_share_is_kept():
    settings = msgspec.structs.replace(NOTICED, silent_share=0.3, seed=1)
    names = [f"n{number}" for number in range(400)]
    fleet = fleet_with(market_of([0.4, 0.4], [400, 0]), settings, names)
    fleet.clock.advance(SLOT + 1)
    noticed = [fleet.node(name).notice_at is not None for name in names]
    assert all(node.state is NodeState.LOST for node in fleet.observe("job").nodes)
    assert 0.6 < sum(noticed) / 400 < 0.8


def test_chance_depends_on_seed_and_name_only():
    settings = FleetSettings(grant_delay_s=100.0, silent_share=0.5, notice_s=60.0, seed=3)
    market = market_of([0.4, 0.4], [3, 0])

    def told(fleet):
        fleet.clock.advance(2 * SLOT)
        nodes = fleet.observe("job").nodes
        return {node.id: (node.started_at, node.notice_at) for node in nodes}

    assert told(fleet_with(market, settings, "abc")) == told(fleet_with(market, settings, "cab"))
    other = msgspec.structs.replace(settings, seed=4)
    assert told(fleet_with(market, settings, "abc")) != told(fleet_with(market, other, "abc"))


def test_no_notice_at_all_where_that_is_the_fault():
    settings = msgspec.structs.replace(NOTICED, faults=FleetFaults(no_notice=True))
    fleet = fleet_with(market_of([0.4, 0.4], [1, 0]), settings, "a")
    fleet.clock.advance(SLOT + 1)
    assert (fleet.node("a").state, fleet.node("a").notice_at) == (NodeState.LOST, None)


def test_a_price_above_the_highest_accepted_refuses_and_takes():
    # Prices of a slot of half an hour: 0.8 and 1.2 dollars per hour.
    fleet = MemoryFleet(market_of([0.4, 0.6], [9, 9]), NOTICED)
    fleet.apply([launch("low", max_price=0.7), launch("mid", max_price=1.0), launch("any")])
    assert fleet.node("low").state is NodeState.REFUSED
    assert fleet.node("low").reason == "price ($0.8 per GPU-hour is above $0.7)"
    fleet.clock.advance(SLOT + 1)
    assert states(fleet) == {"low": "refused", "mid": "lost", "any": "running"}
    assert fleet.node("mid").reason == "price"
    assert fleet.node("mid").notice_at == fleet.node("mid").ended_at


def test_the_highest_price_of_the_settings_is_for_nodes_that_state_none():
    settings = msgspec.structs.replace(PLAIN, max_price=0.5)
    fleet = MemoryFleet(market_of([0.4], [9]), settings)
    fleet.apply([launch("a"), launch("b", max_price=2.0), launch("c", kind=NodeKind.ON_DEMAND)])
    assert states(fleet) == {"a": "refused", "b": "running", "c": "running"}


def test_on_demand_nodes_stay_and_are_limited_by_their_own_capacity():
    settings = msgspec.structs.replace(PLAIN, on_demand_capacity=2)
    fleet = fleet_with(market_of([0.4, 0.4], [0, 0]), settings, kind=NodeKind.ON_DEMAND)
    assert states(fleet) == {"a": "running", "b": "running", "c": "refused"}
    assert fleet.node("c").reason == "capacity (2 of 2 on_demand GPUs are held)"
    fleet.clock.advance(5 * SLOT)
    assert states(fleet)["a"] == "running"


def test_a_request_that_outlives_its_capacity_is_refused():
    settings = FleetSettings(grant_delay_s=600.0, notice_s=0.0)
    fleet = MemoryFleet(market_of([0.4, 0.4], [1, 0]), settings)
    fleet.clock.advance(SLOT - 10)
    fleet.apply([launch("a")])
    assert fleet.node("a").state is NodeState.REQUESTED
    fleet.clock.advance(2000)
    node = fleet.node("a")
    assert (node.state, node.reason, node.billed) == (NodeState.REFUSED, "capacity", 0.0)
    assert node.started_at is None


def test_a_request_is_granted_after_about_the_mean_delay_and_billed_from_then():
    settings = FleetSettings(grant_delay_s=100.0)
    names = [f"n{number}" for number in range(200)]
    fleet = fleet_with(constant_market(available=200), settings, names)
    began = fleet.clock.now()
    fleet.clock.advance(1000)
    delays = [fleet.node(name).started_at - began for name in names]
    assert min(delays) >= 50
    assert max(delays) <= 150
    assert 90 < sum(delays) / 200 < 110
    node = fleet.node("n0")
    assert node.billed == pytest.approx(0.4 * (1000 - delays[0]) / SLOT)


def test_where_nothing_is_ever_granted_requests_wait_and_cost_nothing():
    settings = msgspec.structs.replace(PLAIN, faults=FleetFaults(never_grant=True))
    fleet = fleet_with(constant_market(), settings, "a")
    fleet.clock.advance(100 * SLOT)
    assert (fleet.node("a").state, fleet.node("a").billed) == (NodeState.REQUESTED, 0.0)
    fleet.apply([Release("a", "job")])
    assert fleet.node("a").state is NodeState.RELEASED


def test_a_bill_follows_the_price_through_the_slots():
    fleet = fleet_with(market_of([0.2, 0.6], [1, 1]), nodes="a")
    fleet.clock.advance(1.5 * SLOT)
    assert fleet.node("a").billed == pytest.approx(0.2 + 0.3)


def test_a_limit_takes_the_nodes_at_the_last_moment_that_keeps_it():
    fleet = fleet_with(constant_market(available=2, spot_price=0.5), nodes="ab")
    fleet.apply([launch("o", kind=NodeKind.ON_DEMAND), Limit("job", 1.0)])
    began = fleet.clock.now()
    fleet.clock.advance(3 * SLOT)
    nodes = fleet.observe("job").nodes
    assert {node.reason for node in nodes} == {"limit"}
    assert nodes[0].ended_at == pytest.approx(began + SLOT / 2, abs=0.1)
    assert 1.0 - 1e-4 < sum(node.billed for node in nodes) <= 1.0


def test_a_limit_gives_notice_even_to_silent_nodes():
    settings = msgspec.structs.replace(NOTICED, silent_share=1.0)
    fleet = fleet_with(constant_market(), settings, "a")
    fleet.apply([Limit("job", 0.4)])
    fleet.clock.advance(SLOT - 60)
    assert fleet.node("a").notice_at == pytest.approx(fleet.clock.now() + 60, abs=0.1)


def test_a_limit_below_what_is_spent_ends_everything_now():
    fleet = fleet_with(constant_market(), nodes="a")
    fleet.clock.advance(SLOT)
    fleet.apply([Limit("job", 0.1)])
    assert fleet.node("a").state is NodeState.LOST
    fleet.apply([launch("b")])
    assert fleet.node("b").reason == "limit (the limit of $0.1 is spent)"
    fleet.apply([Limit("job", 1.0), launch("c")])
    assert fleet.node("c").state is NodeState.RUNNING


def test_a_node_that_comes_late_shortens_the_time_of_all():
    fleet = fleet_with(constant_market(spot_price=1.0), NOTICED, "a")
    fleet.apply([Limit("job", 1.0)])
    fleet.clock.advance(SLOT - 100)
    first = fleet.node("a").notice_at
    fleet.apply([launch("b"), launch("c")])
    assert fleet.node("a").notice_at < first
    fleet.clock.advance(SLOT)
    assert sum(node.billed for node in fleet.observe("job").nodes) <= 1.0
    assert set(states(fleet).values()) == {"lost"}


@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        (0, NodeState.RELEASED, "finished"),
        (78, NodeState.RELEASED, "hopeless"),
        (75, NodeState.LOST, "capacity, worker left after notice"),
        (-15, NodeState.LOST, "capacity, worker left after notice"),
    ],
)
def test_how_a_worker_ends_is_how_its_node_ends(code, state, reason):
    fleet = fleet_with(constant_market(), nodes="a")
    fleet.lose("a", notice_s=60.0)
    fleet.finish("a", code)
    assert (fleet.node("a").state, fleet.node("a").reason) == (state, reason)
    fleet.clock.advance(100)
    assert fleet.node("a").state is state


def test_a_node_of_several_gpus_is_granted_taken_and_billed_as_a_whole():
    fleet = MemoryFleet(market_of([0.4, 0.4], [5, 3]), PLAIN)
    whole = msgspec.structs.replace(TASK, gpus=2)
    fleet.apply([Launch(node, "job", NodeKind.SPOT, 1, whole) for node in ("a", "b", "c")])
    fleet.clock.advance(SLOT - 1)
    assert states(fleet) == {"a": "running", "b": "running", "c": "refused"}
    fleet.clock.advance(2)
    assert states(fleet) == {"a": "running", "b": "lost", "c": "refused"}
    assert fleet.node("b").billed == pytest.approx(2 * 0.4)

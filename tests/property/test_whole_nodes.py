"""Nodes of several GPUs: what is asked, granted, counted and billed agrees on every engine."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetune.core.fleet import Launch, NodeKind, NodeState, Release, Task
from duetune.core.market import Slot
from duetune.fleets.engine_market import EngineMarket, FilePrices
from duetune.fleets.fleet_file import FleetFile
from duetune.fleets.node_ledger import NodeLedger
from support.engines import EngineLab, MemoryPages

FREE = st.lists(st.integers(0, 9), max_size=6).map(tuple)


@given(free=FREE, bought=st.integers(0, 20), gpus=st.integers(1, 9), held=st.integers(0, 3))
def test_members_never_exceed_what_the_machines_can_hold(free, bought, gpus, held):
    slot = Slot(0.5, sum(free) + bought, 1.0, free)
    seen = slot.in_members(gpus, held)
    fits = sum(there // gpus for there in free) + bought // gpus
    assert seen.available <= slot.available // gpus
    assert seen.available <= max(fits, held)
    if held * gpus <= bought:
        assert seen.available == fits, "no member that fits is left out"
    assert seen.spot_price == pytest.approx(gpus * slot.spot_price)
    assert seen.free is None
    assert slot.in_members(1).available == slot.available


@given(
    machine=st.integers(1, 8),
    machines=st.integers(1, 4),
    gpus=st.integers(1, 8),
    nodes=st.integers(1, 8),
    seconds=st.lists(st.integers(1, 3000), min_size=8, max_size=8),
)
def test_granted_nodes_fit_and_are_billed_by_their_gpus(machine, machines, gpus, nodes, seconds):
    lab = EngineLab(spot=machine * machines, machine_gpus=machine, pages=MemoryPages())
    task = Task(folder="/nowhere", gpus=gpus)
    lab.fleet.apply(
        [Launch(f"n{number}", "job", NodeKind.SPOT, 1, task) for number in range(nodes)]
    )
    lab.fleet.look()
    running = [node for node in lab.fleet.observe("job").nodes if node.state is NodeState.RUNNING]
    assert len(running) == min(nodes, machines * (machine // gpus))
    for number, lasting in zip(range(nodes), seconds, strict=False):
        lab.clock.advance(float(lasting))
        lab.fleet.apply([Release(f"n{number}", "job")])
    ended = [node for node in lab.fleet.observe("job").nodes if node.started_at is not None]
    gpu_s = sum(gpus * (node.ended_at - node.started_at) for node in ended)
    assert all(node.gpus == gpus for node in ended)
    assert sum(node.billed for node in ended) == pytest.approx(gpu_s / 3600)


@given(
    machine=st.integers(1, 16),
    machines=st.integers(1, 4),
    node=st.none() | st.integers(1, 8),
    taken=st.lists(st.integers(1, 8), max_size=5),
)
def test_the_market_counts_what_can_be_started(machine, machines, node, taken):
    """What the market says is granted if it is asked for at once, and nothing beyond it is."""
    lab = EngineLab(spot=machine * machines, machine_gpus=machine, pages=MemoryPages())
    for number, gpus in enumerate(taken):
        task = Task(folder="/nowhere", gpus=node or gpus)
        lab.fleet.apply([Launch(f"old{number}", "old", NodeKind.SPOT, 1, task)])
    lab.fleet.look()
    old = lab.fleet.observe("old").nodes
    held = sum(each.gpus for each in old if each.state is NodeState.RUNNING)
    file = FleetFile(engine="memory", gpus_per_node=node, max_gpus=node or 4)
    market = EngineMarket(file, lab.driver, NodeLedger(lab.pages), lab.clock).now().slot
    gpus = node or max(taken, default=1)
    mine = msgspec.structs.replace(market, available=market.available - held)
    offered = mine.in_members(gpus).available
    for each in old:
        if each.state is NodeState.REQUESTED:
            lab.fleet.apply([Release(each.id, "old")])
    task = Task(folder="/nowhere", gpus=gpus)
    lab.fleet.apply([Launch(f"n{n}", "job", NodeKind.SPOT, 1, task) for n in range(offered + 2)])
    lab.fleet.look()
    granted = [each for each in lab.fleet.observe("job").nodes if each.state is NodeState.RUNNING]
    assert len(granted) == offered
    if node is not None:
        assert market.available % node == 0


@given(gpus=st.integers(1, 8), seconds=st.integers(0, 10_000), price=st.floats(0.1, 9.0))
def test_prices_of_the_file_are_those_of_one_gpu(gpus, seconds, price):
    file = FleetFile(engine="memory", spot_usd_h=price, max_gpus=gpus, gpus_per_node=gpus)
    lab = EngineLab(spot=gpus, machine_gpus=gpus, pages=MemoryPages())
    slot = EngineMarket(file, lab.driver, None, lab.clock).now().slot.in_members(gpus)
    hours = file.slot_minutes / 60
    assert slot.spot_price == pytest.approx(gpus * price * hours)
    assert slot.available == 1
    bill = gpus * FilePrices(file).dollars(NodeKind.SPOT, 0.0, float(seconds))
    assert bill == pytest.approx(gpus * price * seconds / 3600)

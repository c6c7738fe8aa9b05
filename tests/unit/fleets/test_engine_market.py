from __future__ import annotations

import pytest

from duetune.core.fleet import NodeKind
from duetune.errors import InvalidInput
from duetune.fleets.driver import NodeOrder
from duetune.fleets.engine_market import EngineMarket
from duetune.fleets.fleet_file import FleetFile
from duetune.fleets.node_ledger import NodeLedger
from duetune.testing.memory_driver import MemoryDriver
from support.engines import EngineLab

FILE = FleetFile(engine="memory")


def market(driver, **fields):
    file = FleetFile(engine="memory", **fields)
    return EngineMarket(file, driver, None, driver.clock).now().slot


def one_gpu(name):
    return NodeOrder(name=name, job="other", kind=NodeKind.SPOT, command=("true",))


def test_one_free_gpu_on_each_of_two_machines_is_no_pair():
    driver = MemoryDriver(spot=4, machine_gpus=2)
    driver.start(NodeOrder(name="a", job="j", kind=NodeKind.SPOT, command=("true",), gpus=2))
    driver.start(one_gpu("b"))
    driver.forget("a")
    driver.start(one_gpu("c"))
    slot = market(driver)
    assert (slot.available, slot.free) == (2, (1, 1))
    assert (slot.in_members(2).available, slot.in_members(1).available) == (0, 2)


def test_only_whole_nodes_are_counted_if_the_engine_gives_no_others():
    driver = MemoryDriver(spot=16, machine_gpus=8)
    driver.start(one_gpu("a"))
    slot = market(driver, gpus_per_node=8, max_gpus=16)
    assert (slot.available, slot.free) == (8, (0, 8))
    assert slot.in_members(8).available == 1


def test_an_engine_that_does_not_tell_its_machines_counts_whole_nodes_of_the_sum():
    driver = MemoryDriver(spot=15)
    slot = market(driver, gpus_per_node=8, max_gpus=16)
    assert (slot.available, slot.free) == (8, None)


def test_gpus_of_a_node_that_has_just_ended_count_once():
    lab = EngineLab(spot=3)
    lab.launch("a")
    lab.launch("b")
    lab.fleet.look()
    ledger = NodeLedger(lab.pages)
    assert EngineMarket(FILE, lab.driver, ledger, lab.clock).now().slot.available == 3
    lab.driver.finish(lab.name("a"))  # the ledger learns it at the next look
    assert EngineMarket(FILE, lab.driver, ledger, lab.clock).now().slot.available == 3


def test_gpus_of_a_node_that_was_just_granted_count_before_the_ledger_knows():
    lab = EngineLab(spot=3)
    lab.launch("a")  # the engine grants it at once, the ledger learns it at the next look
    assert (
        EngineMarket(FILE, lab.driver, NodeLedger(lab.pages), lab.clock).now().slot.available == 3
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus_per_node": 0}, "gpus_per_node: 0 .* 1 or more"),
        ({"gpus_per_node": 8}, "max_gpus: 4 .* a multiple of 8, because nodes have 8 GPUs"),
        ({"gpus_per_node": 8, "max_gpus": 16, "spot_gpus": 12}, "spot_gpus: 12 .* multiple of 8"),
    ],
)
def test_a_file_whose_gpus_make_no_whole_nodes_is_refused(fields, words):
    with pytest.raises(InvalidInput, match=words):
        FleetFile(engine="slurm", **fields)

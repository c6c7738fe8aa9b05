from __future__ import annotations

import numpy as np

from duetune.core.planning import JobView, Partition, Placement, Plan, Stock
from duetune.planners.packing import Packing, placed

STOCK = Stock((Partition(name="only", gpu_model="A100-80GB", nodes=2, gpus_per_node=4),))
ONE, TWO, FOUR, EIGHT = range(4)


def view(name, shape, *nodes, **fields):
    count = STOCK.shapes[shape].gpus // len(nodes)
    place = Placement(0, tuple((node, count) for node in nodes))
    return JobView(name=name, pace=np.ones(4), remaining=1.0, held=shape, placement=place, **fields)


def waiting(name):
    return JobView(name=name, pace=np.ones(4), remaining=1.0)


def test_the_fullest_node_with_room_is_taken():
    packing = Packing(STOCK)
    assert packing.put(TWO) == Placement(0, ((0, 2),))
    assert packing.put(ONE) == Placement(0, ((0, 1),))
    assert packing.put(TWO) == Placement(0, ((1, 2),))
    assert packing.put(FOUR) is None
    assert packing.room().tolist() == [True, True, False, False]


def test_what_is_kept_must_be_free_and_there():
    packing = Packing(STOCK)
    assert packing.keep(Placement(0, ((0, 4),)))
    assert not packing.keep(Placement(0, ((0, 1),)))
    assert not packing.keep(Placement(0, ((2, 1),)))
    packing.give_back(Placement(0, ((0, 4),)))
    assert packing.room().all()


def test_who_keeps_its_shape_keeps_its_nodes():
    views = [view("a", TWO, 1), waiting("b")]
    places = placed(Plan({"a": TWO, "b": FOUR}), views, STOCK)
    assert places == {"a": Placement(0, ((1, 2),)), "b": Placement(0, ((0, 4),))}


def test_the_smallest_moves_where_it_is_in_the_way():
    views = [view("a", TWO, 0), view("b", ONE, 1), waiting("c")]
    places = placed(Plan({"a": TWO, "b": ONE, "c": FOUR}), views, STOCK)
    assert places["a"] == views[0].placement
    assert places["b"].nodes == ((0, 1),)
    assert places["c"].nodes == ((1, 4),)


def test_who_is_pinned_never_moves_and_who_has_no_room_waits():
    views = [view("a", ONE, 0, busy=True), view("b", ONE, 1, preemptible=False), waiting("c")]
    places = placed(Plan({"a": ONE, "b": ONE, "c": FOUR}), views, STOCK)
    assert places == {"a": views[0].placement, "b": views[1].placement}

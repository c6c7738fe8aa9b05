"""Placement: which nodes each job of a plan gets.

A shape smaller than a node is placed on one node; a larger shape gets whole nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.planning import Placement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from duetune.core.planning import JobView, Plan, Stock


class Packing:
    """The free GPUs of every node. Planners and ``placed`` make one for each round."""

    def __init__(self, stock: Stock) -> None:
        self.stock = stock
        self.free: list[NDArray[np.int64]] = [
            np.full(each.nodes, each.gpus_per_node, np.int64) for each in stock.partitions
        ]

    def keep(self, placement: Placement) -> bool:
        """Take exactly these GPUs; return False and take nothing if they are not all free."""
        free = self.free[placement.partition]
        if any(node >= free.size or free[node] < gpus for node, gpus in placement.nodes):
            return False
        for node, gpus in placement.nodes:
            free[node] -= gpus
        return True

    def put(self, number: int) -> Placement | None:
        """Take GPUs for shape ``number`` and return where; None if they do not fit.

        Part of a node is taken from the fullest node that has room, to keep other nodes whole.
        """
        shape = self.stock.shapes[number]
        free = self.free[shape.partition]
        size = self.stock.partitions[shape.partition].gpus_per_node
        if shape.gpus < size:
            fitting = np.flatnonzero(free >= shape.gpus)
            if not fitting.size:
                return None
            nodes: tuple[tuple[int, int], ...]
            nodes = ((int(fitting[np.argmin(free[fitting])]), shape.gpus),)
        else:
            whole = np.flatnonzero(free == size)
            if whole.size < shape.nodes:
                return None
            nodes = tuple((int(node), size) for node in whole[: shape.nodes])
        placement = Placement(shape.partition, nodes)
        self.keep(placement)
        return placement

    def give_back(self, placement: Placement) -> None:
        """Free these GPUs again."""
        for node, gpus in placement.nodes:
            self.free[placement.partition][node] += gpus

    def room(self) -> NDArray[np.bool_]:
        """Return for each shape whether ``put`` would find GPUs for it now."""
        stock = self.stock
        largest = np.array([free.max(initial=0) for free in self.free])
        sizes = np.array([each.gpus_per_node for each in stock.partitions])
        whole = np.array(
            [int(np.sum(free == size)) for free, size in zip(self.free, sizes, strict=True)]
        )
        part = stock.gpus < sizes[stock.partition]
        return np.where(
            part,
            stock.gpus <= largest[stock.partition],
            stock.gpus <= (whole * sizes)[stock.partition],
        )


def placed(plan: Plan, views: Sequence[JobView], stock: Stock) -> dict[str, Placement]:
    """Return the nodes of every job of the plan; called after each round of planning.

    A job that keeps its shape keeps its nodes. If another job then does not fit, the smallest of
    these jobs are moved; pinned jobs are never moved. A job that still does not fit gets no nodes.
    """
    wanted = {view.name: plan.shapes[view.name] for view in views if view.name in plan.shapes}
    kept = {
        view.name: view.placement
        for view in views
        if view.placement is not None and wanted.get(view.name) == view.held
    }
    pinned = {view.name for view in views if view.pinned}
    movable = sorted(
        (name for name in kept if name not in pinned), key=lambda name: -kept[name].gpus
    )
    while True:
        found = _around(kept, wanted, stock)
        if not movable or len(found) == len(wanted):
            return found
        del kept[movable.pop()]


def _around(
    kept: Mapping[str, Placement], wanted: Mapping[str, int], stock: Stock
) -> dict[str, Placement]:
    """Place the wanted jobs around the kept ones, the largest first to limit fragmentation."""
    packing = Packing(stock)
    found = {name: placement for name, placement in kept.items() if packing.keep(placement)}
    unplaced = [name for name in wanted if name not in found]
    for name in sorted(unplaced, key=lambda name: -int(stock.gpus[wanted[name]])):
        placement = packing.put(wanted[name])
        if placement is not None:
            found[name] = placement
    return found

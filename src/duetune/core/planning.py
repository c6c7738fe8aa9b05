"""Many jobs on one stock of GPUs: what a planner is told, and what it answers.

A partition is a set of like nodes. A shape is a number of its GPUs as a job may have them: a power
of two within one node, or whole nodes. Work is counted in tokens (or in steps, by whoever does).
"""

from __future__ import annotations

import functools
import math
from enum import StrEnum
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.errors import InvalidInput

MOST_NODES = 100_000


class Tenure(StrEnum):
    """How long a GPU is ours: ``fixed`` ones always, ``spot`` ones until they are taken away,
    ``on_demand`` ones for as long as they are paid for.
    """

    FIXED = "fixed"
    SPOT = "spot"
    ON_DEMAND = "on_demand"


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """``nodes`` that there are now, of at most ``most`` (as many as now if 0). ``price`` is in
    dollars per GPU and hour while a job holds it; what is owned may well cost nothing more.
    """

    name: str
    gpu_model: str
    nodes: int
    gpus_per_node: int
    tenure: Tenure = Tenure.FIXED
    price: float = 0.0
    most: int = 0

    def __post_init__(self) -> None:
        for field, least in (("nodes", 0), ("gpus_per_node", 1), ("most", 0)):
            number = getattr(self, field)
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise InvalidInput(
                    f"{self.name}.{field}", number, f"a whole number, {least} or more"
                )
        if self.nodes > MOST_NODES or self.gpus_per_node > MOST_NODES:
            field = "nodes" if self.nodes > MOST_NODES else "gpus_per_node"
            raise InvalidInput(
                f"{self.name}.{field}", getattr(self, field), f"at most {MOST_NODES}"
            )
        if self.most and self.most < self.nodes:
            raise InvalidInput(f"{self.name}.most", self.most, f"at least nodes, {self.nodes}")
        if not (math.isfinite(self.price) and self.price >= 0):
            raise InvalidInput(f"{self.name}.price", self.price, "dollars, zero or more")

    @property
    def gpus(self) -> int:
        """There now."""
        return self.nodes * self.gpus_per_node

    @property
    def most_nodes(self) -> int:
        return self.most or self.nodes


class Shape(NamedTuple):
    """``gpus`` in all, on ``nodes`` nodes of partition number ``partition``: part of one node, or
    all of each.
    """

    partition: int
    nodes: int
    gpus: int


class Stock(msgspec.Struct, frozen=True, dict=True):
    """All GPUs that a planner may give to jobs. ``quotas`` are the most GPUs that the jobs of a
    project may hold at once; projects without one are not limited.
    """

    partitions: tuple[Partition, ...]
    quotas: dict[str, int] = {}

    def __post_init__(self) -> None:
        names = [each.name for each in self.partitions]
        if not names:
            raise InvalidInput("partitions", names, "at least one")
        if len(set(names)) != len(names):
            raise InvalidInput("partitions", names, "different names")
        for project, most in self.quotas.items():
            if isinstance(most, bool) or not isinstance(most, int) or most < 0:
                raise InvalidInput(f"quotas.{project}", most, "a whole number of GPUs, 0 or more")

    @functools.cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """All that jobs may have, partition by partition, the smallest first: 1, 2, 4, ... GPUs of
        a node, a whole node, and two and more nodes. The same whatever is there now.
        """
        return tuple(
            shape
            for number, each in enumerate(self.partitions)
            for shape in _shapes(number, each.most_nodes, each.gpus_per_node)
        )

    @functools.cached_property
    def alike(self) -> dict[tuple[str, int, int], list[int]]:
        """Numbers of the shapes by type of GPU, GPUs and nodes: what a configuration needs."""
        found: dict[tuple[str, int, int], list[int]] = {}
        for number, shape in enumerate(self.shapes):
            gpu = self.partitions[shape.partition].gpu_model
            found.setdefault((gpu, shape.gpus, shape.nodes), []).append(number)
        return found

    @functools.cached_property
    def gpus(self) -> NDArray[np.int64]:
        """Of each shape."""
        return np.array([shape.gpus for shape in self.shapes], np.int64)

    @functools.cached_property
    def partition(self) -> NDArray[np.int64]:
        """Of each shape."""
        return np.array([shape.partition for shape in self.shapes], np.int64)

    @functools.cached_property
    def price(self) -> NDArray[np.float64]:
        """Of each shape, all its GPUs together, in dollars per hour."""
        prices = np.array([each.price for each in self.partitions])
        return np.asarray(prices[self.partition] * self.gpus, np.float64)

    @functools.cached_property
    def capacity(self) -> NDArray[np.int64]:
        """GPUs that are there now, by partition."""
        return np.array([each.gpus for each in self.partitions], np.int64)

    @functools.cached_property
    def there(self) -> NDArray[np.bool_]:
        """Shapes for which there are nodes enough now."""
        nodes = np.array([each.nodes for each in self.partitions], np.int64)
        need = np.array([shape.nodes for shape in self.shapes], np.int64)
        return np.asarray(need <= nodes[self.partition], np.bool_)

    def shape(self, partition: int, gpus: int) -> int | None:
        """The number of the shape with so many GPUs, if jobs may have it."""
        found = np.flatnonzero((self.partition == partition) & (self.gpus == gpus))
        return int(found[0]) if found.size else None


def _shapes(partition: int, nodes: int, gpus_per_node: int) -> list[Shape]:
    if nodes == 0:
        return []
    part = [2**power for power in range(gpus_per_node.bit_length()) if 2**power < gpus_per_node]
    within = [Shape(partition, 1, gpus) for gpus in (*part, gpus_per_node)]
    return within + [
        Shape(partition, count, count * gpus_per_node) for count in range(2, nodes + 1)
    ]


class Placement(msgspec.Struct, frozen=True):
    """Which nodes of a partition, and how many GPUs of each."""

    partition: int
    nodes: tuple[tuple[int, int], ...]

    @property
    def gpus(self) -> int:
        return sum(count for _, count in self.nodes)


class JobView(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """All that a planner may know of a job.

    ``pace`` is what it is believed to do in a second, by shape of the stock: 0 where it cannot run
    or must not. ``remaining`` is the work left, ``age_s`` the time since it was submitted.
    ``held`` is the shape it has, -1 if none, and ``placement`` the nodes. ``busy`` until a start
    or a restart is through: it then keeps what it has. One that is not ``preemptible`` keeps it
    always. To start costs ``start_s`` without work, to be moved ``restart_s``; ``restarts`` were
    there. Jobs with the higher ``priority`` come first. ``deadline_s`` is from now, negative once
    it has passed.
    """

    name: str
    pace: NDArray[np.float64]
    remaining: float
    age_s: float = 0.0
    held: int = -1
    placement: Placement | None = None
    busy: bool = False
    preemptible: bool = True
    restarts: int = 0
    start_s: float = 0.0
    restart_s: float = 0.0
    priority: int = 0
    project: str = ""
    deadline_s: float | None = None

    @property
    def pinned(self) -> bool:
        """Whether it must keep what it has."""
        return self.held >= 0 and (self.busy or not self.preemptible)


class Plan(msgspec.Struct, frozen=True):
    """The shape of each job that is to have GPUs, by number; the others wait. ``reasons`` say why,
    for as many as there is something to say of.
    """

    shapes: dict[str, int] = {}
    reasons: dict[str, str] = {}

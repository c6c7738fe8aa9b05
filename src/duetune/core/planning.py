"""What a planner is given (``JobView``, ``Stock``) and what it returns (``Plan``).

A planner shares one stock of GPUs among many jobs. A partition is a set of identical nodes. A shape
is a number of its GPUs that a job may hold: a power of two within one node, or whole nodes. Work is
counted in tokens or in steps; the caller chooses one unit for all jobs.
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
    """The way a GPU is held, which says how long it stays.

    ``fixed``: always. ``spot``: until it is taken away. ``on_demand``: as long as it is paid for.
    """

    FIXED = "fixed"
    SPOT = "spot"
    ON_DEMAND = "on_demand"


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A set of identical nodes.

    ``nodes``: how many there are now.
    ``most``: how many there can be; 0 means as many as now.
    ``price``: dollars per GPU-hour while a job holds the GPU; 0 for GPUs that are already paid.
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
        """Return the number of GPUs that there are now."""
        return self.nodes * self.gpus_per_node

    @property
    def most_nodes(self) -> int:
        """Return the largest number of nodes that there can be."""
        return self.most or self.nodes


class DeclaredGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of GPU that a cluster file declares, for worlds of a user's own paces.

    - ``memory_gb``: what needs more memory runs out of it; None means that everything fits.
    - ``price``: dollars per GPU-hour.
    - ``like``, ``speed``: if the paces have none of this GPU, those of the GPU ``like`` count for
      it, at ``speed`` times their value.
    """

    memory_gb: float | None = None
    price: float = 0.0
    like: str = ""
    speed: float = 1.0

    def __post_init__(self) -> None:
        for field in ("memory_gb", "speed"):
            number = getattr(self, field)
            if number is not None and not (math.isfinite(number) and number > 0):
                raise InvalidInput(field, number, "a number above 0")
        if not (math.isfinite(self.price) and self.price >= 0):
            raise InvalidInput("price", self.price, "dollars, zero or more")


class Shape(NamedTuple):
    """``gpus`` GPUs in all on ``nodes`` nodes of a partition: part of one node, or whole nodes."""

    partition: int
    nodes: int
    gpus: int


class Stock(msgspec.Struct, frozen=True, dict=True):
    """All GPUs that a planner may give to jobs.

    ``quotas``: the most GPUs that the jobs of a project may hold together; a project without an
    entry is not limited. Arrays have one entry per shape unless said otherwise.
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
        """Return all shapes that jobs may have, by partition, the smallest first.

        They are 1, 2, 4, ... GPUs of a node, a whole node, and two or more nodes. They do not
        depend on how many nodes there are now.
        """
        return tuple(
            shape
            for number, each in enumerate(self.partitions)
            for shape in _shapes(number, each.most_nodes, each.gpus_per_node)
        )

    @functools.cached_property
    def alike(self) -> dict[tuple[str, int, int], list[int]]:
        """Return the shape numbers for each GPU model, number of GPUs and number of nodes."""
        found: dict[tuple[str, int, int], list[int]] = {}
        for number, shape in enumerate(self.shapes):
            gpu = self.partitions[shape.partition].gpu_model
            found.setdefault((gpu, shape.gpus, shape.nodes), []).append(number)
        return found

    @functools.cached_property
    def gpus(self) -> NDArray[np.int64]:
        """Return the number of GPUs of each shape."""
        return np.array([shape.gpus for shape in self.shapes], np.int64)

    @functools.cached_property
    def partition(self) -> NDArray[np.int64]:
        """Return the partition number of each shape."""
        return np.array([shape.partition for shape in self.shapes], np.int64)

    @functools.cached_property
    def price(self) -> NDArray[np.float64]:
        """Return the dollars per hour of each shape, all its GPUs together."""
        prices = np.array([each.price for each in self.partitions])
        return np.asarray(prices[self.partition] * self.gpus, np.float64)

    @functools.cached_property
    def capacity(self) -> NDArray[np.int64]:
        """Return the number of GPUs that there are now, by partition."""
        return np.array([each.gpus for each in self.partitions], np.int64)

    @functools.cached_property
    def there(self) -> NDArray[np.bool_]:
        """Return for each shape whether there are enough nodes now."""
        nodes = np.array([each.nodes for each in self.partitions], np.int64)
        need = np.array([shape.nodes for shape in self.shapes], np.int64)
        return np.asarray(need <= nodes[self.partition], np.bool_)

    def shape(self, partition: int, gpus: int) -> int | None:
        """Return the number of the shape with ``gpus`` GPUs; None if there is none."""
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
    """The nodes that a job holds: pairs of a node number of the partition and a number of GPUs."""

    partition: int
    nodes: tuple[tuple[int, int], ...]

    @property
    def gpus(self) -> int:
        """Return the number of GPUs on all nodes."""
        return sum(count for _, count in self.nodes)


class JobView(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Everything that a planner may know about a job.

    ``pace``: estimated work per second for each shape of the stock; 0 where it cannot or must not
    run.
    ``remaining``: work that is left.
    ``age_s``: seconds since the job was submitted.
    ``held``: number of the shape that it holds; -1 if none. ``placement`` names the nodes.
    ``busy``: a start or restart is in progress; the job keeps its shape until that is over.
    ``preemptible``: False means that the job keeps its shape until it ends.
    ``rigid``: the number of its GPUs is fixed; only their model may be chosen.
    ``restarts``: how often it was restarted.
    ``most_gpus``: the most GPUs with which it has ever run; 0 before it has run.
    ``attained_gpu_s``: seconds for which it held GPUs, times the number of GPUs.
    ``start_s``, ``restart_s``: seconds without work after a start and after a move.
    ``priority``: jobs of higher priority come first.
    ``deadline_s``: seconds until the deadline; negative once it has passed.
    """

    name: str
    pace: NDArray[np.float64]
    remaining: float
    age_s: float = 0.0
    held: int = -1
    placement: Placement | None = None
    busy: bool = False
    preemptible: bool = True
    rigid: bool = False
    restarts: int = 0
    most_gpus: int = 0
    attained_gpu_s: float = 0.0
    start_s: float = 0.0
    restart_s: float = 0.0
    priority: int = 0
    project: str = ""
    deadline_s: float | None = None

    @property
    def pinned(self) -> bool:
        """Return whether the job must keep the shape that it holds."""
        return self.held >= 0 and (self.busy or not self.preemptible)


class Plan(msgspec.Struct, frozen=True):
    """The shape number of each job that gets GPUs; jobs that are not listed wait.

    ``reasons`` gives the planner's reason for some of the jobs.
    """

    shapes: dict[str, int] = {}
    reasons: dict[str, str] = {}

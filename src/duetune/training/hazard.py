"""The rate at which nodes are lost, and the checkpoint interval that follows from it.

Frequent saves cost time; rare saves lose more work when a node is lost. Young (1974): with C
seconds per save and a mean of M seconds between losses, save every sqrt(2 C M) seconds. Daly (2006)
refines this for the case that M is not much longer than C.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path


def checkpoint_interval(
    save_s: float,
    mean_time_between_losses_s: float | None,
    *,
    every: float | None = None,
    least: float = 5.0,
    most: float = 1800.0,
) -> float:
    """Return the seconds of training between two saves, within [``least``, ``most``].

    ``every`` is the user's own interval and is returned unchanged. If the mean time between losses
    is not known (None), the result is ``most``.
    """
    if every is not None:
        if not every > 0:
            raise InvalidInput("every", every, "a number of seconds above 0")
        return every
    if not 0 < least <= most:
        raise InvalidInput("least", least, f"above 0 and at most {most}")
    if not save_s >= 0:
        raise InvalidInput("save_s", save_s, "a number of seconds from 0 on")
    mean = mean_time_between_losses_s
    if mean is None or not math.isfinite(mean):
        return most
    if not mean > 0:
        raise InvalidInput("mean_time_between_losses_s", mean, "a number of seconds above 0")
    return min(max(daly_interval(save_s, mean), least), most)


def young_interval(save_s: float, mean_s: float) -> float:
    """Return Young's interval sqrt(2 C M) in seconds."""
    return math.sqrt(2 * save_s * mean_s)


def daly_interval(save_s: float, mean_s: float) -> float:
    """Return Daly's higher-order interval in seconds; M if a save takes 2 M or longer."""
    ratio = save_s / (2 * mean_s)
    if ratio >= 1:
        return mean_s
    correction = 1 + math.sqrt(ratio) / 3 + ratio / 9
    return young_interval(save_s, mean_s) * correction - save_s


class Hazard(msgspec.Struct, frozen=True):
    """The estimated loss rate of nodes: Poisson losses with a Gamma prior.

    - ``losses``, ``node_s``: observed losses in so many node-seconds.
    - ``prior_losses``, ``prior_node_s``: the prior in the same units. The default is one loss in
      eight node-hours, which matters little after a few observed losses.
    """

    losses: int = 0
    node_s: float = 0.0
    prior_losses: float = 1.0
    prior_node_s: float = 8 * 3600.0

    def __post_init__(self) -> None:
        for field in ("losses", "node_s"):
            if not getattr(self, field) >= 0:
                raise InvalidInput(field, getattr(self, field), "a number from 0 on")
        for field in ("prior_losses", "prior_node_s"):
            if not getattr(self, field) > 0:
                raise InvalidInput(field, getattr(self, field), "a number above 0")

    def seen(self, losses: int, node_s: float) -> Hazard:
        """Return the estimate after ``losses`` more losses in ``node_s`` more node-seconds."""
        return msgspec.structs.replace(
            self, losses=self.losses + losses, node_s=self.node_s + node_s
        )

    @property
    def rate(self) -> float:
        """Return the expected losses per node-second."""
        return (self.prior_losses + self.losses) / (self.prior_node_s + self.node_s)

    def mean_time_between_losses_s(self, nodes: int = 1) -> float:
        """Return the mean time in seconds until one of ``nodes`` is lost."""
        if nodes < 1:
            raise InvalidInput("nodes", nodes, "a whole number from 1 on")
        return 1 / (self.rate * nodes)


class _HazardDocument(msgspec.Struct, frozen=True):
    mean_time_between_losses_s: float


def write_hazard(path: Path, mean_time_between_losses_s: float) -> None:
    """Replace the hazard file of a job. The controller calls this; the workers read the file."""
    write_whole(path, msgspec.json.encode(_HazardDocument(mean_time_between_losses_s)))


def read_hazard(path: Path) -> float | None:
    """Return the mean seconds between losses; None if the file is missing or not valid."""
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_HazardDocument)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    seconds = document.mean_time_between_losses_s
    return seconds if math.isfinite(seconds) and seconds > 0 else None

"""How often nodes are lost, and how often to save because of it.

Saving often costs time, saving seldom costs the work since the last save. Young (1974): with C
seconds per save and M seconds between losses, save every sqrt(2 C M) seconds. Daly (2006) refines
it for losses that come nearly as often as saves take.
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
    """Seconds of training between two saves, within [``least``, ``most``].

    ``every`` is the user's own choice and is taken as it is. With no known time between losses
    (None) the answer is ``most``.
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
    return math.sqrt(2 * save_s * mean_s)


def daly_interval(save_s: float, mean_s: float) -> float:
    """Daly's higher-order estimate; M itself where a save takes longer than two M."""
    ratio = save_s / (2 * mean_s)
    if ratio >= 1:
        return mean_s
    correction = 1 + math.sqrt(ratio) / 3 + ratio / 9
    return young_interval(save_s, mean_s) * correction - save_s


class Hazard(msgspec.Struct, frozen=True):
    """Losses per node-second, learnt from what was seen: Poisson losses, Gamma prior.

    The prior counts as ``prior_losses`` seen in ``prior_node_s``, by default one loss in eight
    hours of one node, so it has little to say after a few real losses.
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
        """With ``losses`` more in ``node_s`` more node-seconds."""
        return msgspec.structs.replace(
            self, losses=self.losses + losses, node_s=self.node_s + node_s
        )

    @property
    def rate(self) -> float:
        """Expected losses per node and second."""
        return (self.prior_losses + self.losses) / (self.prior_node_s + self.node_s)

    def mean_time_between_losses_s(self, nodes: int = 1) -> float:
        """Seconds until one of ``nodes`` is lost, on average."""
        if nodes < 1:
            raise InvalidInput("nodes", nodes, "a whole number from 1 on")
        return 1 / (self.rate * nodes)


class _HazardDocument(msgspec.Struct, frozen=True):
    mean_time_between_losses_s: float


def write_hazard(path: Path, mean_time_between_losses_s: float) -> None:
    """Replace the hazard file; readers see the old or the new one."""
    write_whole(path, msgspec.json.encode(_HazardDocument(mean_time_between_losses_s)))


def read_hazard(path: Path) -> float | None:
    """Mean seconds between losses; None where the file is absent or holds something else."""
    try:
        mean = msgspec.json.decode(path.read_bytes(), type=_HazardDocument)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    seconds = mean.mean_time_between_losses_s
    return seconds if math.isfinite(seconds) and seconds > 0 else None

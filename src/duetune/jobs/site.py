"""What a fleet sells, and what it is like to train there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from duetune.core.job import MAX_GPUS
from duetune.errors import InvalidInput
from duetune.knowledge.facts.gpus import Gpu, gpu_name, gpu_named

if TYPE_CHECKING:
    from duetune.settings import SiteSettings

CPU = "CPU"


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where jobs run. All GPUs are alike, one to a node. Times here are wall seconds.

    ``speed`` is market seconds per wall second. A change of the group costs all of it ``grow_s``,
    ``shrink_s`` or, after a loss, ``preempted_s``; the first start of a job takes ``startup_s``.
    ``emulated_microbatch_s``: every microbatch takes so long, whatever runs it.
    ``memory_gb`` overrides the data sheet; what neither knows is not checked.
    ``network_gb_s``: gigabytes per second between two nodes. ``software`` is what trains there, in
    the words of the configurations that were measured with it. ``limit`` is the setting that keeps
    ``max_gpus`` below what the fleet has, if one does.
    """

    accelerator: str = CPU
    memory_gb: float | None = None
    max_gpus: int = 4
    speed: float = 1.0
    startup_s: float = 3.0
    grow_s: float = 2.0
    shrink_s: float = 1.0
    preempted_s: float = 1.5
    emulated_microbatch_s: float | None = None
    network_gb_s: float = 5.0
    software: str = ""
    limit: str = ""

    @classmethod
    def of(cls, settings: SiteSettings, software: str = "") -> Site:
        """As it is set up."""
        return cls(
            accelerator=settings.accelerator or CPU,
            memory_gb=settings.memory_gb,
            max_gpus=settings.max_gpus,
            speed=settings.speed,
            startup_s=settings.startup_s,
            grow_s=settings.resize_s,
            shrink_s=settings.resize_s,
            preempted_s=settings.startup_s,
            emulated_microbatch_s=settings.emulated_microbatch_s,
            software=software,
        )

    def __post_init__(self) -> None:
        if not 1 <= self.max_gpus <= MAX_GPUS:
            raise InvalidInput("site.max_gpus", self.max_gpus, f"1 to {MAX_GPUS}")
        for field in ("memory_gb", "speed", "emulated_microbatch_s", "network_gb_s"):
            number = getattr(self, field)
            if number is not None and not (math.isfinite(number) and number > 0):
                raise InvalidInput(f"site.{field}", number, "a positive number")
        for field in ("startup_s", "grow_s", "shrink_s", "preempted_s"):
            seconds = getattr(self, field)
            if not (math.isfinite(seconds) and seconds >= 0):
                raise InvalidInput(f"site.{field}", seconds, "seconds, zero or more")

    def within(self, gpus: int, limit: str) -> Site:
        """With no more than ``gpus``, since the setting ``limit`` says so."""
        if gpus >= self.max_gpus:
            return self
        return msgspec.structs.replace(self, max_gpus=gpus, limit=limit)

    @property
    def gpu(self) -> Gpu | None:
        return gpu_named(self.accelerator)

    @property
    def gpu_model(self) -> str:
        """The name that knowledge has for the GPU; its own if it has none."""
        return gpu_name(self.accelerator) or self.accelerator

    @property
    def measurable(self) -> bool:
        """Whether what was measured elsewhere says anything of the pace here."""
        return self.gpu is not None and self.emulated_microbatch_s is None

    @property
    def memory(self) -> float | None:
        """Gigabytes of one GPU, if they are known."""
        if self.memory_gb is not None:
            return self.memory_gb
        return None if self.gpu is None else self.gpu.memory_gb

    @property
    def memory_cap_gb(self) -> float:
        """Where less of a GPU may be used than it has, or its name says nothing of it; else 0."""
        gpu = self.gpu
        if self.memory_gb is None or (gpu is not None and self.memory_gb >= gpu.memory_gb):
            return 0.0
        return self.memory_gb

    def sells(self, name: str) -> bool:
        """Whether a wish for ``name`` is met: ``A100`` is by an A100-80GB, too."""
        wish, have = name.casefold(), self.accelerator.casefold()
        return have == wish or have.startswith(f"{wish}-")

"""What GPUs a fleet has, and what it costs in time to train there."""

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
    """Where jobs run. All GPUs are the same. Times are wall seconds.

    - ``speed`` is market seconds per wall second.
    - ``grow_s``, ``shrink_s`` and ``preempted_s`` are what a change of the group costs all its
      GPUs; ``startup_s`` is the first start of a job.
    - ``emulated_microbatch_s`` makes every microbatch take this long, on any hardware.
    - ``memory_gb`` overrides the data sheet. Memory that is unknown is not checked.
    - ``network_gb_s`` is gigabytes per second between two nodes.
    - ``software`` is what trains there, as written in measured configurations.
    - ``gpus_per_node`` is set if the fleet gives only whole nodes of so many GPUs.
    - ``limit`` names the setting that keeps ``max_gpus`` below what the fleet has, if any.
    """

    accelerator: str = CPU
    memory_gb: float | None = None
    max_gpus: int = 4
    gpus_per_node: int | None = None
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
        """Return the site that the settings describe."""
        return cls(
            accelerator=settings.accelerator or CPU,
            memory_gb=settings.memory_gb,
            max_gpus=settings.max_gpus,
            gpus_per_node=settings.gpus_per_node,
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
        """Return the site with at most ``gpus`` GPUs, because the setting ``limit`` says so."""
        if gpus >= self.max_gpus:
            return self
        return msgspec.structs.replace(self, max_gpus=gpus, limit=limit)

    @property
    def gpu(self) -> Gpu | None:
        """The data sheet of the GPU; None if there is none."""
        return gpu_named(self.accelerator)

    @property
    def gpu_model(self) -> str:
        """The name of the GPU in configuration knowledge; its own name if it has none there."""
        return gpu_name(self.accelerator) or self.accelerator

    @property
    def measurable(self) -> bool:
        """Whether measurements from elsewhere say anything about the speed here."""
        return self.gpu is not None and self.emulated_microbatch_s is None

    @property
    def memory(self) -> float | None:
        """Gigabytes of one GPU; None if unknown."""
        if self.memory_gb is not None:
            return self.memory_gb
        return None if self.gpu is None else self.gpu.memory_gb

    @property
    def memory_cap_gb(self) -> float:
        """The memory limit in GB, if it is below the data sheet or there is none; else 0."""
        gpu = self.gpu
        if self.memory_gb is None or (gpu is not None and self.memory_gb >= gpu.memory_gb):
            return 0.0
        return self.memory_gb

    def sells(self, name: str) -> bool:
        """Return whether the site has the GPU ``name``; an A100-80GB also counts as an A100."""
        asked, here = name.casefold(), self.accelerator.casefold()
        return here == asked or here.startswith(f"{asked}-")

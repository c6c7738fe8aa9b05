"""What a fleet sells, and what it is like to train there."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from duetune.core.job import MAX_GPUS
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

CPU = "CPU"


class Gpu(msgspec.Struct, frozen=True):
    """From its data sheet: memory, and dense 16-bit matrix arithmetic without sparsity."""

    memory_gb: float
    tflops: float
    bf16: bool = True


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "P100": Gpu(16, 18.7, bf16=False),
        "V100": Gpu(16, 125, bf16=False),
        "V100-32GB": Gpu(32, 125, bf16=False),
        "T4": Gpu(16, 65, bf16=False),
        "RTX3090": Gpu(24, 71),
        "A10": Gpu(24, 125),
        "A10G": Gpu(24, 70),
        "A40": Gpu(48, 149.7),
        "A6000": Gpu(48, 154.8),
        "A100": Gpu(40, 312),
        "A100-40GB": Gpu(40, 312),
        "A100-80GB": Gpu(80, 312),
        "L4": Gpu(24, 121),
        "L40": Gpu(48, 181),
        "L40S": Gpu(48, 362),
        "RTX4090": Gpu(24, 165.2),
        "RTX5090": Gpu(32, 209.5),
        "RTX6000-Ada": Gpu(48, 364),
        "H100": Gpu(80, 989),
        "H100-SXM": Gpu(80, 989),
        "H200": Gpu(141, 989),
        "GH200": Gpu(96, 989),
        "B200": Gpu(180, 2250),
        "MI300X": Gpu(192, 1307),
    }
)
_BY_NAME = {name.casefold(): gpu for name, gpu in GPUS.items()}


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where jobs run. All GPUs are alike, one to a node. Times here are wall seconds.

    ``speed`` is market seconds per wall second. A change of the group costs all of it ``grow_s``,
    ``shrink_s`` or, after a loss, ``preempted_s``; the first start of a job takes ``startup_s``.
    ``emulated_microbatch_s``: every microbatch takes so long, whatever runs it.
    ``memory_gb`` and ``gpu_tflops`` override the data sheet; what neither knows is not checked.
    ``network_gb_s``: gigabytes per second between two nodes.
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
    gpu_tflops: float | None = None
    network_gb_s: float = 5.0

    def __post_init__(self) -> None:
        if not 1 <= self.max_gpus <= MAX_GPUS:
            raise InvalidInput("site.max_gpus", self.max_gpus, f"1 to {MAX_GPUS}")
        for field in (
            *("memory_gb", "speed", "emulated_microbatch_s", "gpu_tflops", "network_gb_s"),
        ):
            number = getattr(self, field)
            if number is not None and not (math.isfinite(number) and number > 0):
                raise InvalidInput(f"site.{field}", number, "a positive number")
        for field in ("startup_s", "grow_s", "shrink_s", "preempted_s"):
            seconds = getattr(self, field)
            if not (math.isfinite(seconds) and seconds >= 0):
                raise InvalidInput(f"site.{field}", seconds, "seconds, zero or more")

    @property
    def gpu(self) -> Gpu | None:
        return _BY_NAME.get(self.accelerator.casefold())

    @property
    def memory(self) -> float | None:
        """Gigabytes of one GPU, if they are known."""
        if self.memory_gb is not None:
            return self.memory_gb
        return None if self.gpu is None else self.gpu.memory_gb

    @property
    def tflops(self) -> float | None:
        if self.gpu_tflops is not None:
            return self.gpu_tflops
        return None if self.gpu is None else self.gpu.tflops

    def sells(self, name: str) -> bool:
        """Whether a wish for ``name`` is met: ``A100`` is by an A100-80GB, too."""
        wish, have = name.casefold(), self.accelerator.casefold()
        return have == wish or have.startswith(f"{wish}-")

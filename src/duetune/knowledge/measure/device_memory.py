"""The memory of the device under test, and how a smaller card is emulated on it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from duetune.knowledge.measure.worker_messages import Trial


class DeviceMemory:
    """Of one GPU. Of a CPU nothing is known: all numbers are 0 and there are no caps."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._gpu = device.type == "cuda"
        self.total = 0
        if self._gpu:
            self.total = int(torch.cuda.get_device_properties(device).total_memory)
            # The first matrix product makes the context as large as it will be.
            square = torch.ones(64, 64, device=device, dtype=torch.bfloat16)
            (square @ square).sum().item()

    @property
    def known(self) -> bool:
        return self._gpu

    @property
    def allocated(self) -> int:
        return int(torch.cuda.memory_allocated(self._device)) if self._gpu else 0

    @property
    def context(self) -> int:
        """Used on the device, but not by torch's allocator."""
        if not self._gpu:
            return 0
        free, total = torch.cuda.mem_get_info(self._device)
        return max(0, total - free - torch.cuda.memory_reserved(self._device))

    @property
    def peak_allocated(self) -> int:
        return int(torch.cuda.max_memory_allocated(self._device)) if self._gpu else 0

    @property
    def peak_reserved(self) -> int:
        return int(torch.cuda.max_memory_reserved(self._device)) if self._gpu else 0

    def wait(self) -> None:
        if self._gpu:
            torch.cuda.synchronize(self._device)

    def settle(self) -> None:
        """After the model is built: what is there now is not searched for garbage any more, which
        would take longer than a step of a small model.
        """
        self.release()
        gc.freeze()

    def release(self, *, everything: bool = False) -> None:
        """Gives back all that nothing refers to."""
        if everything:
            gc.unfreeze()
        gc.collect()
        if self._gpu:
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()

    def restart(self, trial: Trial) -> bool:
        """Begins to count anew, under the trial's cap; False: what is there already exceeds it."""
        if not self._gpu:
            return True
        limit = self.total
        if trial.cap_bytes:
            limit = min(self.total, max(0, trial.cap_bytes - self.context))
        torch.cuda.set_per_process_memory_fraction(limit / self.total, self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return int(torch.cuda.memory_reserved(self._device)) <= limit

    def lift_cap(self) -> None:
        if self._gpu:
            torch.cuda.set_per_process_memory_fraction(1.0, self._device)

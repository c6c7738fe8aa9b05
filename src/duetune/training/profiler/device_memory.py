"""The memory of the measured device."""

from __future__ import annotations

import gc

import torch


class DeviceMemory:
    """Counters of one GPU's memory. On a CPU all numbers are 0."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._gpu = device.type == "cuda"
        self.total = 0
        if self._gpu:
            self.total = int(torch.cuda.get_device_properties(device).total_memory)
            # The first matrix product brings the context to its final size.
            square = torch.ones(64, 64, device=device, dtype=torch.bfloat16)
            (square @ square).sum().item()

    @property
    def known(self) -> bool:
        """Return whether the device is a GPU, whose memory can be read."""
        return self._gpu

    @property
    def allocated(self) -> int:
        """Return the bytes that tensors use now."""
        return int(torch.cuda.memory_allocated(self._device)) if self._gpu else 0

    @property
    def context(self) -> int:
        """Return the bytes that are used on the device, but not by torch's allocator."""
        if not self._gpu:
            return 0
        free, total = torch.cuda.mem_get_info(self._device)
        return max(0, total - free - torch.cuda.memory_reserved(self._device))

    @property
    def peak_allocated(self) -> int:
        """Return the most bytes that tensors used since ``restart``."""
        return int(torch.cuda.max_memory_allocated(self._device)) if self._gpu else 0

    @property
    def peak_reserved(self) -> int:
        """Return the most bytes that torch's allocator reserved since ``restart``."""
        return int(torch.cuda.max_memory_reserved(self._device)) if self._gpu else 0

    def wait(self) -> None:
        """Wait until the GPU has finished its work; called before the clock is read."""
        if self._gpu:
            torch.cuda.synchronize(self._device)

    def settle(self) -> None:
        """Exclude the objects that exist now from garbage collection; called after the model is
        built.

        A collection over all of them would take longer than a step of a small model.
        """
        self.release()
        gc.freeze()

    def release(self, *, everything: bool = False) -> None:
        """Free all memory that nothing refers to; ``everything`` includes what ``settle``
        excluded.
        """
        if everything:
            gc.unfreeze()
        gc.collect()
        if self._gpu:
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()

    def restart(self) -> None:
        """Forget the peaks of the trial before."""
        if self._gpu:
            torch.cuda.reset_peak_memory_stats(self._device)

"""The order of the training examples as a pure function of seed and epoch.

The samplers of transformers and TRL draw from random states that depend on how often they were
used. Members that join late or begin again would then read other examples than the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import Sampler

from duetune.training.language_model import seeded

if TYPE_CHECKING:
    from collections.abc import Iterator


class EpochOrder(Sampler[int]):
    """The examples in the order that ``sampler`` draws with the random state of (seed, epoch)."""

    def __init__(self, sampler: Sampler[int], seed: int) -> None:
        self._sampler = sampler
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; called by the data loader."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Return the number of examples of an epoch."""
        return len(self._sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        """Iterate over the examples of the epoch."""
        state = np.random.SeedSequence([self._seed, self._epoch]).generate_state(1, np.uint32)
        number = int(state[0])
        generator = getattr(self._sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(number)
        with seeded(number, torch.device("cpu")):
            drawn = list(self._sampler)
        return iter(drawn)

"""All that is trained, as one vector: parameters, gradients and the optimiser's moments.

One vector is what travels between members, what is added up, and what a checkpoint holds; the
parameters of the model are views into it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


class FlatParameters:
    """The trainable parameters of a model; those that decay come first."""

    def __init__(self, model: torch.nn.Module) -> None:
        named = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        ]
        # As in transformers: neither biases nor the scales of normalisations decay.
        named.sort(key=lambda pair: pair[1].ndim < 2)
        self._parameters = [parameter for _, parameter in named]
        sizes = [parameter.numel() for parameter in self._parameters]
        self.decaying = sum(
            parameter.numel() for parameter in self._parameters if parameter.ndim >= 2
        )
        self.layout = _layout(named)
        device = self._parameters[0].device
        self.values = torch.empty(sum(sizes), dtype=torch.float32, device=device)
        for parameter, place in zip(self._parameters, torch.split(self.values, sizes), strict=True):
            place.copy_(parameter.data.flatten())
            parameter.data = place.view_as(parameter.data)

    @property
    def size(self) -> int:
        return self.values.numel()

    def collect_into(self, row: torch.Tensor) -> None:
        """From now on the gradients of a backward pass are added to ``row``."""
        begin = 0
        for parameter in self._parameters:
            place = row[begin : begin + parameter.numel()]
            parameter.grad = place.view_as(parameter)
            begin += parameter.numel()

    def forget_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def _layout(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """States with another layout are of another task."""
    seen = hashlib.sha256()
    for name, parameter in named:
        seen.update(f"{name}:{tuple(parameter.shape)}\n".encode())
    return seen.hexdigest()[:16]

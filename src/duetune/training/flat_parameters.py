"""The trained parameters of a model as one vector, and the gradients that are collected for it."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

import torch

from duetune.training.language_model import TRAINED_VALUE
from duetune.training.task import OptimiserName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class FlatParameters:
    """The trainable parameters of a model as one vector; those with weight decay come first.

    One vector is easy to sum, to send to another member and to save. The parameters of the model
    become views into it. With ``computed_in`` they become views into a copy in that type instead,
    which saves the casts of every layer; ``refresh`` renews the copy.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optim: OptimiserName = OptimiserName.ADAMW_TORCH,
        computed_in: torch.dtype | None = None,
    ) -> None:
        named = trainable(model)
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self.decaying = sum(
            parameter.numel() for parameter in self._parameters if parameter.ndim >= 2
        )
        self.layout = layout_of(named, optim)
        self.size = self.whole_size = sum(parameter.numel() for parameter in self._parameters)
        self.values = torch.cat([parameter.data.flatten() for parameter in self._parameters])
        self._copy: torch.Tensor | None = None
        self._gradient: torch.Tensor | None = None
        if computed_in not in {None, self.values.dtype}:
            self._copy = self.values.to(computed_in)
            self._gradient = torch.zeros_like(self._copy)
        used = self.values if self._copy is None else self._copy
        both = zip(self.views(self.values), self.views(used), strict=True)
        for parameter, ((_, value), (_, place)) in zip(self._parameters, both, strict=True):
            parameter.data = place
            if self._copy is not None:
                # What is saved in the end is the vector, not its copy.
                setattr(parameter, TRAINED_VALUE, value)

    def views(self, vector: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield names and parts of a vector like ``values``, in the shapes of the parameters."""
        begin = 0
        for name, parameter in zip(self._names, self._parameters, strict=True):
            yield name, vector[begin : begin + parameter.numel()].view(parameter.shape)
            begin += parameter.numel()

    @contextlib.contextmanager
    def collecting_into(self, row: torch.Tensor) -> Iterator[None]:
        """Add the gradients of the backward passes inside the block to ``row``."""
        place = row if self._gradient is None else self._gradient.zero_()
        for parameter, (_, part) in zip(self._parameters, self.views(place), strict=True):
            parameter.grad = part
        yield
        if self._gradient is not None:
            row += self._gradient
        for parameter in self._parameters:
            parameter.grad = None

    def refresh(self) -> None:
        """Renew the copy with which the model computes. Called whenever ``values`` has changed."""
        if self._copy is not None:
            self._copy.copy_(self.values)


def trainable(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the trainable parameters; those with weight decay come first."""
    named = [pair for pair in model.named_parameters() if pair[1].requires_grad]
    # As in transformers, biases and the scales of normalisation layers do not decay.
    return sorted(named, key=lambda pair: pair[1].ndim < 2)


def layout_of(named: Iterable[tuple[str, torch.Tensor]], optim: OptimiserName) -> str:
    """Return a digest of names, shapes and the kind of optimiser state; states of another layout
    belong to another task.
    """
    seen = hashlib.sha256()
    for name, parameter in named:
        narrow = "" if parameter.dtype == torch.float32 else f":{parameter.dtype}"
        seen.update(f"{name}:{tuple(parameter.shape)}{narrow}\n".encode())
    if "adamw_torch" not in optim:
        seen.update(optim.replace("_bnb", "").encode())
    return seen.hexdigest()[:16]

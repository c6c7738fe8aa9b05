"""The trained parameters of a model as one vector, and the gradients that are collected for it."""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from typing import TYPE_CHECKING

import torch

from duetune.training.language_model import precision

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from duetune.training.task import TrainingTask

# A loss in 16 bits: digits of base 4, of which so many are after the point.
_DIGITS, _FRACTION = 16, 10


class FlatParameters:
    """The trainable parameters of a model as one vector; those with weight decay come first.

    One vector is easy to sum, to send to another member and to save. The parameters of the model
    become views into it, or into a copy in bfloat16 if that is what the model computes in: then
    neither weights nor activations are converted in every layer, and small updates are not lost.
    """

    def __init__(self, model: torch.nn.Module, task: TrainingTask) -> None:
        named = trainable(model)
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self.decaying = sum(
            parameter.numel() for parameter in self._parameters if parameter.ndim >= 2
        )
        self.layout = layout_of(named, task)
        device = self._parameters[0].device
        self.size = self.whole_size = sum(parameter.numel() for parameter in self._parameters)
        dtype = torch.bfloat16 if task.trained_in_bf16 else torch.float32
        self.values = torch.empty(self.size, dtype=dtype, device=device)
        for parameter, (_, place) in zip(self._parameters, self.views(self.values), strict=True):
            place.copy_(parameter.data)
        self._copy: torch.Tensor | None = None
        self._places: dict[torch.Tensor, torch.Tensor] = {}
        # DoRA computes norms of its weights in 32 bits.
        narrow = precision(task) is torch.bfloat16 and dtype is torch.float32
        if narrow and not task.use_dora:
            self._copy = self.values.to(torch.bfloat16)
            # The model may be used for another vector later; this one must not stay in memory.
            add_up = weakref.WeakMethod(self._add_up)
            for parameter in self._parameters:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda parameter: (found := add_up()) and found(parameter)
                )
        self._point_into(self.values if self._copy is None else self._copy)

    def views(self, vector: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield names and parts of a vector like ``values``, in the shapes of the parameters."""
        begin = 0
        for name, parameter in zip(self._names, self._parameters, strict=True):
            yield name, vector[begin : begin + parameter.numel()].view(parameter.shape)
            begin += parameter.numel()

    @contextlib.contextmanager
    def collecting_into(self, row: torch.Tensor) -> Iterator[None]:
        """Add the gradients of the backward passes inside the block to ``row``."""
        for parameter, (_, place) in zip(self._parameters, self.views(row), strict=True):
            if self._copy is None:
                parameter.grad = place
            else:
                self._places[parameter] = place
        try:
            yield
        finally:
            self._places.clear()
            for parameter in self._parameters:
                parameter.grad = None

    def refresh(self) -> None:
        """Bring the model up to date. Called whenever ``values`` have changed."""
        if self._copy is not None:
            self._copy.copy_(self.values)

    def let_go(self) -> None:
        """Give the model parameters of its own, in the type of ``values``; training is over."""
        for parameter, (_, place) in zip(self._parameters, self.views(self.values), strict=True):
            # Tensors that share memory would look like tied weights.
            parameter.data = place.clone()

    def _point_into(self, vector: torch.Tensor) -> None:
        for parameter, (_, place) in zip(self._parameters, self.views(vector), strict=True):
            parameter.data = place

    def _add_up(self, parameter: torch.Tensor) -> None:
        """Add the gradient of a parameter in float32, and free it; torch calls this."""
        place = self._places.get(parameter)
        if place is not None and parameter.grad is not None:
            place.add_(parameter.grad)
            parameter.grad = None


def trainable(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the trainable parameters; those with weight decay come first."""
    named = [pair for pair in model.named_parameters() if pair[1].requires_grad]
    # As in transformers, biases and the scales of normalisation layers do not decay.
    return sorted(named, key=lambda pair: pair[1].ndim < 2)


def layout_of(named: Iterable[tuple[str, torch.Tensor]], task: TrainingTask) -> str:
    """Return a digest of names, shapes and the kind of optimiser state; states of another layout
    belong to another task.
    """
    seen = hashlib.sha256()
    narrow = f":{torch.bfloat16}" if task.trained_in_bf16 else ""
    for name, parameter in named:
        seen.update(f"{name}:{tuple(parameter.shape)}{narrow}\n".encode())
    if "adamw_torch" not in task.optim:
        seen.update(task.optim.replace("_bnb", "").encode())
    return seen.hexdigest()[:16]


def loss_columns(loss: torch.Tensor | float, like: torch.Tensor) -> torch.Tensor:
    """Return a loss as numbers that can be added up beside gradients of the type of ``like``.

    In 16 bits a sum would have three digits. So the loss is written with base 4 in fixed point;
    the sum of each digit over up to 85 parts has 8 bits, which bfloat16 keeps.
    """
    value = torch.as_tensor(loss, dtype=torch.float32, device=like.device)
    if like.dtype == torch.float32:
        return value.reshape(1)
    places = 4.0 ** torch.arange(_DIGITS, device=like.device)
    digits = torch.floor((value * 4.0**_FRACTION) / places) % 4
    return torch.where(value.isfinite(), digits, torch.nan).to(like.dtype)


def loss_of(columns: torch.Tensor) -> float:
    """Return the loss of added columns."""
    if columns.dtype == torch.float32:
        return float(columns[0])
    places = 4.0 ** torch.arange(_DIGITS, dtype=torch.float64, device=columns.device)
    return float((columns.double() * places).sum() / 4.0**_FRACTION)

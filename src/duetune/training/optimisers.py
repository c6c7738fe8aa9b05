"""The optimiser of a task over the flat vector of trained parameters, and its state as arrays.

Optimisers of torch and bitsandbytes see the vector in two long pieces, with and without weight
decay, or more where bitsandbytes needs shorter ones. Adafactor factors matrices, so it sees one
piece per parameter. Arrays of the state are named ``PIECE.NAME``; there are none before the first
update. Checkpoints of sharded models have all pieces of a part in one array.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

import torch
import transformers

from duetune.errors import MissingExtra
from duetune.training.task import OptimiserName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from duetune.training.task import TrainingTask

    _Groups = list[dict[str, object]]

_STEP = "step"
# Adafactor computes it anew in every update.
_NOT_KEPT = frozenset((_STEP, "RMS"))
# Kernels of bitsandbytes count the elements of a piece in 32 bits.
LONGEST = 2**30
_BITS = {
    OptimiserName.ADAMW_8BIT: "AdamW8bit",
    OptimiserName.ADAMW_BNB_8BIT: "AdamW8bit",
    OptimiserName.PAGED_ADAMW_8BIT: "PagedAdamW8bit",
    OptimiserName.PAGED_ADAMW_32BIT: "PagedAdamW32bit",
    OptimiserName.LION_32BIT: "Lion32bit",
    OptimiserName.LION_8BIT: "Lion8bit",
    OptimiserName.PAGED_LION_32BIT: "PagedLion32bit",
    OptimiserName.PAGED_LION_8BIT: "PagedLion8bit",
}
"""The classes of bitsandbytes."""


class FlatVector(Protocol):
    """The trained parameters as one vector: the first ``decaying`` elements have weight decay."""

    values: torch.Tensor
    decaying: int

    def views(self, vector: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield names and parts of a vector like ``values``, in the shapes of the parameters."""


class FlatOptimiser:
    """The optimiser of ``task`` over ``flat``, whose values it changes in place."""

    def __init__(self, task: TrainingTask, flat: FlatVector) -> None:
        self._name = task.optim
        self._flat = flat
        self._pieces: dict[str, torch.Tensor] = {}
        groups: _Groups = []
        for name, part, decays in self._split(flat.values):
            self._pieces[name] = torch.nn.Parameter(part)
            decay = task.weight_decay if decays else 0.0
            groups.append({"params": [self._pieces[name]], "weight_decay": decay})
        self._optimiser = _made(task, groups, flat.values.device)

    def apply(self, gradient: torch.Tensor, learning_rate: float) -> None:
        """Do one update with ``gradient``, a vector like the parameters."""
        for name, part, _ in self._split(gradient):
            self._pieces[name].grad = part
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

    def arrays(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the state, by name; not copies."""
        if "paged" in self._name and self._flat.values.is_cuda:
            # Both CPU and GPU write to the memory of paged states.
            torch.cuda.synchronize()
        return {
            f"{name}.{key}": value
            for name, piece in self._pieces.items()
            for key, value in self._optimiser.state.get(piece, {}).items()
            if key not in _NOT_KEPT and value is not None
        }

    def load(self, arrays: Mapping[str, torch.Tensor], updates: int) -> None:
        """Replace the state by arrays of the same optimiser after ``updates`` updates; others are
        ignored.
        """
        self._optimiser.state.clear()
        if not updates:
            return
        for number, (name, piece) in enumerate(self._pieces.items()):
            found = self._of_piece(name, piece.numel(), arrays)
            state = self._optimiser.state[piece]
            if self._name in _BITS:
                # Only bitsandbytes itself can allocate the memory of paged states.
                group = self._optimiser.param_groups[number]
                self._optimiser.init_state(group, piece, number, 0)  # type: ignore[attr-defined]
                for key, array in found.items():
                    state[key] = state[key].copy_(array) if key in state else array.to(piece.device)
                state[_STEP] = updates
                continue
            state.update({key: array.to(piece.device) for key, array in found.items()})
            if self._name is OptimiserName.ADAFACTOR:
                state.update({_STEP: updates, "RMS": 0})
            elif self._name is not OptimiserName.SGD:
                # The fused kernels read the number of steps on the device.
                device = piece.device if self._optimiser.defaults["fused"] else "cpu"
                state[_STEP] = torch.tensor(float(updates), device=device)

    def _of_piece(
        self, name: str, length: int, arrays: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the arrays of one piece, by their own names."""
        part, number = part_of(name) if self._name in _BITS else (name, 0)
        found = {}
        for key, array in arrays.items():
            owner, _, own = key.rpartition(".")
            if owner == part and "32bit" in self._name and array.numel() > length:
                found[own] = array[number * LONGEST : number * LONGEST + length]
            elif owner == name:
                found[own] = array
        return found

    def _split(self, vector: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Yield the pieces of a vector: name, part, whether it has weight decay."""
        if self._name is OptimiserName.ADAFACTOR:
            for name, view in self._flat.views(vector):
                yield name, view, view.ndim >= 2
            return
        border = self._flat.decaying
        for name, part in (("decaying", vector[:border]), ("other", vector[border:])):
            longest = LONGEST if self._name in _BITS else max(1, part.numel())
            for number, piece in enumerate(torch.split(part, longest)):
                if piece.numel():
                    yield f"{name}{number or ''}", piece, name == "decaying"


def part_of(piece: str) -> tuple[str, int]:
    """Return the part of the vector to which a piece belongs, and the number of the piece."""
    part = piece.rstrip("0123456789")
    return part, int(piece[len(part) :] or 0)


def joined_name(name: str) -> str:
    """Return the name of the array that has all pieces of the one with this name."""
    piece, dot, own = name.partition(".")
    return f"{part_of(piece)[0]}{dot}{own}"


def joined(arrays: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the state of an optimiser that treats every element by itself, one array per part."""
    pieces: dict[str, dict[int, torch.Tensor]] = {}
    for name, array in arrays.items():
        number = part_of(name.partition(".")[0])[1]
        pieces.setdefault(joined_name(name), {})[number] = array
    return {
        name: torch.cat([found[number] for number in sorted(found)]) if len(found) > 1 else found[0]
        for name, found in pieces.items()
    }


def _made(task: TrainingTask, groups: _Groups, device: torch.device) -> torch.optim.Optimizer:
    """Return the optimiser, made as transformers' Trainer makes it."""
    rate, betas = task.learning_rate, (task.adam_beta1, task.adam_beta2)
    if task.optim is OptimiserName.SGD:
        return torch.optim.SGD(groups, lr=rate)
    if task.optim is OptimiserName.ADAFACTOR:
        made = transformers.optimization.Adafactor(  # type: ignore[no-untyped-call]
            groups, lr=rate, scale_parameter=False, relative_step=False
        )
        return cast("torch.optim.Optimizer", made)
    if task.optim in _BITS:
        try:
            library = importlib.import_module("bitsandbytes.optim")
        except ImportError as error:
            raise MissingExtra(f"optim: {task.optim}", "quantised") from error
        # Only a GPU has memory that can be paged out.
        name = _BITS[task.optim].removeprefix("" if device.type == "cuda" else "Paged")
        kind = getattr(library, name)
        options = {} if "lion" in task.optim else {"eps": task.adam_epsilon}
        return cast("torch.optim.Optimizer", kind(groups, lr=rate, betas=betas, **options))
    fused = device.type == "cuda" or task.optim is OptimiserName.ADAMW_TORCH_FUSED
    return torch.optim.AdamW(
        groups, lr=rate, betas=betas, eps=task.adam_epsilon, foreach=False, fused=fused
    )

"""Loads the model of a member with several processes once: process 0 reads it for all.

It copies weights and buffers, one after another, into memory that all processes share. The others
build the model without weights and use that memory until each has taken its shard (``sharding``).
So the host holds one copy of the model and not one per process.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import torch

from duetune.errors import InvalidInput

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator

    from duetune.training.language_model import LanguageModel
    from duetune.training.siblings import Siblings

_log = logging.getLogger(__name__)

_POLL_S = 0.02
# The memory begins with the length of the list of tensors, which is 0 until all is there.
_HEAD, _ALIGNED = 8, 64


class _Tensor(msgspec.Struct, frozen=True):
    """One tensor of the model, and where it begins after the list of tensors."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int


class _Slot(NamedTuple):
    """A tensor of a model, and the dictionary of its module in which it stands."""

    name: str
    tensors: dict[str, torch.Tensor | None]
    key: str
    tensor: torch.Tensor


@contextlib.contextmanager
def loaded_once(
    siblings: Siblings, load: Callable[[], LanguageModel], outline: Callable[[], LanguageModel]
) -> Iterator[LanguageModel]:
    """Yield the model in every process of the member; all enter and leave at once.

    ``load`` returns the model on the CPU, ``outline`` the same model on the meta device. Inside the
    block the weights lie in shared memory, of which every process copies what it keeps.
    """
    if siblings.place == 0:
        siblings.shared_memory(_HEAD)[:_HEAD] = bytes(_HEAD)
        siblings.sums(0.0)
        model = load()
        _share(model, siblings)
    else:
        siblings.sums(0.0)
        found = _filled(outline, siblings)
        model = load() if found is None else found
    yield model
    siblings.sums(0.0)
    if siblings.place == 0:
        siblings.free_memory()


def _share(model: torch.nn.Module, siblings: Siblings) -> None:
    """Move the tensors of ``model`` into shared memory, and tell the others that they are there."""
    slots = list({id(slot.tensor): slot for slot in _slots(model)}.values())
    sizes = [_whole(slot.tensor.numel() * slot.tensor.itemsize) for slot in slots]
    begins = [0, *itertools.accumulate(sizes)]
    listed = [
        _Tensor(slot.name, str(slot.tensor.dtype), tuple(slot.tensor.shape), begin)
        for slot, begin in zip(slots, begins[:-1], strict=True)
    ]
    text = msgspec.json.encode(listed)
    memory = siblings.shared_memory(_whole(_HEAD + len(text)) + begins[-1])
    memory[_HEAD : _HEAD + len(text)] = text
    for slot, place in zip(slots, listed, strict=True):
        view = _view(memory, place, len(text))
        view.copy_(slot.tensor.detach())
        if isinstance(slot.tensor, torch.nn.Parameter):
            # What the tensor had before is freed here, and not after all were copied.
            slot.tensor.data = view
    memory[:_HEAD] = len(text).to_bytes(_HEAD, "little")


def _filled(outline: Callable[[], LanguageModel], siblings: Siblings) -> LanguageModel | None:
    """Return the model with the tensors of process 0; None if only process 0's way can make it."""
    try:
        model: LanguageModel | None = outline()
    except (InvalidInput, RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        _log.warning("every process loads the whole model: %s", error)
        model = None
    head = siblings.shared_memory(_HEAD)
    # Process 0 may have to download the model first. If it ends, this process ends with it.
    while not (length := int.from_bytes(head[:_HEAD], "little")):
        time.sleep(_POLL_S)
    if model is None:
        return None
    text = siblings.shared_memory(_HEAD + length)[_HEAD:]
    listed = {each.name: each for each in msgspec.json.decode(text, type=list[_Tensor])}
    ends = [each.begin + _whole(_view_bytes(each)) for each in listed.values()]
    memory = siblings.shared_memory(_whole(_HEAD + length) + max(ends, default=0))
    known: dict[int, torch.Tensor] = {}
    for slot in list(_slots(model)):
        if (found := known.get(id(slot.tensor))) is None:
            if (place := listed.get(slot.name)) is None:
                _log.warning("every process loads the whole model: %s is not there", slot.name)
                return None
            view = _view(memory, place, length)
            trained = slot.tensor.requires_grad
            is_parameter = isinstance(slot.tensor, torch.nn.Parameter)
            # Buffers are not sharded, and stay when the memory is used for something else.
            found = (
                torch.nn.Parameter(view, requires_grad=trained) if is_parameter else view.clone()
            )
            known[id(slot.tensor)] = found
        slot.tensors[slot.key] = found
    if any(
        isinstance(value, torch.Tensor) and value.is_meta
        for module in model.modules()
        for value in vars(module).values()
    ):
        _log.warning("every process loads the whole model: it has tensors besides its weights")
        return None
    return model


def _slots(model: torch.nn.Module) -> Iterator[_Slot]:
    """Yield all parameters and buffers; one that stands at several places comes several times."""
    for prefix, module in model.named_modules():
        for tensors in (module._parameters, module._buffers):  # noqa: SLF001 - ties need the places
            for key, tensor in tensors.items():
                if tensor is not None:
                    yield _Slot(f"{prefix}.{key}", tensors, key, tensor)


def _view(memory: mmap.mmap, place: _Tensor, listed: int) -> torch.Tensor:
    """Return a tensor in shared memory, behind a list of ``listed`` bytes."""
    dtype, count = _dtype(place), math.prod(place.shape)
    if not count:
        return torch.empty(place.shape, dtype=dtype)
    begin = _whole(_HEAD + listed) + place.begin
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=begin).view(place.shape)


def _view_bytes(place: _Tensor) -> int:
    return math.prod(place.shape) * _dtype(place).itemsize


def _dtype(place: _Tensor) -> torch.dtype:
    found: torch.dtype = getattr(torch, place.dtype.removeprefix("torch."))
    return found


def _whole(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED

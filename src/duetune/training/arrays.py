"""Tensors as bytes and back, by safetensors: no pickle, so loading runs no code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.errors import MissingExtra

try:
    from safetensors import SafetensorError
    from safetensors.torch import load, save
except ImportError as error:
    raise MissingExtra("saving tensors", "train") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

SHARD_BYTES = 256 << 20


def encoded(arrays: Mapping[str, torch.Tensor], shard_bytes: int = SHARD_BYTES) -> Iterator[bytes]:
    """Files of at most ``shard_bytes`` each, or of one tensor, so that memory for them is bounded.

    Tensors that share memory are written out each for itself.
    """
    shard: dict[str, torch.Tensor] = {}
    memory: set[int] = set()
    size = 0
    for name, array in arrays.items():
        if shard and size + array.nbytes > shard_bytes:
            yield save(shard)
            shard, memory, size = {}, set(), 0
        plain = array.detach().to("cpu").contiguous()
        if plain.untyped_storage().data_ptr() in memory:
            plain = plain.clone()
        memory.add(plain.untyped_storage().data_ptr())
        shard[name] = plain
        size += array.nbytes
    yield save(shard)


def decoded(content: bytes) -> dict[str, torch.Tensor]:
    try:
        return load(content)
    except SafetensorError as error:
        raise ValueError(str(error)) from error

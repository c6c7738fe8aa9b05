"""The tensors in a model's safetensors files: their names and shapes, read from the headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_HEADER = 100_000_000


class _Tensor(msgspec.Struct, frozen=True):
    shape: tuple[int, ...]


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor by name; empty if there are no weights or they cannot be
    read. ``model_facts`` counts parameters with it, and plans look for LoRA layers.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if not 0 < length <= _LONGEST_HEADER:
                    return {}
                header = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
            header.pop("__metadata__", None)
            shapes |= {
                name: msgspec.json.decode(tensor, type=_Tensor).shape
                for name, tensor in header.items()
            }
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}
    return shapes

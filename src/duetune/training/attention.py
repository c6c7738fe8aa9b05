"""Attention over rows that are laid end to end: no token sees a token of another row.

On CUDA this is torch's varlen attention, which reads the borders of rows. Elsewhere, and for
what varlen attention lacks, every row is computed by itself. transformers calls it under the name
``PACKED``.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import msgspec
import torch
from torch.nn import functional
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

PACKED = "duetune_packed"

_LOW_PRECISION = (torch.bfloat16, torch.float16)
_MOST_HEAD_DIM = 256


class Variant(msgspec.Struct, frozen=True):
    """What differs between models: the scale of scores, their cap, a window of tokens, dropout,
    and sinks (a learned score per head that no token has).
    """

    scale: float
    dropout: float = 0.0
    softcap: float | None = None
    window: int | None = None
    sinks: torch.Tensor | None = None


class RowBorders(msgspec.Struct, frozen=True):
    """The borders of the rows of a microbatch, built once and read by all layers."""

    lengths: tuple[int, ...]
    cumulative: torch.Tensor

    @classmethod
    def of(cls, lengths: NDArray[np.int64], device: torch.device) -> RowBorders:
        """Return the borders of rows of these lengths."""
        ends = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        ends[1:] = torch.from_numpy(lengths).cumsum(0)
        return cls(tuple(lengths.tolist()), ends.to(device, non_blocking=True))

    @property
    def arguments(self) -> dict[str, torch.Tensor | int | tuple[int, ...]]:
        """The keyword arguments of a model's forward, by the names of transformers."""
        longest = max(self.lengths)
        return {
            "cu_seq_lens_q": self.cumulative,
            "cu_seq_lens_k": self.cumulative,
            "max_length_q": longest,
            "max_length_k": longest,
            "row_lengths": self.lengths,
        }


def register_attention() -> None:
    """Make ``PACKED`` known to transformers; calling it again is harmless."""
    ALL_ATTENTION_FUNCTIONS.register(PACKED, packed_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(PACKED, packed_mask)


def has_varlen(
    head_dim: int, dtype: torch.dtype, device: torch.device, *, windowed: bool = False
) -> bool:
    """Return whether torch's varlen attention can compute this."""
    if device.type != "cuda" or dtype not in _LOW_PRECISION or head_dim > _MOST_HEAD_DIM:
        return False
    found = _varlen()
    return found is not None and (not windowed or "window_size" in found[1])


def packed_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    **options: object,
) -> torch.Tensor | None:
    """Return what ``packed_attention`` needs as a mask: nothing, or the size of a sliding window.

    A batch that is padded comes with ``attention_mask`` and gets the usual mask.
    """
    if attention_mask is not None:
        usual = cast("Callable[..., torch.Tensor | None]", sdpa_mask)
        options |= {"attention_mask": attention_mask, "local_size": local_size}
        return usual(batch_size, q_length, kv_length, **options)
    if local_size is None or q_length <= local_size:
        return None
    # Some models tell the size of the window to the mask only. A number on the CPU is read
    # without waiting for the GPU.
    return torch.full((1, 1, 1, 1), local_size, dtype=torch.int64)


def packed_attention(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    row_lengths: tuple[int, ...] | None = None,
    **_others: object,
) -> tuple[torch.Tensor, None]:
    """Return the attention of every row with itself; transformers calls this in every layer.

    Without borders of rows the batch is a usual one.
    """
    window, mask = sliding_window, attention_mask
    if mask is not None and mask.dtype == torch.int64:
        window, mask = int(mask), None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    variant = Variant(scale, dropout, softcap, window, s_aux)
    if row_lengths is None or cu_seq_lens_q is None or max_length_q is None or mask is not None:
        if query.shape[-2] != key.shape[-2]:
            raise NotImplementedError("duetune's attention is for training, without a cache")
        return _attended(query, key, value, mask, variant).transpose(1, 2).contiguous(), None
    size = query.shape[-1]
    plain = softcap is None and s_aux is None and not dropout and size == value.shape[-1]
    if plain and has_varlen(size, query.dtype, query.device, windowed=window is not None):
        return _by_borders(query, key, value, cu_seq_lens_q, max_length_q, variant), None
    lengths = list(row_lengths)
    queries, keys, values = (torch.split(each, lengths, dim=2) for each in (query, key, value))
    rows = zip(queries, keys, values, strict=True)
    found = torch.cat([_attended(*row, mask=None, variant=variant) for row in rows], dim=2)
    return found.transpose(1, 2).contiguous(), None


def _by_borders(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    borders: torch.Tensor,
    longest: int,
    variant: Variant,
) -> torch.Tensor:
    varlen, names = _varlen() or (None, frozenset())
    if varlen is None:
        raise RuntimeError("torch has no varlen attention")
    options: dict[str, float | bool | tuple[int, int]] = {}
    if "scale" in names:
        options["scale"] = variant.scale
    else:
        query = query * (variant.scale * query.shape[-1] ** 0.5)
    if "enable_gqa" in names:
        options["enable_gqa"] = query.shape[1] != key.shape[1]
    if "window_size" in names:
        # A token counts itself among the tokens of its window.
        before = -1 if variant.window is None else variant.window - 1
        options["window_size"] = (before, 0)
    else:
        options["is_causal"] = True
    query, key, value = (each.transpose(1, 2).squeeze(0) for each in (query, key, value))
    found = varlen(query, key, value, borders, borders, longest, longest, **options)
    return found.unsqueeze(0)


def _attended(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    variant: Variant,
) -> torch.Tensor:
    """Return causal attention of a batch; ``mask`` replaces the causal mask and the window."""
    length, window = query.shape[-2], variant.window
    groups = query.shape[1] // key.shape[1]
    plain = variant.softcap is None and variant.sinks is None
    if mask is None and (not plain or (window is not None and window < length)):
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
        if window is not None:
            mask = mask.triu(1 - window)
    if plain:
        return functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=variant.dropout,
            is_causal=mask is None,
            scale=variant.scale,
            enable_gqa=groups > 1,
        )
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    scores = query @ key.transpose(-1, -2) * variant.scale
    if variant.softcap is not None:
        scores = variant.softcap * torch.tanh(scores / variant.softcap)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    if variant.sinks is not None:
        sinks = variant.sinks.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return functional.dropout(weights[..., : key.shape[-2]], variant.dropout) @ value


@lru_cache(maxsize=1)
def _varlen() -> tuple[Callable[..., torch.Tensor], frozenset[str]] | None:
    """Return torch's function and the names of its arguments; None if torch is too old."""
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - torch 2.10 and later
    except ImportError:
        return None
    names = frozenset(inspect.signature(varlen_attn).parameters)
    function = cast("Callable[..., torch.Tensor]", varlen_attn)
    return (function, names) if names & {"window_size", "is_causal"} else None

"""The loss over the vocabulary in pieces, and Liger's fused kernels where they can be used.

The logits of a long microbatch would need more memory than the model. So the head is computed only
for tokens whose next token counts, a piece at a time.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    Head = Callable[[torch.Tensor], torch.Tensor]

# Logits that exist at once: 1 GiB in float32.
MOST_LOGITS = 2**28


def apply_liger(model: torch.nn.Module, model_type: str) -> str:
    """Use Liger's norms, rotary embedding and gated layers in this model.

    Return "" if that was done, otherwise the reason why not. The loss is ``fused_loss``.
    """
    if importlib.util.find_spec("liger_kernel") is None:
        return "liger-kernel is not installed"
    import liger_kernel.transformers.monkey_patch as liger  # noqa: PLC0415 - needs CUDA

    if model_type not in liger.MODEL_TYPE_TO_APPLY_LIGER_FN:
        return f"Liger does not know models of type {model_type}"
    try:
        liger._apply_liger_kernel_to_instance(  # noqa: SLF001 - the entry that transformers uses
            model=model, cross_entropy=False, fused_linear_cross_entropy=False
        )
    except Exception as error:  # noqa: BLE001 - without Liger, training is only slower
        return " ".join(f"Liger refuses it: {error}".split())[:160]
    return ""


def fused_loss(head: torch.nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the summed loss by Liger's fused head and cross-entropy."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss  # noqa: PLC0415

    loss = LigerFusedLinearCrossEntropyLoss(reduction="sum")
    found: torch.Tensor = loss(head.weight, hidden.to(head.weight.dtype), targets, head.bias)
    return found


def loss_in_pieces(
    head: Head, hidden: torch.Tensor, targets: torch.Tensor, vocabulary: int
) -> torch.Tensor:
    """Return the summed loss; logits exist for one piece at a time, also in the backward pass."""
    rows = max(1, MOST_LOGITS // vocabulary)
    if len(targets) <= rows:
        return summed(head(hidden), targets)
    total = torch.zeros((), device=hidden.device)
    for part, wanted in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):

        def piece(part: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return summed(head(part), wanted)

        total = total + checkpoint(piece, part, wanted, use_reentrant=False)
    return total


def summed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy, summed over all targets."""
    return functional.cross_entropy(logits.float(), targets, reduction="sum")

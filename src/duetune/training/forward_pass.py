"""How a model is called in training: packed or padded rows, which attention, which head.

The fastest way that is right is chosen once, when the model is loaded, by trying it on the model
itself: the outputs must be those of rows computed alone, and no row may influence another one. A
model with unknown layers therefore gets a slower way, and never a wrong result.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Protocol, cast

import msgspec
import numpy as np
import torch

from duetune.training.attention import (
    PACKED,
    RowBorders,
    has_varlen,
    register_attention,
)
from duetune.training.kernels import apply_liger, fused_loss, loss_in_pieces, summed
from duetune.training.packed_rows import PackedRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from duetune.training.kernels import Head
    from duetune.training.task import TrainingTask

    class Output(Protocol):
        """The part of a model's output that is used here."""

        logits: torch.Tensor

    class CausalModel(torch.nn.Module):
        """The part of a causal language model of transformers that is used here."""

        config: _Config

        def get_base_model(self) -> CausalModel: ...

        def get_input_embeddings(self) -> torch.nn.Module: ...

        def get_output_embeddings(self) -> torch.nn.Module | None: ...

        def set_attn_implementation(self, name: str) -> None: ...


class _Config(Protocol):
    model_type: str


_ATTRIBUTE = "duetune_forward_pass"
_KNOWN_LAYERS = frozenset({"full_attention", "sliding_attention"})
# Lengths of the rows with which a way is tried, and by how much outputs may differ.
_TRIED = (7, 3, 5)
_TOLERANCE, _LOW_TOLERANCE = 1e-3, 0.1
_PROBE = 1024.0


class ForwardPass(msgspec.Struct, frozen=True):
    """The chosen way.

    - ``packed``: rows are laid end to end; otherwise they are padded.
    - ``split``: the loss is computed in place of the head, for the tokens that count; otherwise by
      the model's own head, because the model does more with its output.
    - ``keeps``: the model's forward takes ``logits_to_keep``.
    - ``fused``: Liger computes the loss.
    - ``notes``: what was chosen and why, for the log and for ``status``.
    """

    packed: bool = False
    split: bool = False
    keeps: bool = False
    fused: bool = False
    notes: tuple[str, ...] = ()


def forward_pass_of(model: torch.nn.Module) -> ForwardPass:
    """Return the way that was chosen for a model; padded rows if none was."""
    found = getattr(model, _ATTRIBUTE, None)
    return found if isinstance(found, ForwardPass) else ForwardPass()


def choose_forward_pass(
    model: torch.nn.Module,
    task: TrainingTask,
    device: torch.device,
    dtype: torch.dtype | None,
    *,
    sharded: bool = False,
) -> ForwardPass:
    """Choose the way, prepare the model for it, and return it. Called once per loaded model.

    Adapters may be added afterwards: the way is found through them. A ``sharded`` model gets no
    fused loss: that was never tried.
    """
    register_attention()
    causal = causal_model(model)
    trained = model.training
    model.eval()
    try:
        with torch.no_grad(), _computing_in(model, device, dtype):
            chosen = _chosen(causal, task, device, dtype, sharded=sharded)
    finally:
        model.train(trained)
    setattr(model, _ATTRIBUTE, chosen)
    return chosen


def counted_loss(
    model: torch.nn.Module, rows: PackedRows, device: torch.device, dtype: torch.dtype | None
) -> torch.Tensor:
    """Return the summed loss of the tokens that count, computed in the way chosen for ``model``."""
    way = forward_pass_of(model)
    targets = torch.from_numpy(rows.targets).to(device, non_blocking=True)
    with _computing_in(model, device, dtype):
        causal = causal_model(model)
        if not way.split:
            return summed(_logits(causal, way, rows, device), targets)
        head = causal.get_output_embeddings()

        def loss(forward: Head, hidden: torch.Tensor) -> torch.Tensor:
            if way.fused and type(head) is torch.nn.Linear:
                return fused_loss(head, hidden, targets)
            return loss_in_pieces(forward, hidden, targets, _vocabulary(causal))

        return _in_place_of_head(causal, rows, device, loss, packed=way.packed)


def _computing_in(
    model: torch.nn.Module, device: torch.device, dtype: torch.dtype | None
) -> torch.autocast:
    """Return a context that computes in ``dtype``. Weights that have it already need no casts."""
    kinds = {each.dtype for each in model.parameters() if each.is_floating_point()}
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None and kinds != {dtype})


def _chosen(
    model: CausalModel,
    task: TrainingTask,
    device: torch.device,
    dtype: torch.dtype | None,
    *,
    sharded: bool,
) -> ForwardPass:
    rows = _sample(_vocabulary(model), seed=0)
    way = ForwardPass(
        split=_head_is_plain(model, rows, device),
        keeps="logits_to_keep" in inspect.signature(model.forward).parameters,
    )
    right = _outputs(model, way, rows, device)
    fused, note = _with_liger(model, task, device)
    own_head = "loss: the model's own head, because the model changes its output"
    others = tuple(words for words in ("" if way.split else own_head, note) if words)
    way = msgspec.structs.replace(way, fused=fused and way.split and not sharded)
    usual = getattr(model.config, "_attn_implementation", None)
    packed, given = msgspec.structs.replace(way, packed=True), task.attn_implementation
    reason = _foreign_layers(model.config) or _failure(model, packed, rows, right, device, given)
    if not reason:
        kind = right.dtype if dtype is None else dtype
        words = f"attention: {given}, packed rows" if given else _words(model, kind, device)
        return msgspec.structs.replace(packed, notes=(words, *others))
    if isinstance(usual, str):
        model.set_attn_implementation(usual)
    words = f"attention: padded rows, because {reason}"
    return msgspec.structs.replace(way, notes=(words, *others))


def _failure(
    model: CausalModel,
    way: ForwardPass,
    rows: PackedRows,
    right: torch.Tensor,
    device: torch.device,
    given: str | None,
) -> str:
    """Return why this way is not right for the model; "" if it is.

    Attention that was ``given`` is kept. That of transformers finds rows by their positions.
    """
    try:
        if given is None:
            model.set_attn_implementation(PACKED)
        if getattr(model.config, "_attn_implementation", None) != (given or PACKED):
            return "the model's attention cannot be replaced"
        found = _outputs(model, way, rows, device)
        # The same lengths with another first row: the other rows must not notice.
        other = _sample(_vocabulary(model), seed=1)
        ids = np.concatenate((other.ids[: _TRIED[0]], rows.ids[_TRIED[0] :]))
        beside = _outputs(model, way, msgspec.structs.replace(rows, ids=ids), device)
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
        return " ".join(f"the model refuses it: {error}".split())[:160]
    low = found.dtype != torch.float32 or torch.is_autocast_enabled(device.type)
    tolerance = _LOW_TOLERANCE if low else _TOLERANCE
    # Written so that a difference that is not a number fails.
    if not _difference(found[_TRIED[0] :], beside[_TRIED[0] :]) < tolerance / 10:
        return "rows that are laid end to end influence each other"
    if not _difference(found, right) < tolerance:
        return "its outputs differ from those of padded rows"
    return ""


def _outputs(
    model: CausalModel, way: ForwardPass, rows: PackedRows, device: torch.device
) -> torch.Tensor:
    """Return the hidden states of all tokens of the rows, or their logits, in one order."""
    every = msgspec.structs.replace(rows, predicting=np.arange(len(rows.ids)))
    if way.split:
        return hidden_states(model, every, device, packed=way.packed)
    return _logits(model, way, every, device)


def hidden_states(
    model: CausalModel, rows: PackedRows, device: torch.device, *, packed: bool
) -> torch.Tensor:
    """Return the hidden states of the tokens that predict one that counts."""
    return _in_place_of_head(model, rows, device, lambda _, hidden: hidden, packed=packed)


def _in_place_of_head(
    model: CausalModel,
    rows: PackedRows,
    device: torch.device,
    compute: Callable[[Head, torch.Tensor], torch.Tensor],
    *,
    packed: bool,
) -> torch.Tensor:
    """Call the model with ``compute`` in place of its head, and return what that returns.

    ``compute`` is given the head and the hidden states of the tokens that predict one that counts.
    It runs inside of the model's forward, where the weights of a sharded model are together.
    """
    head = cast("torch.nn.Module", model.get_output_embeddings())
    inputs, places = _inputs(rows, device, packed=packed)
    forward = head.forward
    known = vars(head).get("forward")
    head.forward = lambda hidden: compute(forward, hidden.flatten(0, 1).index_select(0, places))
    try:
        return cast("Output", model(**inputs, use_cache=False)).logits
    finally:
        if known is None:
            del head.forward
        else:
            head.forward = known


def _logits(
    model: torch.nn.Module, way: ForwardPass, rows: PackedRows, device: torch.device
) -> torch.Tensor:
    """Return the logits of the tokens that predict one that counts, by the model's own head."""
    inputs, places = _inputs(rows, device, packed=way.packed)
    if way.keeps and way.packed:
        output = cast("Output", model(**inputs, use_cache=False, logits_to_keep=places))
        return output.logits[0]
    logits = cast("Output", model(**inputs, use_cache=False)).logits
    return logits.flatten(0, 1).index_select(0, places)


def _inputs(
    rows: PackedRows, device: torch.device, *, packed: bool
) -> tuple[dict[str, torch.Tensor | int | tuple[int, ...]], torch.Tensor]:
    """Return the arguments of the model, and the places of the predicting tokens in its output."""

    def moved(array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    if packed:
        row = {"input_ids": moved(rows.ids)[None], "position_ids": moved(rows.positions)[None]}
        return {**row, **RowBorders.of(rows.lengths, device).arguments}, moved(rows.predicting)
    longest = int(rows.lengths.max())
    # The place of every token in the padded batch.
    places = np.repeat(np.arange(len(rows.lengths)) * longest, rows.lengths) + rows.positions
    ids = np.zeros(len(rows.lengths) * longest, dtype=np.int64)
    mask = np.zeros_like(ids)
    ids[places], mask[places] = rows.ids, 1
    shape = (len(rows.lengths), longest)
    padded = {"input_ids": moved(ids).view(shape), "attention_mask": moved(mask).view(shape)}
    return {**padded}, moved(places[rows.predicting])


def _head_is_plain(model: CausalModel, rows: PackedRows, device: torch.device) -> bool:
    """Return whether the model returns what its head returns, and changes nothing about it.

    The head returns one large number for this, so that a soft cap or a scale shows.
    """
    if model.get_output_embeddings() is None:
        return False
    try:
        found = _in_place_of_head(
            model, rows, device, lambda _, hidden: hidden.new_full((), _PROBE), packed=False
        )
        return found.ndim == 0 and float(found) == _PROBE
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
        return False


def _with_liger(model: CausalModel, task: TrainingTask, device: torch.device) -> tuple[bool, str]:
    """Use Liger's kernels where that is possible; return whether they are used, and a note."""
    if task.use_liger_kernel is False:
        return False, ""
    if device.type != "cuda":
        reason = "there is no CUDA device"
    elif task.reproducible and task.use_liger_kernel is None:
        reason = "the training is reproducible"
    else:
        reason = apply_liger(model, model.config.model_type)
    if not reason:
        return True, "kernels: Liger"
    # On a CPU nobody expects them.
    wanted = task.use_liger_kernel or device.type == "cuda"
    return False, f"kernels: torch, because {reason}" if wanted else ""


def _words(model: CausalModel, dtype: torch.dtype, device: torch.device) -> str:
    """Return how the packed attention is computed, for people."""
    config = model.config
    if getattr(config, "attn_logit_softcapping", None):
        return "attention: row by row, because the model uses softcapping"
    if any(hasattr(module, "sinks") for module in model.modules()):
        return "attention: row by row, because the model uses attention sinks"
    heads = getattr(config, "num_attention_heads", None) or 1
    size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // heads
    if has_varlen(size, dtype, device):
        return "attention: varlen, packed rows"
    if device.type != "cuda":
        return "attention: SDPA row by row, packed rows"
    kind = str(dtype).removeprefix("torch.")
    return f"attention: SDPA row by row, because varlen lacks {kind} with {size} per head"


def _foreign_layers(config: _Config) -> str:
    kinds = set(getattr(config, "layer_types", None) or ()) - _KNOWN_LAYERS
    return f"the model has layers of type {', '.join(sorted(kinds))}" if kinds else ""


def _vocabulary(model: CausalModel) -> int:
    return cast("torch.Tensor", model.get_input_embeddings().weight).shape[0]


def _sample(vocabulary: int, seed: int) -> PackedRows:
    """Return short random rows, to try a way with."""
    lengths = np.array(_TRIED, dtype=np.int64)
    ids = np.random.default_rng(seed).integers(0, vocabulary, int(lengths.sum()))
    positions = np.concatenate([np.arange(length) for length in _TRIED])
    every = np.arange(len(ids))
    return PackedRows(ids.astype(np.int64), positions, lengths, every, every)


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return how far two outputs are apart, relative to their size."""
    size = torch.linalg.vector_norm(other.float())
    return float(torch.linalg.vector_norm(one.float() - other.float()) / size.clamp(min=1e-9))


def causal_model(model: torch.nn.Module) -> CausalModel:
    """Return the model of transformers, without PEFT around it."""
    causal = cast("CausalModel", model)
    return causal.get_base_model() if hasattr(model, "peft_config") else causal

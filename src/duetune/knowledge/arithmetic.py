"""Memory and step time of a configuration by formulas: the terms of both.

Every term is a column with one number per configuration. Formulas cannot give some constants, such
as the share of peak arithmetic that a GPU reaches. Their defaults are here, from data sheets and
experience; ``model`` fits them to measured runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration_table import Described

    Column = NDArray[np.float64]

GB = 1e9
PARCELS = 4.0
PIECE = 2.0**28
"""Numbers of logits that our trainer computes at once without fused kernels."""


class MemoryConstants(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of the memory formula, in bytes or as factors.

    - ``logits``: bytes per token and vocabulary word; ``fused_logits`` if a kernel never keeps all
      of
    them; ``bigcode_logits`` for that model family. ``chunked_logits``: bytes per token and hidden
    number, if rows are packed and kernels are fused.
    - ``input``: bytes for each number that enters a layer.
    - ``block``: factor on what one layer keeps; ``frozen`` for layers that are not trained.
    - ``scores``: bytes per pair of tokens and head, if attention keeps the score matrix.
    - ``slack``: extra bytes per trained parameter; ``upcast`` if the state is sharded.
    - ``scratch``: bytes per trained parameter while the optimiser steps; ``one_by_one`` is per
    parameter of the largest tensor, for optimisers that work on one tensor at a time.
    - ``adapter``: bytes per parameter of an adapter.
    - ``cast``: bytes per parameter of a copy to compute with.
    - ``quantised``: bytes per weight in 4 bits.
    - ``shard``: number of layers that sharded training has gathered at once.
    - ``context``: bytes that every process needs.
    """

    logits: float = 13.5
    fused_logits: float = 6.0
    bigcode_logits: float = 25.0
    chunked_logits: float = 8.0
    input: float = 2.0
    block: float = 1.0
    frozen: float = 0.8
    scores: float = 8.0
    slack: float = 0.5
    upcast: float = 0.5
    scratch: float = 1.0
    one_by_one: float = 16.0
    adapter: float = 4.0
    cast: float = 1.0
    quantised: float = 0.52
    shard: float = 3.5
    context: float = 2.0e9


class TimeConstants(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of the time formula.

    - ``launch_s``: minimum seconds of a layer in a micro-step.
    - ``exchange_s``: minimum seconds of its communication.
    - ``optimiser``, ``weights``: factors on the time to read and write state and weights.
    - ``overlap``: share of communication that is hidden behind arithmetic.
    - ``eager``: factor on attention without a fused kernel.
    - ``network_gb_s``: speed between nodes.
    """

    launch_s: float = 0.005
    exchange_s: float = 0.003
    optimiser: float = 1.0
    overlap: float = 0.4
    weights: float = 0.5
    eager: float = 3.0
    network_gb_s: float = 8.0


def memory_terms(
    it: Described,
    constants: MemoryConstants,
    *,
    context: Column,
    activations: Column,
    scratch: Column,
) -> dict[str, Column]:
    """Return the bytes of one GPU by purpose; ``peak_bytes`` combines them.

    ``context``, ``activations`` and ``scratch`` are factors for each row, fitted to measured runs.
    """
    share = np.where(it.fsdp, 1.0 / it.gpus, 1.0)
    # With expert parallelism, every group of GPUs holds all experts.
    experts = np.where(it.expert_parallel > 0, 1.0 / np.maximum(it.expert_parallel, 1.0), share)
    held = (it.parameters - it.expert_parameters) * share + it.expert_parameters * experts
    wide = it.mixed | it.single
    # Other software keeps weights in 32 bits in sharded full training, in every precision. Our own
    # stores them as the configuration says.
    upcast = it.full & it.fsdp & ~it.packed
    weight = np.where(wide | upcast, 4.0, 2.0)
    # Embeddings and head are not quantised.
    plain = np.minimum(it.embeddings / np.maximum(it.parameters, 1.0), 1.0)
    weight = np.where(it.quantised, constants.quantised * (1.0 - plain) + 2.0 * plain, weight)
    trained = np.where(it.full, held, it.trained * share)
    gradient = np.where(wide | upcast | ~it.full, 4.0, 2.0)
    # State in 8 bits is no smaller for weights in 16 bits.
    same = wide | upcast | ~it.full | it.small_state
    state = it.optimiser_bytes * np.where(same, 1.0, 0.5)
    slack = np.where(upcast, constants.upcast, np.where(it.full, constants.slack, 0.0))
    slack = slack * (it.optimiser_bytes > 0)
    adapter = np.where(it.full, 0.0, constants.adapter * trained)
    # Copies to compute with are kept for the backward pass, unless it recomputes them. Copies of
    # trained weights are kept until the end of the pass.
    copied = (it.full & (it.mixed | upcast)) | (it.mixed & (it.checkpointing == 0))
    cast = np.where(copied, constants.cast * it.parameters * share, 0.0)
    width = np.where(it.single, 4.0, 2.0)
    # Inputs of the matrix products of a layer, both halves of the gated feed-forward part, and
    # the norms, which are computed in 32 bits.
    within = width * (6 * it.hidden + 2 * it.key_values + 4 * it.intermediate * it.active_experts)
    layer = constants.block * (within + 16 * it.hidden)
    layer += np.where(it.eager, constants.scores * it.heads * it.sequence, 0.0)
    # Our trainer keeps what each kernel of a layer needs: with Liger, the inputs of the norms, of
    # attention and of the gate; inputs of the feed-forward part only if its weights are trained.
    # Without Liger, also the norms in 32 bits, and the gate after its activation.
    gate = it.intermediate * it.active_experts
    lean = width * (5 * it.hidden + 2 * it.key_values + 2 * gate)
    lean += np.where(it.deep, width * (it.hidden + gate), 0.0)
    lean += np.where(it.fast > 0, 0.0, width * (2 * it.hidden + gate))
    layer = np.where(it.packed, lean, layer)
    frozen = np.where(it.full | it.packed, 1.0, constants.frozen)
    inputs = constants.input * it.hidden * np.where(it.single, 2.0, 1.0)
    kept = np.where(it.checkpointing > 0, it.layers * inputs + layer, it.layers * layer * frozen)
    logits = np.where(it.fast > 0, constants.fused_logits, constants.logits)
    logits = np.where(it.bigcode > 0, constants.bigcode_logits, logits) * it.tokens * it.vocabulary
    # With packed rows, logits exist for some tokens at a time. Fused kernels keep about as many as
    # the hidden states need; without them a piece has a fixed size.
    pieces = np.minimum(it.tokens * it.vocabulary, PIECE) * constants.logits
    chunks = constants.chunked_logits * it.tokens * it.hidden
    logits = np.where(it.packed, np.where(it.fast > 0, chunks, pieces), logits)
    # Most optimisers work on all parameters at once; Adafactor works on one tensor in 32 bits.
    largest = np.where(it.full, it.vocabulary * it.hidden * share, trained / it.layers)
    working = np.where(
        it.one_by_one,
        constants.one_by_one * np.minimum(largest, trained),
        constants.scratch * trained * (it.optimiser_bytes > 0),
    )
    # Layers are gathered one by one, embeddings and head together. Gradients of a unit exist whole,
    # in 32 bits, until they are summed over the GPUs.
    blocks = np.maximum(it.parameters - it.embeddings, 0.0) / it.layers
    gathered = 2.0 * (constants.shard * blocks + it.embeddings)
    gathered += np.where(it.full, 4.0 * np.maximum(blocks, it.embeddings), 0.0)
    return {
        "weights": held * weight + adapter,
        "optimiser": trained * (state + slack),
        "gradients": trained * gradient,
        "cast weights": cast,
        "activations": activations * it.tokens * kept,
        "logits": activations * logits,
        "optimiser's scratch": scratch * working,
        "gathered layers": np.where(it.fsdp, gathered, 0.0),
        "context": constants.context * context,
    }


def peak_bytes(it: Described, terms: dict[str, Column]) -> Column:
    """Return the peak: the larger of the moment of the loss and the moment of the optimiser step.

    At the loss, gradients are present only if they were accumulated before.
    """
    always = terms["weights"] + terms["optimiser"] + terms["gathered layers"] + terms["context"]
    gradients = terms["gradients"]
    # The trainer that packs rows makes room for all gradients before a step.
    before = np.where((it.accumulation > 1) | it.packed, gradients, 0.0)
    loss = before + terms["activations"] + terms["logits"] + terms["cast weights"]
    # Gradients of the last layers appear while inputs of the first layers are still kept.
    layered = gradients + terms["activations"] / np.maximum(it.layers, 1.0)
    paged = np.where(it.paged, terms["optimiser"], 0.0)  # may be in host memory
    step = gradients + terms["optimiser's scratch"]
    return always - paged + np.maximum(np.maximum(loss, layered), step)


def time_terms(
    it: Described,
    constants: TimeConstants,
    *,
    utilisation: Column,
    launch: Column,
    link: Column,
) -> dict[str, Column]:
    """Return the seconds of one micro-step by purpose; ``step_seconds`` combines them.

    - ``utilisation``: share of the GPU's peak arithmetic, for each row.
    - ``launch``: factor on the minimum time of a layer, for each row.
    - ``link``: share of the data sheet's link speed, for each row.
    """
    recompute = 2.0 * it.checkpointing
    per_token = (np.where(it.full, 6.0, 4.0) + recompute) * it.active
    # Two products of scores, half of them masked: forward, backward, and again if recomputed.
    heads = (6.0 + recompute) * it.layers * it.hidden * it.sequence
    arithmetic = it.tokens * (per_token + heads * np.where(it.eager, constants.eager, 1.0))
    peak = it.peak * np.where(it.single, 0.5, 1.0)
    compute = arithmetic / (peak * utilisation)
    # One part forward, two backward, one more if recomputed; launch_s was fitted to four parts.
    launched = constants.launch_s * launch * it.layers * (3.0 + it.checkpointing) / 4.0
    read = constants.weights * 2.0 * it.parameters * _width(it) / it.bandwidth
    spread = (it.gpus - 1.0) / it.gpus
    weights = _width(it) * it.parameters
    gradients = 2.0 * it.trained
    moved = np.where(
        it.fsdp, 2.0 * weights + gradients, 2.0 * gradients / np.maximum(it.accumulation, 1.0)
    )
    speed = it.link * link
    speed = np.where(
        it.nodes > 1, np.minimum(speed, constants.network_gb_s * it.network * 1e9), speed
    )
    # Sharded layers are gathered one by one; without sharding, gradients go in a few parcels.
    latency = constants.exchange_s * np.where(it.fsdp, it.layers, PARCELS)
    exchange = np.where(it.several, spread * moved / speed + latency, 0.0)
    optimiser = (
        constants.optimiser
        * (12.0 + 1.5 * it.optimiser_bytes)
        * it.trained
        / np.where(it.fsdp, it.gpus, 1.0)
        / it.bandwidth
        / np.maximum(it.accumulation, 1.0)
    )
    return {
        "arithmetic": compute,
        "launch": launched,
        "weights": read,
        "communication": exchange,
        "optimiser": optimiser,
    }


def step_seconds(terms: dict[str, Column], overlap: float) -> Column:
    """Return the seconds of a step: the longer of arithmetic and communication, plus what does not
    overlap.
    """
    busy = np.hypot(terms["arithmetic"], terms["launch"]) + terms["weights"]
    exchange = terms["communication"]
    longer = (busy**4 + exchange**4) ** 0.25
    return longer + (1.0 - overlap) * np.minimum(busy, exchange) + terms["optimiser"]


def _width(it: Described) -> Column:
    """Return the bytes of a weight when it is moved or read."""
    width = np.where(it.single, 4.0, 2.0)
    return np.where(it.quantised, 0.55, width)

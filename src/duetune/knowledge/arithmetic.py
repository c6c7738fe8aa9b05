"""What arithmetic says of a configuration: the terms of its peak memory and of its step time.

Every term is a column, one number for each configuration. What arithmetic cannot know (how much of
the peak a GPU reaches, what a layer costs however small it is) are constants that are fitted to
history; their values here are those of the data sheet and of experience.
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


class MemoryConstants(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes, or factors. ``logits`` are for each token and word of the vocabulary, ``fused_logits``
    where a kernel never keeps them all; ``input`` for each number that goes into a layer; ``block``
    multiplies what one layer keeps, ``frozen`` that of a layer whose weights are not trained;
    ``scores`` for each pair of tokens and head where attention keeps them. For each parameter that
    is trained: ``slack`` (``upcast`` where it is sharded), ``scratch`` while the optimiser steps
    (``one_by_one`` if of the largest tensor only), ``adapter`` of an adapter's weights; ``cast``
    for a copy to compute with. ``context`` is there whatever is trained.
    """

    logits: float = 13.5
    fused_logits: float = 6.0
    bigcode_logits: float = 25.0
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
    quantised: float = 0.55
    shard: float = 3.5
    context: float = 2.0e9


class TimeConstants(msgspec.Struct, frozen=True, kw_only=True):
    """``launch_s`` is the least a layer takes in a micro-step, ``exchange_s`` the least its share
    of communication; ``link`` and ``utilisation`` are shares of the data sheet.
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
    """Bytes of one GPU, by what they are for; ``peak_bytes`` says which are there together.
    ``context``, ``activations`` and ``scratch`` are factors for each row.
    """
    share = np.where(it.fsdp, 1.0 / it.gpus, 1.0)
    # Experts that are spread over some of the GPUs only are kept whole by every group of them.
    experts = np.where(it.expert_parallel > 0, 1.0 / np.maximum(it.expert_parallel, 1.0), share)
    held = (it.parameters - it.expert_parameters) * share + it.expert_parameters * experts
    wide = it.mixed | it.single
    # Sharded training of all weights keeps them in 32 bits, whatever it computes with.
    upcast = it.full & it.fsdp
    weight = np.where(wide | upcast, 4.0, 2.0)
    weight = np.where(it.quantised, constants.quantised, weight)
    trained = np.where(it.full, held, it.trained * share)
    gradient = np.where(wide | upcast | ~it.full, 4.0, 2.0)
    state = it.optimiser_bytes * np.where(wide | upcast | ~it.full, 1.0, 0.5)
    slack = np.where(upcast, constants.upcast, np.where(it.full, constants.slack, 0.0))
    slack = slack * (it.optimiser_bytes > 0)
    adapter = np.where(it.full, 0.0, constants.adapter * trained)
    # Copies to compute with are kept for the way back, unless all is computed again there; of
    # weights that are trained, until the end of a pass.
    copied = (it.full & (it.mixed | upcast)) | (it.mixed & (it.checkpointing == 0))
    cast = np.where(copied, constants.cast * it.parameters * share, 0.0)
    width = np.where(it.single, 4.0, 2.0)
    # What the products of a layer take in, both halves of the gated feed-forward part, and the
    # norms, which are computed in 32 bits.
    within = width * (6 * it.hidden + 2 * it.key_values + 4 * it.intermediate * it.active_experts)
    layer = constants.block * (within + 16 * it.hidden)
    layer += np.where(it.eager, constants.scores * it.heads * it.sequence, 0.0)
    frozen = np.where(it.full, 1.0, constants.frozen)
    inputs = constants.input * it.hidden * np.where(it.single, 2.0, 1.0)
    kept = np.where(it.checkpointing > 0, it.layers * inputs + layer, it.layers * layer * frozen)
    logits = np.where(it.fast > 0, constants.fused_logits, constants.logits)
    logits = np.where(it.bigcode > 0, constants.bigcode_logits, logits)
    # Some optimisers work on all parameters at once, Adafactor in 32 bits on one after the other.
    largest = np.where(it.full, it.vocabulary * it.hidden * share, trained / it.layers)
    working = np.where(
        it.one_by_one,
        constants.one_by_one * np.minimum(largest, trained),
        constants.scratch * trained * (it.optimiser_bytes > 0),
    )
    gathered = constants.shard * 2.0 * it.parameters / it.layers
    return {
        "weights": held * weight + adapter,
        "optimiser": trained * (state + slack),
        "gradients": trained * gradient,
        "cast weights": cast,
        "activations": activations * it.tokens * kept,
        "logits": activations * it.tokens * it.vocabulary * logits,
        "optimiser's scratch": scratch * working,
        "gathered layers": np.where(it.fsdp, gathered, 0.0),
        "context": constants.context * context,
    }


def peak_bytes(it: Described, terms: dict[str, Column]) -> Column:
    """The peak is where the loss is computed, or where the optimiser steps. Gradients are there at
    the first of the two only if they have been accumulated before.
    """
    always = terms["weights"] + terms["optimiser"] + terms["gathered layers"] + terms["context"]
    gradients = terms["gradients"]
    before = np.where(it.accumulation > 1, gradients, 0.0)
    loss = before + terms["activations"] + terms["logits"] + terms["cast weights"]
    # The last layers' gradients come while the first layers' inputs are still kept.
    layered = gradients + terms["activations"] / np.maximum(it.layers, 1.0)
    paged = np.where(it.paged, terms["optimiser"], 0.0)  # may lie in the host's memory
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
    """Seconds of one micro-step. ``utilisation`` of the GPU's arithmetic, ``launch`` a factor of
    the least time of a layer, ``link`` the share of the data sheet's link speed: for each row.
    """
    recompute = 2.0 * it.checkpointing
    per_token = (np.where(it.full, 6.0, 4.0) + recompute) * it.active
    # Two products of scores, half of them masked, forth and back and once more if recomputed.
    heads = (6.0 + recompute) * it.layers * it.hidden * it.sequence
    arithmetic = it.tokens * (per_token + heads * np.where(it.eager, constants.eager, 1.0))
    peak = it.peak * np.where(it.single, 0.5, 1.0)
    compute = arithmetic / (peak * utilisation)
    # Forth, back twice as much, and once more if recomputed; 4 is what has been fitted to.
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
    # Sharded layers are gathered one by one; without sharding gradients travel in a few parcels.
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
    """The terms together: the longer of arithmetic and communication, and what does not overlap."""
    busy = np.hypot(terms["arithmetic"], terms["launch"]) + terms["weights"]
    exchange = terms["communication"]
    longer = (busy**4 + exchange**4) ** 0.25
    return longer + (1.0 - overlap) * np.minimum(busy, exchange) + terms["optimiser"]


def _width(it: Described) -> Column:
    """Bytes of a weight as it is moved and read."""
    width = np.where(it.single, 4.0, 2.0)
    return np.where(it.quantised, 0.55, width)

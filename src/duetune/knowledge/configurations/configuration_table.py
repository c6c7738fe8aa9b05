"""Configurations with the sizes of their models and GPUs, one column per quantity.

The formulas in ``arithmetic`` and the features of the learned model read these columns.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configurations.configuration import (
    Interconnect,
    Method,
    Optimiser,
    Precision,
    Sharding,
)
from duetune.knowledge.configurations.lora_targets import reaches_feed_forward
from duetune.knowledge.facts.gpus import MIB, gpu_named
from duetune.knowledge.facts.model_facts import ModelFacts, model_facts, usual_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations

    Column = NDArray[np.float64]

UNKNOWN_PARAMETERS = 7e9
"""Assumed size of a model about which nothing is known: the most common size."""

UNKNOWN_GPU_TFLOPS = 100.0
_NOTHING = "nothing: taken to be usual"
_NO_CAPACITY = 1e15
_CARDS_GB = (0.0, 24.0, 40.0, 48.0, 80.0, 800.0)
_CARDS_MIB = (0.0, 24564.0, 40960.0, 46068.0, 81559.0, 815590.0)
"""Memory that the driver reports for cards sold with this many gigabytes; interpolated in
between.
"""


def card_bytes(memory_gb: float) -> float:
    """Return the memory in bytes of a card that is sold with ``memory_gb``."""
    return float(np.interp(memory_gb, _CARDS_GB, _CARDS_MIB)) * MIB


@functools.cache
def facts_or_usual(model: str) -> ModelFacts:
    """Return the sizes of a model, or those of a usual 7B model if nothing is known of it;
    cached.
    """
    return model_facts(model) or usual_model(UNKNOWN_PARAMETERS, _NOTHING)


class Described:
    """Columns for a table of configurations, in bytes, FLOP/s and bytes/s.

    - ``trained``: parameters that are trained.
    - ``embeddings``: parameters of the embeddings and of the head.
    - ``deep``: True if layers of the feed-forward part are trained.
    - ``capacity``: memory of one GPU, or the cap if that is less.
    - ``batch``, ``tokens``: sequences and tokens of one GPU in one micro-step.
    - ``blind``: True if the model is unknown, or if the memory of the GPU is unknown.
    """

    def __init__(
        self,
        configurations: Configurations,
        facts: Callable[[str], ModelFacts] = facts_or_usual,
    ) -> None:
        self.configurations = configurations
        each = configurations
        found = {word: facts(word) for word in each.labels["model"]}

        def of_model(value: Callable[[ModelFacts], float]) -> Column:
            return each.gather("model", lambda word: value(found[word]))

        self.parameters = of_model(lambda it: it.parameters)
        self.active = of_model(lambda it: it.active_parameters)
        self.layers = of_model(lambda it: it.layers)
        self.hidden = of_model(lambda it: it.hidden)
        self.intermediate = of_model(lambda it: it.intermediate)
        self.vocabulary = of_model(lambda it: it.vocabulary)
        self.key_values = of_model(lambda it: it.key_values)
        self.heads = of_model(lambda it: it.heads or max(1, it.hidden // 64))
        self.experts = of_model(lambda it: it.experts)
        # In a mixture of experts, nearly all other parameters are those of the experts.
        self.expert_parameters = of_model(_expert_parameters)
        self.active_experts = of_model(_active_experts)
        self.embeddings = self.vocabulary * self.hidden * of_model(lambda it: 2 - it.tied)
        self.bigcode = of_model(lambda it: it.family == "gpt_bigcode")

        gpus = {word: gpu_named(word) for word in each.labels["gpu_model"]}

        def of_gpu(name: str, otherwise: float, scale: float) -> Column:
            return scale * each.gather(
                "gpu_model",
                lambda word: otherwise if gpus[word] is None else getattr(gpus[word], name),
            )

        self.peak = of_gpu("tflops", UNKNOWN_GPU_TFLOPS, 1e12)
        self.bandwidth = of_gpu("bandwidth_gb_s", 1000.0, 1e9)
        self.link = of_gpu("link_gb_s", 20.0, 1e9)
        over = each.gather("interconnect", lambda word: LINKS_GB_S.get(word, math.inf)) * 1e9
        self.link = np.minimum(self.link, over)
        self.network = each.gather("interconnect", lambda word: NETWORKS.get(word, 1.0))
        capacity = of_gpu("capacity", _NO_CAPACITY, 1.0)
        cap = each.number("memory_cap_gb")
        limit = np.where(cap > 0, np.interp(cap, _CARDS_GB, _CARDS_MIB) * MIB, _NO_CAPACITY)
        self.capacity = np.minimum(capacity, limit)
        unknown = each.gather("model", lambda word: found[word].source == _NOTHING)
        self.blind = (unknown > 0) | (self.capacity >= _NO_CAPACITY)

        self.gpus = each.number("num_gpus")
        self.nodes = each.number("num_nodes")
        self.batch = each.per_gpu_batch
        self.sequence = each.span
        self.packed = each.packed
        self.tokens = each.per_gpu_tokens
        self.accumulation = each.number("grad_accum")
        self.checkpointing = each.number("grad_checkpoint")
        self.full = each.is_("method", Method.FULL)
        deep = each.gather("lora_targets", reaches_feed_forward) > 0
        self.deep = self.full | deep
        self.quantised = each.is_("method", Method.QLORA, Method.GPTQ_LORA)
        self.mixed = each.is_("precision", Precision.BF16_MIXED, Precision.FP16_MIXED)
        self.single = each.is_("precision", Precision.FP32)
        self.eager = each.is_("attention", "eager")
        self.fsdp = each.is_("sharding", Sharding.FSDP, Sharding.FSDP_GRAD_OP, Sharding.HYBRID) & (
            self.gpus > 1
        )
        self.several = self.gpus > 1
        self.expert_parallel = each.number("fast_moe") * (self.expert_parameters > 0)
        self.optimiser_bytes = each.gather("optimiser", lambda word: OPTIMISER_BYTES.get(word, 8.0))
        self.small_state = each.is_(
            "optimiser", Optimiser.ADAMW_8BIT, Optimiser.PAGED_ADAMW_8BIT, Optimiser.LION_8BIT
        )
        self.one_by_one = each.is_("optimiser", Optimiser.ADAFACTOR)
        self.paged = each.is_("optimiser", Optimiser.PAGED_ADAMW, Optimiser.PAGED_ADAMW_8BIT)
        self.fast = each.number("fast_kernels")
        adapters = each.number("lora_rank") * self.layers * self._widths(found)
        prompt = each.is_("method", Method.PROMPT)
        adapters = np.where(prompt, 100 * self.hidden, adapters)
        self.trained = np.where(self.full, self.parameters, np.minimum(adapters, self.parameters))

    def _widths(self, found: dict[str, ModelFacts]) -> Column:
        """Return the parameters of one block that LoRA of rank 1 trains, by the layers it is on."""
        each = self.configurations
        widths = np.zeros(len(each))
        for target in each.labels["lora_targets"]:
            mine = each.gather("model", lambda word: found[word].lora_widths(target))  # noqa: B023 - called at once
            widths = np.where(each.is_("lora_targets", target), mine, widths)
        return widths

    def __len__(self) -> int:
        return len(self.configurations)


def _expert_parameters(facts: ModelFacts) -> float:
    """Return the parameters of all experts, both idle and active."""
    if facts.experts <= 1:
        return 0.0
    idle = facts.parameters - facts.active_parameters
    chosen = _active_experts(facts)
    return min(idle * facts.experts / max(facts.experts - chosen, 1.0), float(facts.parameters))


def _active_experts(facts: ModelFacts) -> float:
    """Return how many experts process each token, derived from the active parameters."""
    if facts.experts <= 1 or not facts.active:
        return 1.0
    one = 3.0 * facts.hidden * facts.intermediate * facts.layers
    idle = (facts.parameters - facts.active) / one
    return max(1.0, facts.experts - idle)


LINKS_GB_S: dict[str, float] = {Interconnect.PCIE: 25.0}
"""Speed limit of a link that the configuration names; other links have the data sheet's speed."""

NETWORKS: dict[str, float] = {Interconnect.TCP: 0.3}
"""Network speed between nodes, as a share of the speed with remote direct memory access."""

OPTIMISER_BYTES: dict[str, float] = {
    Optimiser.ADAMW: 8.0,
    Optimiser.PAGED_ADAMW: 8.0,
    Optimiser.ADAMW_8BIT: 2.0,
    Optimiser.ADAFACTOR: 0.05,
    Optimiser.LION: 4.0,
    Optimiser.LION_8BIT: 1.0,
    Optimiser.PAGED_ADAMW_8BIT: 2.0,
    Optimiser.SGD: 0.0,
}
"""Bytes of 32-bit optimiser state for each trained parameter."""

"""How much of a GPU's memory training takes: a rule of thumb, term by term."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from duetune.quote.model import usual_model
from duetune.training.task import Method

if TYPE_CHECKING:
    from duetune.quote.model import ModelFacts

COMFORT = 0.9
"""Of a GPU's memory this share may be planned for; the rest is for fragments and surprises."""

WORKSPACE_GB = 1.2
"""The CUDA context, library workspaces and the buffers of the process group."""

_GB = 1e9
_FULL_BYTES = 4
_ADAM_BYTES = 8


class Recipe(msgspec.Struct, frozen=True):
    """What memory and pace depend on, beside the model."""

    method: Method
    precision: str
    microbatch: int
    max_length: int
    gradient_checkpointing: bool
    lora_r: int

    @property
    def width(self) -> int:
        """Bytes of a number that is computed with."""
        return 4 if self.precision == "fp32" else 2


def trainable(model: ModelFacts, method: Method, lora_r: int) -> int:
    """Parameters that are trained; with LoRA on all linear layers."""
    if method is Method.FULL:
        return model.parameters
    return lora_r * model.layers * model.linear_widths


def memory_terms(model: ModelFacts, recipe: Recipe) -> dict[str, float]:
    """Gigabytes at the peak of a step, by what they are for.

    What is trained is kept in 32 bits with AdamW's two moments; what is frozen in the precision of
    the computation. Activations are those of attention that keeps no matrix of scores.
    """
    width = recipe.width
    trained = trainable(model, recipe.method, recipe.lora_r)
    full = recipe.method is Method.FULL
    tokens = recipe.microbatch * recipe.max_length
    # Inputs of the matrix products, both halves of the gated feed-forward part, and the norms,
    # which are computed in 32 bits.
    within = width * (6 * model.hidden + 2 * model.key_values + 4 * model.intermediate)
    block = within + 16 * model.hidden
    if recipe.gradient_checkpointing:
        activations = tokens * (model.layers * width * model.hidden + block)
    else:
        activations = tokens * model.layers * block
    # The loss takes them in 32 bits, beside its own probabilities and their gradient.
    logits = tokens * model.vocabulary * (2 * width + 12)
    return {
        "weights": model.parameters * (_FULL_BYTES if full else width) / _GB,
        "adapter": 0.0 if full else trained * _FULL_BYTES / _GB,
        "gradients": trained * _FULL_BYTES / _GB,
        "optimiser": trained * _ADAM_BYTES / _GB,
        "activations": activations / _GB,
        "logits": logits / _GB,
        "workspace": WORKSPACE_GB,
    }


def peak_gb(model: ModelFacts, recipe: Recipe) -> float:
    return sum(memory_terms(model, recipe).values())


def largest_model(memory_gb: float, recipe: Recipe) -> float:
    """About how many parameters fit, in the usual shape."""
    fewest, most = 1e5, 1e13
    while most / fewest > 1.01:
        middle = math.sqrt(fewest * most)
        fits = peak_gb(usual_model(middle, ""), recipe) <= COMFORT * memory_gb
        fewest, most = (middle, most) if fits else (fewest, middle)
    return fewest

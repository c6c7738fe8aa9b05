"""The values that the advisor takes and returns, and the names a user may give.

``advisor`` computes an ``Advice``; ``verdict`` computes a ``Fit``.
"""

from __future__ import annotations

import difflib
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import (
    Configuration,
    Method,
    Precision,
    Sharding,
    Value,
)
from duetune.knowledge.configurations.space import Space
from duetune.knowledge.estimate import EXTRAPOLATED, Cause, Estimate
from duetune.knowledge.facts.gpus import GPUS, gpu_name
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.facts.model_registry import model_name, registered_names
from duetune.knowledge.sources.knowledge_source import Candidate, Limits, Neighbour, Objective, Term
from duetune.notebook import html_table

if TYPE_CHECKING:
    from duetune.knowledge.history import History

GIVEN = "given"
_SHARDED = frozenset((Sharding.FSDP, Sharding.FSDP_GRAD_OP, Sharding.HYBRID))


class Verdict(StrEnum):
    """Whether a configuration fits: yes, no, or too close to tell."""

    YES = "yes"
    NO = "no"
    UNSURE = "not sure"


def percentage(share: float) -> str:
    """Return a probability in percent, never 0% or 100%: nothing is certain before it was tried."""
    if share > 0.994:
        return ">99%"
    return "<1%" if share < 0.006 else f"{share:.0%}"


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the memory of a GPU.

    - ``gb``: its own size.
    - ``at_peak_gb``: how much of it is present at the peak; these add up to the peak.
    """

    name: str
    gb: float
    at_peak_gb: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Another configuration near the one that was asked for, with its estimate."""

    what: str
    configuration: Configuration
    p_valid: float
    memory_gb: float
    capacity_gb: float


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one configuration fits, and what would change that.

    - ``capacity_gb``: memory of the card that the driver reports.
    - ``parts``: what the memory is used for.
    - ``changes``: single changes, each of which would make it fit.
    - ``nearest``: the change that comes closest, if no single change makes it fit.
    - ``room``: larger settings that would fit too, if it fits.
    - ``evidence``: measured runs near it.
    - ``assumptions``: what the estimate assumes, in sentences.
    """

    configuration: Configuration
    verdict: Verdict
    estimate: Estimate
    cause: Cause
    rule: str = ""
    capacity_gb: float
    parts: tuple[MemoryPart, ...] = ()
    changes: tuple[Change, ...] = ()
    nearest: Change | None = None
    room: tuple[Change, ...] = ()
    evidence: tuple[Neighbour, ...] = ()
    assumptions: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        memory, one = self.estimate.memory_gb, self.configuration
        return html_table(
            ("memory of one GPU", "GB"),
            ((part.name, f"{part.gb:.1f}") for part in self.parts),
            f"{one.model}, {one.method}, {one.batch_size} x {one.tokens_per_sample} tokens on "
            f"{one.num_gpus} x {one.gpu_model}: fits: {self.verdict.value} "
            f"({percentage(self.estimate.p_valid)}); peak {memory.middle:.1f} GB "
            f"({memory.low:.1f} to {memory.high:.1f}) of {self.capacity_gb:.1f} GB",
        )


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A question for a recommendation.

    - ``given``: fields of a configuration that must not change.
    - ``reasons``: why a field has its value, for values that the user did not set.
    """

    given: dict[str, Value]
    space: Space
    objective: Objective
    limits: Limits
    reasons: dict[str, str] = {}
    assumptions: tuple[str, ...] = ()


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One field of the chosen configuration, and the reason for its value."""

    field: str
    value: Value
    reason: str

    @property
    def given(self) -> bool:
        """Return whether the user set this value."""
        return self.reason == GIVEN


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """The one run that would help the decision most.

    - ``about``: index of the candidate that the run tells about.
    - ``run``: what to measure: the candidate, or the share of one of its GPUs.
    - ``sure``: probability that the chosen candidate is the best.
    - ``sure_after``: average of that probability after the run.
    - ``gain``: how much better the choice would be, as a share of time or cost.
    """

    about: int
    run: Configuration
    sure: float
    sure_after: float
    gain: float
    seconds: float
    cost: float | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a ``Request``.

    - ``candidates``: best first; empty if nothing qualifies.
    - ``fit``: the fit of the first candidate, or of the nearest miss if nothing qualifies.
    - ``choices``: the value and reason of each field of the first candidate.
    - ``sure``: probability that the first candidate is the best of them.
    - ``considered``, ``left_out``: how many configurations were scored, and how many were dropped
      for
    each reason.
    """

    objective: Objective
    limits: Limits
    candidates: tuple[Candidate, ...]
    choices: tuple[Choice, ...] = ()
    fit: Fit | None = None
    time: tuple[Term, ...] = ()
    sure: float | None = None
    lesson: Lesson | None = None
    considered: int = 0
    left_out: dict[str, int] = {}
    note: str = ""
    assumptions: tuple[str, ...] = ()

    @property
    def chosen(self) -> Candidate | None:
        """Return the best candidate, or None if nothing qualifies."""
        return self.candidates[0] if self.candidates else None

    def _repr_html_(self) -> str:
        return html_table(
            ("GPUs", "method", "batch", "fits", "tokens/s", "cost"),
            (
                (
                    f"{one.configuration.num_gpus} x {one.configuration.gpu_model}",
                    one.configuration.method.value,
                    one.configuration.batch_size,
                    percentage(one.estimate.p_valid),
                    f"{one.estimate.tokens_per_s.middle:,.0f}",
                    "unknown" if one.cost is None else f"${one.cost.middle:.2f}",
                )
                for one in self.candidates
            ),
            f"{len(self.candidates)} best of {self.considered} configurations, by "
            f"{self.objective.value}",
        )


def asked_model(text: str) -> str:
    """Return the model under the name it has here, or raise ``InvalidInput`` if nothing is known of
    it.
    """
    if model_facts(text) is not None:
        return model_name(text)
    near = _like(text, 0.5)
    like = f" (did you mean {', '.join(near)}?)" if near else " such as Qwen/Qwen3-8B"
    raise InvalidInput(
        "model",
        text,
        f"a known model{like}, a folder with config.json, a config.json file, or a name that "
        "contains the size, such as mine-7b",
    )


def asked_gpu(text: str, field: str = "gpu") -> str:
    """Return the GPU under the name it has here, or raise ``InvalidInput`` with similar names."""
    name = gpu_name(text)
    if name is not None:
        return name
    near = _near(text, {each: each for each in GPUS}, 0.5)
    raise InvalidInput(field, text, f"one of {', '.join(near or tuple(GPUS))}")


def _like(model: str, cutoff: float) -> tuple[str, ...]:
    """Return known models with a similar name."""
    last = {name.rsplit("/", 1)[-1]: name for name in registered_names()}
    return _near(model.rsplit("/", 1)[-1], last, cutoff)


def _near(text: str, names: dict[str, str], cutoff: float) -> tuple[str, ...]:
    folded = {name.casefold(): known for name, known in names.items()}
    found = difflib.get_close_matches(text.casefold(), folded, n=4, cutoff=cutoff)
    return tuple(dict.fromkeys(folded[each] for each in found))


def estimate_assumptions(
    configuration: Configuration, estimate: Estimate, history: History
) -> tuple[str, ...]:
    """Return what an estimate assumes beyond measurements of the same configuration, as
    sentences.
    """
    assumptions = []
    facts = model_facts(configuration.model)
    if facts is None:
        assumptions.append(f"{configuration.model} is unknown, so 7 billion parameters are assumed")
    elif not facts.shape_known:
        like = () if Path(configuration.model).exists() else _like(configuration.model, 0.8)
        assumptions.append(
            f"the layers of {configuration.model} are estimated from its size, "
            f"{facts.parameters / 1e9:.3g} billion parameters"
            + (f" (did you mean {like[0]}?)" if like else "")
        )
    elif "approximate" in facts.source:
        assumptions.append(f"sizes of {configuration.model} are from {facts.source}")
    if facts is not None and facts.context and configuration.tokens_per_sample > facts.context:
        assumptions.append(f"the model accepts at most {facts.context:,} tokens per sequence")
    sharded = configuration.num_gpus > 1 and configuration.sharding in _SHARDED
    halves = configuration.precision in {Precision.BF16, Precision.FP16}
    if sharded and halves and configuration.method is Method.FULL:
        assumptions.append(
            f"sharded full training keeps weights in 32 bits, even with {configuration.precision}"
        )
    if not len(history):
        assumptions.append("no run was measured, so physics with default constants is used")
        return tuple(assumptions)
    if set(estimate.extrapolated) == set(EXTRAPOLATED):
        assumptions.append("estimated by physics alone, with data-sheet and default constants")
        return tuple(assumptions)
    names = {
        "gpu_model": "its data sheet is used",
        "model": "runs of other models are used",
        "method": "runs of other methods are used",
        "software": "runs with other software are used",
    }
    assumptions += [
        f"no run with {value_in_words(configuration, field)} was measured, so "
        + names.get(field, "physics is used, and intervals are wider")
        for field in estimate.extrapolated
        if field != "software" or configuration.software
    ]
    return tuple(assumptions)


def value_in_words(configuration: Configuration, field: str) -> str:
    """Return the value of one of ``EXTRAPOLATED`` as a user reads it."""
    value = getattr(configuration, field)
    match field:
        case "packed":
            return "packed rows" if value else "padded rows"
        case "fast_kernels":
            return "fused kernels" if value else "no fused kernels"
        case "num_gpus":
            return f"{value} GPU{'' if value == 1 else 's'}"
        case "sharding" | "optimiser" | "attention":
            return f"{field} {value}"
    return str(value)

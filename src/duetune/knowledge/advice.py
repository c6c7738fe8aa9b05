"""What the advisor is asked, and what it answers."""

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

if TYPE_CHECKING:
    from duetune.knowledge.history import History

GIVEN = "given"
_SHARDED = frozenset((Sharding.FSDP, Sharding.FSDP_GRAD_OP, Sharding.HYBRID))


class Verdict(StrEnum):
    YES = "yes"
    NO = "no"
    UNSURE = "not sure"


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """``at_peak_gb`` is what of it is there when most memory is taken; together they are the
    peak.
    """

    name: str
    gb: float
    at_peak_gb: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Another configuration near the one that was asked for, and what it would be like."""

    what: str
    configuration: Configuration
    p_valid: float
    memory_gb: float
    capacity_gb: float


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one configuration fits. ``capacity_gb`` is what the driver shows of the card.
    ``changes`` would make it fit; where none does, ``nearest`` is the change that comes nearest.
    Where it fits, ``room`` is what would fit as well.
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


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """``given`` are fields of a configuration; ``reasons`` say why they are what they are where it
    was not the user who said so.
    """

    given: dict[str, Value]
    space: Space
    objective: Objective
    limits: Limits
    reasons: dict[str, str] = {}
    assumptions: tuple[str, ...] = ()


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One field of the chosen configuration, and why it is what it is."""

    field: str
    value: Value
    reason: str

    @property
    def given(self) -> bool:
        return self.reason == GIVEN


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """The one run that would help most to decide. ``about`` is the candidate it tells of, ``run``
    what to measure: the candidate, or its share of one GPU. ``sure`` is the probability that the
    chosen one is the best of the candidates, ``sure_after`` what it would be on average after the
    run, ``gain`` how much better the choice would be, as a share of time or cost.
    """

    about: int
    run: Configuration
    sure: float
    sure_after: float
    gain: float
    seconds: float
    cost: float | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """``candidates``, best first; none: nothing qualifies, and ``fit`` is the nearest miss. Else
    ``fit`` is that of the first. ``sure`` is the probability that the first is the best of them.
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
        return self.candidates[0] if self.candidates else None


def asked_model(text: str) -> str:
    """The model by the name it has here; one of which nothing is known is refused."""
    if model_facts(text) is not None:
        return model_name(text)
    near = _like(text, 0.5)
    like = f" ({', '.join(near)}?)" if near else " such as Qwen/Qwen3-8B"
    raise InvalidInput(
        "model",
        text,
        f"a known model{like}, a folder with its config.json, that file, or a name with the "
        "size in it, such as mine-7b",
    )


def asked_gpu(text: str, field: str = "gpu") -> str:
    """The GPU by the name it has here."""
    name = gpu_name(text)
    if name is not None:
        return name
    near = _near(text, {each: each for each in GPUS}, 0.5)
    raise InvalidInput(field, text, f"one of {', '.join(near or tuple(GPUS))}")


def _like(model: str, cutoff: float) -> tuple[str, ...]:
    """Known models with a name like this."""
    last = {name.rsplit("/", 1)[-1]: name for name in registered_names()}
    return _near(model.rsplit("/", 1)[-1], last, cutoff)


def _near(text: str, names: dict[str, str], cutoff: float) -> tuple[str, ...]:
    folded = {name.casefold(): known for name, known in names.items()}
    found = difflib.get_close_matches(text.casefold(), folded, n=4, cutoff=cutoff)
    return tuple(dict.fromkeys(folded[each] for each in found))


def estimate_assumptions(
    configuration: Configuration, estimate: Estimate, history: History
) -> tuple[str, ...]:
    """What an estimate rests on, beside what was measured of this very thing."""
    told = []
    facts = model_facts(configuration.model)
    if facts is None:
        told.append(
            f"nothing is known of {configuration.model}: taken to have 7 billion parameters"
        )
    elif not facts.shape_known:
        like = () if Path(configuration.model).exists() else _like(configuration.model, 0.8)
        told.append(
            f"the shape of {configuration.model} is derived from its size, "
            f"{facts.parameters / 1e9:.3g} billion parameters"
            + (f" (or is it {like[0]}?)" if like else "")
        )
    elif "approximate" in facts.source:
        told.append(f"of {configuration.model}, {facts.source}")
    if facts is not None and facts.context and configuration.tokens_per_sample > facts.context:
        told.append(f"the model takes at most {facts.context:,} tokens of a sequence")
    sharded = configuration.num_gpus > 1 and configuration.sharding in _SHARDED
    halves = configuration.precision in {Precision.BF16, Precision.FP16}
    if sharded and halves and configuration.method is Method.FULL:
        told.append(
            f"sharded full training keeps weights in 32 bits, with {configuration.precision}, too"
        )
    if not len(history):
        told.append("nothing was measured: physics with the constants of experience")
        return tuple(told)
    if set(estimate.extrapolated) == set(EXTRAPOLATED):
        told.append("by physics alone, with the constants of data sheets and of experience")
        return tuple(told)
    names = {
        "gpu_model": "the constants of its data sheet",
        "model": "what was measured of other models",
        "method": "what was measured of other methods",
        "software": "what was measured with other software",
    }
    told += [
        f"nothing of {getattr(configuration, field)} was measured: {names[field]}"
        for field in estimate.extrapolated
        if field != "software" or configuration.software
    ]
    return tuple(told)

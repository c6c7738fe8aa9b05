"""The one configuration that ``duetune fits`` asks about, made from its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.jobs.question import Question
from duetune.jobs.site import Site
from duetune.jobs.trainer_facts import (
    foreign_fields,
    placement,
    trainer_software,
)
from duetune.knowledge.advice import asked_gpu, asked_model
from duetune.knowledge.configurations.lora_targets import (
    LORA_TARGETS,
    is_lora_targets,
)
from duetune.knowledge.configurations.space import field_value
from duetune.knowledge.facts.model_facts import model_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.knowledge.configurations.configuration import Configuration


class FitQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The options as typed; None is what was not typed. ``batch`` counts all GPUs together."""

    model: str
    gpu: str
    gpus: int = 1
    seq: int | None = None
    batch: int | None = None
    method: str | None = None
    sharding: str | None = None
    precision: str | None = None
    optimiser: str = "adamw"
    checkpointing: bool = True
    rank: int | None = None
    targets: str | None = None
    attention: str = "sdpa"
    software: str | None = None
    memory_gb: float = 0.0


def asked_configuration(
    question: FitQuestion, fits: Callable[[Configuration], bool]
) -> tuple[Configuration, tuple[str, ...]]:
    """Return the configuration that is meant, and what was assumed.

    Options that were not typed are as duetune's trainer does it, with the least memory. ``fits`` is
    called only to find out whether all weights of a small model fit.
    """
    for option in ("seq", "batch", "gpus", "rank"):
        count = getattr(question, option)
        if count is not None and count < 1:
            raise InvalidInput(option, count, "a whole number, one or more")
    if question.targets is not None and not is_lora_targets(question.targets):
        allowed = f"{', '.join(LORA_TARGETS)}, or layers such as q_proj+v_proj"
        raise InvalidInput("targets", question.targets, allowed)
    memory = field_value("memory_cap_gb", question.memory_gb)
    software = question.software or trainer_software()
    site = Site(
        accelerator=asked_gpu(question.gpu), memory_gb=float(memory) or None, software=software
    )
    asked = Question(
        method=question.method,
        max_length=question.seq,
        precision=question.precision,
        lora_r=question.rank,
        lora_targets=question.targets,
        adapters=question.rank is not None or question.targets is not None,
    )
    model, facts = asked_model(question.model), model_facts(question.model)
    method, _ = asked.chosen_method(model, facts, [site], fits)
    found = asked.configuration(
        method, model, facts, site, gpus=question.gpus, checkpointing=question.checkpointing
    )
    changes: dict[str, object] = {
        "batch_size": question.batch or question.gpus,
        "optimiser": question.optimiser,
        "attention": question.attention,
        "lora_rank": asked.rank()[0],
        "lora_targets": asked.layers()[0],
        **placement(question.gpus, None if question.sharding == "ddp" else question.sharding),
    }
    found = found.replace(**{field: field_value(field, each) for field, each in changes.items()})
    assumed = []
    if site.gpu is not None and not site.gpu.bf16 and question.precision is None:
        assumed.append(f"{found.precision}: a {site.accelerator} cannot compute in bfloat16")
    other = (*foreign_fields(found), *((f"software {software}",) if question.software else ()))
    if other:
        assumed.append(f"a trainer other than duetune's: {', '.join(other)}")
    return found, tuple(assumed)

"""One configuration to ask about, as ``duetune fits`` is asked."""

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
from duetune.knowledge.configurations.configuration import LORA_TARGETS
from duetune.knowledge.configurations.space import field_value
from duetune.knowledge.facts.model_facts import model_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.knowledge.configurations.configuration import Configuration


class FitQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed; None is what was not. ``batch`` are the sequences of all GPUs at once."""

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
    wish: FitQuestion, fits: Callable[[Configuration], bool]
) -> tuple[Configuration, tuple[str, ...]]:
    """Return the configuration that is meant, and what was assumed: where nothing is said it is
    what duetune's trainer would do, with the least memory. ``fits`` is only asked whether all
    weights of a small model could be trained.
    """
    for option in ("seq", "batch", "gpus", "rank"):
        count = getattr(wish, option)
        if count is not None and count < 1:
            raise InvalidInput(option, count, "a whole number, one or more")
    if wish.targets not in {None, *LORA_TARGETS}:
        raise InvalidInput("targets", wish.targets, " or ".join(LORA_TARGETS))
    memory = field_value("memory_cap_gb", wish.memory_gb)
    software = wish.software or trainer_software()
    site = Site(accelerator=asked_gpu(wish.gpu), memory_gb=float(memory) or None, software=software)
    asked = Question(
        method=wish.method,
        max_length=wish.seq,
        precision=wish.precision,
        lora_r=wish.rank,
        lora_targets=wish.targets,
        adapters=wish.rank is not None or wish.targets is not None,
    )
    model, facts = asked_model(wish.model), model_facts(wish.model)
    method, _ = asked.chosen_method(model, facts, [site], fits)
    found = asked.configuration(
        method, model, facts, site, gpus=wish.gpus, checkpointing=wish.checkpointing
    )
    changes: dict[str, object] = {
        "batch_size": wish.batch or wish.gpus,
        "optimiser": wish.optimiser,
        "attention": wish.attention,
        "lora_rank": asked.rank()[0],
        "lora_targets": asked.layers()[0],
        **placement(wish.gpus, None if wish.sharding == "ddp" else wish.sharding),
    }
    found = found.replace(**{field: field_value(field, each) for field, each in changes.items()})
    told = []
    if site.gpu is not None and not site.gpu.bf16 and wish.precision is None:
        told.append(f"{found.precision}: a {site.accelerator} cannot compute in bfloat16")
    other = (*foreign_fields(found), *((f"software {software}",) if wish.software else ()))
    if other:
        told.append(f"another trainer than duetune's: {', '.join(other)}")
    return found, tuple(told)

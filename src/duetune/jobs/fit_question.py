"""The one configuration that ``duetune fits`` asks about, made from its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.jobs.prospects import Prospects
from duetune.jobs.question import Question
from duetune.jobs.recipe import choose_recipe
from duetune.jobs.site import Site
from duetune.jobs.trainer_facts import (
    foreign_fields,
    named_optimiser,
    on_gpus,
    placement,
    trainer_software,
)
from duetune.knowledge.advice import asked_gpu, asked_model
from duetune.knowledge.configurations.configuration import Attention, Sharding
from duetune.knowledge.configurations.lora_targets import (
    LORA_TARGETS,
    is_lora_targets,
    lora_layers,
    lora_targets_of,
)
from duetune.knowledge.configurations.space import field_value
from duetune.knowledge.facts.model_facts import model_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.jobs.trainer_knowledge import TrainerKnowledge
    from duetune.knowledge.configurations.configuration import Configuration


class FitQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The options as typed; None is what was not typed. ``gpu`` may have a number, such as H100:4,
    instead of ``gpus``. ``batch`` counts all GPUs together.
    """

    model: str
    gpu: str
    gpus: int | None = None
    gpus_per_member: int | None = None
    seq: int | None = None
    batch: int | None = None
    method: str | None = None
    sharding: str | None = None
    precision: str | None = None
    optimiser: str = "adamw"
    checkpointing: bool = True
    rank: int | None = None
    targets: str | None = None
    attention: str | None = None
    software: str | None = None
    memory_gb: float = 0.0


def asked_configuration(
    question: FitQuestion, knowledge: Callable[[], TrainerKnowledge]
) -> tuple[Configuration, tuple[str, ...]]:
    """Return the configuration that is meant, and what was assumed.

    Options that were not typed are as ``plan`` would choose them for duetune's trainer, with the
    least memory. ``knowledge`` is called after the options were checked.
    """
    for option in ("seq", "batch", "gpus", "rank", "gpus_per_member"):
        count = getattr(question, option)
        if count is not None and count < 1:
            raise InvalidInput(option, count, "a whole number, one or more")
    gpu, gpus = _gpus(question)
    replicated = question.sharding == Sharding.DDP
    software = question.software or trainer_software()
    memory = field_value("memory_cap_gb", question.memory_gb)
    site = Site(accelerator=asked_gpu(gpu), memory_gb=float(memory) or None, software=software)
    asked = Question(
        method=question.method,
        max_length=question.seq,
        microbatch=max(1, (question.batch or gpus) // gpus),
        checkpointing=question.checkpointing,
        precision=question.precision,
        optim=named_optimiser(str(field_value("optimiser", question.optimiser))),
        lora_r=question.rank,
        lora_targets=None if question.targets is None else _layers(question.targets),
        adapters=question.rank is not None or question.targets is not None,
        gpus_per_member=1 if replicated else question.gpus_per_member,
    )
    model, facts = asked_model(question.model), model_facts(question.model)
    method, why = asked.chosen_method(
        model, facts, [site], lambda one: Prospects(knowledge()).fits(one)
    )
    size = asked.member_sizes(method, gpus, gpus)[0]
    one = asked.configuration(
        method,
        model,
        facts,
        site,
        microbatch=asked.microbatch or 1,
        checkpointing=question.checkpointing,
    )
    changes: dict[str, object] = {"lora_rank": asked.rank()[0], "lora_targets": asked.layers()[0]}
    if question.attention is not None or question.software is not None:
        changes["attention"] = question.attention or Attention.SDPA
    one = one.replace(**{field: field_value(field, each) for field, each in changes.items()})
    assumed = []
    own = not foreign_fields(one) and question.software is None
    if own and (question.sharding is None or replicated):
        try:
            found = choose_recipe(
                asked, model, facts, site, (gpus, gpus), None, knowledge(), (method, why)
            )
        except InvalidInput:
            pass  # it does not fit: the answer is about what was asked
        else:
            assumed += found.concessions
            one, size = found.one.replace(grad_accum=1, **changes), found.gpus_per_member
    configuration = on_gpus(one, gpus, size)
    if question.batch is not None:
        configuration = configuration.replace(batch_size=question.batch)
    if question.sharding is not None and not replicated:
        configuration = configuration.replace(**placement(gpus, question.sharding))
    if site.gpu is not None and not site.gpu.bf16 and question.precision is None:
        assumed.append(f"{one.precision}: a {site.accelerator} cannot compute in bfloat16")
    other = (
        *foreign_fields(configuration),
        *((f"software {software}",) if question.software else ()),
    )
    if other:
        assumed.append(f"a trainer other than duetune's: {', '.join(other)}")
    return configuration, tuple(assumed)


def _gpus(question: FitQuestion) -> tuple[str, int]:
    """Return the name of the GPU and how many there are."""
    name, _, count = question.gpu.partition(":")
    if not count:
        return name, question.gpus or 1
    if not count.isdecimal() or not 1 <= int(count) <= 4096 or question.gpus is not None:
        raise InvalidInput("gpu", question.gpu, "one GPU and how many, such as H100:4, or --gpus")
    return name, int(count)


def _layers(targets: str) -> str | tuple[str, ...]:
    """Return the layers of ``--targets``, whose names may be in any order."""
    if targets in LORA_TARGETS:
        return lora_layers(targets)
    names = tuple(targets.split("+"))
    if not is_lora_targets(lora_targets_of(names)):
        allowed = f"{', '.join(LORA_TARGETS)}, or layers such as q_proj+v_proj"
        raise InvalidInput("targets", targets, allowed)
    return names

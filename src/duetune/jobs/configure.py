"""The configurator: it completes a job spec to a training plan, with a reason for each choice.

``configure`` is the only place that makes training plans. The choice of method, precision and batch
is in ``recipe``, the time of a step in ``step_time``, deadlines and dollars in ``terms``.
"""

from __future__ import annotations

import math
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.jobs.plan_reasons import length_reason, other_reasons, pace_reason
from duetune.jobs.prospects import known
from duetune.jobs.question import USUAL_GPUS, Question, whole_nodes
from duetune.jobs.recipe import choose_recipe
from duetune.jobs.spec.values import written_deadline
from duetune.jobs.step_time import Basis, step_seconds
from duetune.jobs.trainer_facts import USUAL
from duetune.jobs.trainer_knowledge import Packing, TrainerKnowledge
from duetune.knowledge.advice import GIVEN
from duetune.knowledge.configurations.configuration import Method
from duetune.knowledge.configurations.configuration_table import UNKNOWN_PARAMETERS
from duetune.knowledge.estimate import Interval
from duetune.knowledge.facts.model_facts import usual_model
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.knowledge.sources.estimating import known_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.jobs.site import Site
    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.jobs.step_time import MeasuredPace
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.facts.model_facts import ModelFacts
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource

OWN_COMMAND = "own command"
PERCENT = 100
ASSUMED_SHARE = 0.5
"""Share of the time to the deadline that a user's command is assumed to need."""


class TrainingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is trained, and how fast and how large it is expected to be.

    - ``gpus_per_member`` GPUs of one node share one copy of the model. ``min_gpus``, ``max_gpus``
      and ``step_s`` count such members; usually a member is one GPU.
    - One optimiser step takes ``accumulation`` microbatches of ``microbatch`` examples, over all
      GPUs together.
    - ``step_s[n]`` is the wall time in seconds of a step with n GPUs (0.0 for none). It is between
      ``step_s_quick`` and ``step_s_slow`` with 90% probability; all three are equal where no
      interval is known. ``basis`` says what they rest on.
    - ``tokens_per_s`` is the pace of one GPU by configuration knowledge, with ``support`` measured
      runs near it. ``extrapolated`` names the fields for which nothing was measured.
    - ``tokens_per_microbatch`` is the most tokens of a forward pass, if it was planned.
    - ``epochs`` is None if the number of steps was given.
    - ``memory_gb`` is the expected peak of one GPU, between ``memory_gb_low`` and
      ``memory_gb_high`` with 90% probability. ``p_fits`` is the probability that it fits.
      ``memory_terms`` are its parts, which are not all needed at the same time. They are None (or
      empty) if the size of the model or GPU is unknown; plans from before the interval was added
      have no low and high.
    - ``reasons`` says for each field whether it was given, or why it was chosen.
    - The defaults are those of a user's own command, for which most fields mean nothing.
    """

    accelerator: str
    min_gpus: int
    max_gpus: int
    gpus_per_member: int = 1
    method: str
    microbatch: int = 1
    accumulation: int = 1
    global_batch: int = 1
    precision: str = ""
    tokens_per_microbatch: int | None = None
    gradient_checkpointing: bool = False
    max_length: int = 0
    lora_r: int = 0
    lora_alpha: float = 0.0
    epochs: float | None = None
    total_steps: int
    parameters: int | None = None
    memory_gb: float | None = None
    memory_gb_low: float | None = None
    memory_gb_high: float | None = None
    memory_terms: dict[str, float] = {}
    p_fits: float | None = None
    step_s: tuple[float, ...]
    step_s_quick: tuple[float, ...]
    step_s_slow: tuple[float, ...]
    tokens_per_s: Interval | None = None
    support: int = 0
    extrapolated: tuple[str, ...] = ()
    basis: Basis
    emulated_microbatch_s: float | None
    reasons: dict[str, str]


def configure(
    spec: JobSpec,
    site: Site,
    rows: int | None = None,
    model: ModelFacts | None = None,
    measured: Sequence[MeasuredPace] = (),
    *,
    now: float | None = None,
    source: Callable[[], KnowledgeSource] = AnalyticSource,
    ran_out: Sequence[Configuration] = (),
    tokens_per_row: float | None = None,
    eval_rows: int | None = None,
) -> TrainingPlan:
    """Return the training plan of ``spec`` on ``site``; refuse what cannot work. ``plan`` and
    ``launch`` call it before a job is quoted.

    - ``rows`` is the number of examples in the dataset, ``tokens_per_row`` their mean length,
      ``eval_rows`` the number of examples in a dataset for evaluation.
    - ``model`` is what ``model_facts`` returns.
    - ``measured`` are earlier runs of any kind; those of the same training are used.
    - ``now`` is the moment of submission. It is needed only if the deadline is a moment.
    - ``source`` returns the configuration knowledge. It is called only for GPUs with a data sheet,
      because loading it takes seconds.
    - ``ran_out`` are configurations of one GPU that ran out of memory here.
    """
    _check_accelerator(spec, site)
    if spec.run is not None:
        return _own_command(spec, site, now, measured)
    _, least, most = spec.gpus
    wanted = min(site.max_gpus, most or max(least, USUAL_GPUS, site.gpus_per_node or 1))
    trained = None if rows is None else rows - held_out_rows(spec, rows)
    asked = AnalyticSource() if site.gpu is None else source()
    trainer = TrainerKnowledge(asked, site.software, ran_out, Packing.of(spec, tokens_per_row))
    name = spec.model or ""
    question, range_ = Question.of(spec), (least, wanted)
    found = choose_recipe(question, name, model, site, range_, trained, trainer)
    one, prospect, reasons, prospects = found.one, found.estimate, found.reasons, found.prospects
    gpus = found.gpus_per_member
    microbatch, accumulation = one.batch_size, one.grad_accum
    # The GPUs of a single member may share fewer microbatches; those of several cannot.
    fewest = least if least <= gpus else -(-least // gpus) * gpus
    if accumulation < fewest:
        raise InvalidInput(
            "training.gradient_accumulation_steps",
            accumulation,
            f"at least {fewest}, the minimum number of GPUs: each needs one microbatch per step",
        )
    epochs, total_steps = _length_of_run(spec, trained, microbatch * accumulation, reasons)
    facts = model or usual_model(UNKNOWN_PARAMETERS, "")
    same_runs = [run for run in measured if gpus == 1 and _same_training(run, spec, site, one)]
    most_gpus = max(gpus, min(wanted, accumulation) // gpus * gpus)
    length = prospects.usual_length(one)
    estimate = prospect if site.measurable else None
    pace = step_seconds(
        site,
        facts,
        one,
        length,
        most_gpus,
        same_runs,
        estimate,
        evaluated=_evaluated(spec, rows, eval_rows, microbatch * accumulation),
        reproducible=bool(spec.training.reproducible),
    )
    # The smallest group with the shortest step: more GPUs would wait for each other.
    members = range(-(-least // gpus), most_gpus // gpus + 1)
    step_s = pace.step_s[::gpus]
    max_gpus = min(members, key=step_s.__getitem__)
    adapted = one.method is not Method.FULL
    alpha = spec.training.lora_alpha
    if adapted:
        reasons["lora_alpha"] = "the default scale" if alpha is None else GIVEN
    reasons |= other_reasons(spec, model, max_gpus)
    reasons["step_s"] = pace_reason(spec, site, model, pace, prospect, len(same_runs))
    reasons["step_s"] += length_reason(pace.basis, length, known=tokens_per_row is not None)
    memory = prospect.memory_gb if model is not None and known(prospect.memory_gb) else None
    rests = pace.basis in {Basis.KNOWLEDGE, Basis.PHYSICS}
    return TrainingPlan(
        accelerator=site.accelerator,
        min_gpus=members[0],
        max_gpus=max_gpus,
        gpus_per_member=gpus,
        method=one.method.value,
        microbatch=microbatch,
        accumulation=accumulation,
        global_batch=microbatch * accumulation,
        precision=one.precision.value,
        tokens_per_microbatch=None if site.gpu is None else prospects.tokens_per_microbatch(one),
        gradient_checkpointing=one.grad_checkpoint,
        max_length=one.tokens_per_sample,
        lora_r=one.lora_rank if adapted else 0,
        lora_alpha=(alpha or USUAL.lora_alpha) if adapted else 0.0,
        epochs=epochs,
        total_steps=total_steps,
        parameters=None if model is None else model.parameters,
        memory_gb=None if memory is None else memory.middle,
        memory_gb_low=None if memory is None else memory.low,
        memory_gb_high=None if memory is None else memory.high,
        memory_terms={} if model is None else prospects.memory_terms(one),
        p_fits=None if model is None or site.memory is None else prospect.p_valid,
        step_s=step_s[: max_gpus + 1],
        step_s_quick=pace.quick_s[::gpus][: max_gpus + 1],
        step_s_slow=pace.slow_s[::gpus][: max_gpus + 1],
        tokens_per_s=prospect.tokens_per_s if rests else None,
        support=prospect.support if rests else 0,
        extrapolated=prospect.extrapolated if rests else (),
        basis=pace.basis,
        emulated_microbatch_s=site.emulated_microbatch_s,
        reasons=reasons,
    )


def held_out_rows(spec: JobSpec, rows: int) -> int:
    """Return how many examples the trainer holds out for evaluation."""
    training = spec.training
    if training.eval_dataset is not None:
        return 0
    fraction = USUAL.eval_fraction if training.eval_fraction is None else training.eval_fraction
    return min(int(rows * fraction), USUAL.eval_rows, rows // 2)


def _evaluated(spec: JobSpec, rows: int | None, eval_rows: int | None, batch: int) -> float:
    """Return how many examples are evaluated during training, per step of ``batch`` examples."""
    training = spec.training
    if training.eval_strategy is None or training.eval_strategy == "no":
        return 0.0
    held_out = None if rows is None else held_out_rows(spec, rows)
    known = held_out if training.eval_dataset is None else eval_rows
    count = USUAL.eval_rows if known is None else min(known, USUAL.eval_rows)
    if training.eval_strategy == "steps":
        return count / (training.eval_steps or training.logging_steps or USUAL.logging_steps)
    return 0.0 if rows is None else count * batch / max(batch, rows - (held_out or 0))


def _check_accelerator(spec: JobSpec, site: Site) -> None:
    """Refuse GPUs that the site does not have, or more than it has."""
    name, least, _ = spec.gpus
    given = str(spec.resources.accelerators)
    if name is not None and not site.sells(name):
        allowed = (
            f"auto or {site.accelerator}, the only GPU of the fleet; for {name}, set "
            "site.accelerator in config.toml or start a fleet with --accelerator"
        )
        raise InvalidInput("resources.accelerators", given, allowed)
    most = site.max_gpus
    if least > most:
        why = f"{site.limit} allows no more" if site.limit else "the fleet has no more"
        raise InvalidInput("resources.accelerators", given, f"at most {most}: {why}")
    node = site.gpus_per_node
    if node is None:
        return
    if most < node:
        field = site.limit or "site.max_gpus"
        raise InvalidInput(field, most, f"at least {node}: {whole_nodes(node)}")
    if min(most, spec.gpus[2] or most) // node * node < least:
        allowed = f"a multiple of {node}, at most {most // node * node}: {whole_nodes(node)}"
        raise InvalidInput("resources.accelerators", given, allowed)


def _length_of_run(
    spec: JobSpec, trained: int | None, batch: int, reasons: dict[str, str]
) -> tuple[float | None, int]:
    """Return the epochs (None if steps were given) and the optimiser steps."""
    training = spec.training
    if training.max_steps is not None:
        reasons["total_steps"] = GIVEN
        return None, training.max_steps
    if trained is None:
        allowed = "a number of steps, because the size of the dataset is unknown"
        raise InvalidInput("training.max_steps", None, allowed)
    epochs = training.num_train_epochs
    reasons["epochs"] = "the default number" if epochs is None else GIVEN
    epochs = USUAL.num_train_epochs if epochs is None else epochs
    reasons["total_steps"] = f"{epochs:g} epochs of {trained} examples, {batch} per step"
    return epochs, max(1, math.ceil(epochs * trained / batch))


def _same_training(run: MeasuredPace, spec: JobSpec, site: Site, one: Configuration) -> bool:
    """Return whether a measured run trained the same model in the same way on this GPU."""
    return (
        run.subject == spec.model
        and known_gpu(run.accelerator) == site.gpu_model
        and run.method == one.method.value
        and run.max_length == one.tokens_per_sample
        and run.gradient_checkpointing == one.grad_checkpoint
    )


def _time_left(spec: JobSpec, now: float | None) -> float:
    if isinstance(spec.deadline, timedelta):
        return spec.deadline.total_seconds()
    if now is None:
        raise InvalidInput("deadline", written_deadline(spec.deadline), "a duration")
    return spec.deadline_s(now)


def _own_command(
    spec: JobSpec, site: Site, now: float | None, measured: Sequence[MeasuredPace]
) -> TrainingPlan:
    """Return the plan of a user's command. Progress is what the command reports, in steps of
    ``max_steps`` or in percent. With a range of GPUs each GPU has one member, or each node if the
    fleet gives only whole nodes; an exact number of GPUs is one node.
    """
    given = spec.training.max_steps
    total_steps = PERCENT if given is None else given
    runs = [
        run for run in measured if run.subject == spec.run and run.accelerator == site.accelerator
    ]
    name, least, asked = spec.gpus
    node = site.gpus_per_node
    own = node or (1 if spec.has_members else least)
    if not spec.has_members and least > own:
        allowed = f"{own}, or a range such as {own}..{least}: {whole_nodes(own)}"
        raise InvalidInput("resources.accelerators", str(spec.resources.accelerators), allowed)
    given_own = spec.resources.gpus_per_member
    if given_own not in {None, own} and node is not None:
        raise InvalidInput("resources.gpus_per_member", given_own, f"{own}: {whole_nodes(own)}")
    if given_own not in {None, own}:
        why = "a range of GPUs starts the command once per GPU; give their exact number instead"
        allowed = f"{own}: {why}" if spec.has_members else f"{own}, all its GPUs"
        raise InvalidInput("resources.gpus_per_member", given_own, allowed)
    if runs:
        basis, step = Basis.MEASURED, median(run.step_s * run.gpus / own for run in runs)
        pace = f"{len(runs)} earlier runs of this command"
    else:
        time_s = _time_left(spec, now) / site.speed
        basis, step = Basis.ASSUMED, ASSUMED_SHARE * time_s / total_steps
        pace = "nothing was measured: assumed to need half of the time to the deadline"
    most = min(asked or site.max_gpus, site.max_gpus) // own
    least, most = (-(-least // own), most) if spec.has_members else (1, 1)
    step_s = [0.0]
    for gpus in range(1, most + 1):
        same = [run.step_s for run in runs if run.gpus == gpus * own]
        step_s.append(median(same) if same else step / gpus)
    if most > 1:
        pace += "; members are assumed to share the work evenly until that is measured"
    one = "your own command runs on one GPU" if own == 1 else "your own command has one node"
    return TrainingPlan(
        accelerator=site.accelerator,
        min_gpus=least,
        max_gpus=most,
        gpus_per_member=own,
        method=OWN_COMMAND,
        total_steps=total_steps,
        step_s=tuple(step_s),
        step_s_quick=tuple(step_s),
        step_s_slow=tuple(step_s),
        basis=basis,
        emulated_microbatch_s=site.emulated_microbatch_s,
        reasons={
            "accelerator": "the GPU of the fleet" if name is None else GIVEN,
            "min_gpus": GIVEN if spec.has_members else one,
            "max_gpus": GIVEN if spec.has_members else one,
            "total_steps": "progress in percent" if given is None else GIVEN,
            "step_s": pace,
        },
    )

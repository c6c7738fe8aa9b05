"""How a job is to be trained: what was asked for, completed by knowledge, with reasons.

``configure`` is the one place where a training plan comes from.
"""

from __future__ import annotations

import math
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.jobs.question import USUAL_GPUS
from duetune.jobs.recipe import Prospects, choose_recipe, known
from duetune.jobs.spec.amounts import written_deadline
from duetune.jobs.step_time import Basis, step_seconds
from duetune.jobs.trainer_facts import USUAL, TrainerKnowledge
from duetune.knowledge.advice import GIVEN
from duetune.knowledge.configurations.configuration import Method
from duetune.knowledge.configurations.configuration_table import UNKNOWN_PARAMETERS
from duetune.knowledge.estimate import Interval
from duetune.knowledge.facts.model_facts import usual_model
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.knowledge.sources.known_names import known_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.jobs.site import Site
    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.jobs.step_time import MeasuredPace, Pace
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.estimate import Estimate
    from duetune.knowledge.facts.model_facts import ModelFacts
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource

OWN_COMMAND = "own command"
PERCENT = 100
ASSUMED_SHARE = 0.5
"""An own command of which nothing is known is taken to need this share of its time."""


class TrainingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is trained, and how fast that is believed to be.

    One optimiser step takes ``accumulation`` microbatches of ``microbatch`` examples over all GPUs
    together. ``step_s[n]`` are wall seconds per step with n GPUs (0.0 for none), on the given
    ``basis``; 90% likely between ``step_s_quick`` and ``step_s_slow``, which are the same where
    nothing is said of that. ``tokens_per_s`` are those of one GPU by configuration knowledge, with
    ``support`` measured runs near it; ``extrapolated`` names what nothing was measured of.
    ``epochs`` is None where the steps were given. ``memory_gb`` is the estimated peak of one GPU
    and ``p_fits`` the probability that it has as much; ``memory_terms`` are what it is for, not all
    of it at the same time. None, and no terms, where the size of the model (or of the GPU) is not
    known. ``reasons`` says for every field that could have been given whether it was ("given") or
    why it was chosen.
    """

    accelerator: str
    min_gpus: int
    max_gpus: int
    method: str
    microbatch: int
    accumulation: int
    global_batch: int
    precision: str
    gradient_checkpointing: bool
    max_length: int
    lora_r: int
    lora_alpha: float
    epochs: float | None
    total_steps: int
    parameters: int | None
    memory_gb: float | None
    memory_gb_low: float | None = None
    memory_gb_high: float | None = None
    memory_terms: dict[str, float]
    p_fits: float | None
    step_s: tuple[float, ...]
    step_s_quick: tuple[float, ...]
    step_s_slow: tuple[float, ...]
    tokens_per_s: Interval | None
    support: int
    extrapolated: tuple[str, ...]
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
) -> TrainingPlan:
    """What ``spec`` leaves open, chosen for ``site``; what cannot work is refused.

    ``rows`` of the dataset have about ``tokens_per_row``, ``model`` is from ``model_facts``,
    ``measured`` are earlier runs of any kind: those that are alike are used. ``now``, the moment of
    submission, is only asked for where a deadline is a moment, too. ``source`` is called for only
    where it could know something: on GPUs that are real and have a data sheet. ``ran_out`` are
    configurations of one GPU that ran out of memory here.
    """
    _check_accelerator(spec, site)
    if spec.run is not None:
        return _own_command(spec, site, now, measured)
    _, least, most = spec.gpus
    wanted = min(site.max_gpus, most or max(least, USUAL_GPUS))
    trained = None if rows is None else rows - held_out_rows(spec, rows)
    asked = AnalyticSource() if site.gpu is None else source()
    prospects = Prospects(TrainerKnowledge(asked, site.software, ran_out), tokens_per_row)
    one, prospect, reasons = choose_recipe(spec, site, model, wanted, trained, prospects)
    microbatch, accumulation = one.batch_size, one.grad_accum
    if accumulation < least:
        raise InvalidInput(
            "training.gradient_accumulation_steps",
            accumulation,
            f"at least {least}, the fewest GPUs that the job may run on: each needs a share",
        )
    epochs, total_steps = _length_of_run(spec, trained, microbatch * accumulation, reasons)
    facts = model or usual_model(UNKNOWN_PARAMETERS, "")
    alike = [run for run in measured if _alike(run, spec, site, one)]
    most_gpus = min(wanted, accumulation)
    length = prospects.usual_length(one)
    knowing = prospect if site.measurable else None
    pace = step_seconds(site, facts, one, length, most_gpus, alike, knowing)
    # The fewest that are quickest: more would wait for each other, or for the network.
    max_gpus = min(range(least, most_gpus + 1), key=pace.step_s.__getitem__)
    adapted = one.method is Method.LORA
    alpha = spec.training.lora_alpha
    if adapted:
        reasons["lora_alpha"] = "the usual scale" if alpha is None else GIVEN
    reasons |= _other_reasons(spec, model, max_gpus)
    reasons["step_s"] = _pace_reason(spec, site, model, pace, prospect, len(alike))
    reasons["step_s"] += _length_reason(pace.basis, length, known=tokens_per_row is not None)
    memory = prospect.memory_gb if model is not None and known(prospect.memory_gb) else None
    rests = pace.basis in {Basis.KNOWLEDGE, Basis.PHYSICS}
    return TrainingPlan(
        accelerator=site.accelerator,
        min_gpus=least,
        max_gpus=max_gpus,
        method=one.method.value,
        microbatch=microbatch,
        accumulation=accumulation,
        global_batch=microbatch * accumulation,
        precision=one.precision.removesuffix("-mixed"),
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
        step_s=pace.step_s[: max_gpus + 1],
        step_s_quick=pace.quick_s[: max_gpus + 1],
        step_s_slow=pace.slow_s[: max_gpus + 1],
        tokens_per_s=prospect.tokens_per_s if rests else None,
        support=prospect.support if rests else 0,
        extrapolated=prospect.extrapolated if rests else (),
        basis=pace.basis,
        emulated_microbatch_s=site.emulated_microbatch_s,
        reasons=reasons,
    )


def held_out_rows(spec: JobSpec, rows: int) -> int:
    """Examples that the trainer sets aside to measure the loss on, as ``batches.held_out``."""
    training = spec.training
    if training.eval_dataset is not None:
        return 0
    fraction = USUAL.eval_fraction if training.eval_fraction is None else training.eval_fraction
    return min(int(rows * fraction), USUAL.eval_rows, rows // 2)


def _check_accelerator(spec: JobSpec, site: Site) -> None:
    name, least, _ = spec.gpus
    wish = str(spec.resources.accelerators)
    if name is not None and not site.sells(name):
        raise InvalidInput(
            "resources.accelerators", wish, f"auto or {site.accelerator}: the fleet has no other"
        )
    most = 1 if spec.run is not None else site.max_gpus
    if least > most:
        all_there_is = f"more is not held by {site.limit}" if site.limit else "the fleet's all"
        why = "an own command (run) runs on one GPU" if spec.run is not None else all_there_is
        raise InvalidInput("resources.accelerators", wish, f"at most {most}: {why}")


def _length_of_run(
    spec: JobSpec, trained: int | None, batch: int, reasons: dict[str, str]
) -> tuple[float | None, int]:
    """Epochs, if they are what counts, and optimiser steps."""
    training = spec.training
    if training.max_steps is not None:
        reasons["total_steps"] = GIVEN
        return None, training.max_steps
    if trained is None:
        allowed = "given, since the number of examples is not known"
        raise InvalidInput("training.max_steps", None, allowed)
    epochs = training.num_train_epochs
    reasons["epochs"] = "the usual number" if epochs is None else GIVEN
    epochs = USUAL.num_train_epochs if epochs is None else epochs
    reasons["total_steps"] = f"{epochs:g} passes over {trained} examples, {batch} per step"
    return epochs, max(1, math.ceil(epochs * trained / batch))


def _alike(run: MeasuredPace, spec: JobSpec, site: Site, one: Configuration) -> bool:
    return (
        run.subject == spec.model
        and known_gpu(run.accelerator) == site.gpu_model
        and run.method == one.method.value
        and run.max_length == one.tokens_per_sample
        and run.gradient_checkpointing == one.grad_checkpoint
    )


def _other_reasons(spec: JobSpec, model: ModelFacts | None, max_gpus: int) -> dict[str, str]:
    name, least, most = spec.gpus
    given_most = most is not None and max_gpus == most
    return {
        "accelerator": "what the fleet has" if name is None else GIVEN,
        "min_gpus": GIVEN if least > 1 else "one is enough",
        "max_gpus": GIVEN if given_most else "as many as there are and as speed a step up",
        "global_batch": "microbatch times accumulation",
        "parameters": "not known" if model is None else f"from {model.source}",
    }


def _pace_reason(
    spec: JobSpec,
    site: Site,
    model: ModelFacts | None,
    pace: Pace,
    prospect: Estimate,
    runs: int,
) -> str:
    match pace.basis:
        case Basis.MEASURED:
            return f"{runs} earlier runs like this one"
        case Basis.EMULATED:
            return "what the emulated GPU takes for a microbatch"
        case Basis.KNOWLEDGE | Basis.PHYSICS:
            reason = _evidence(spec, site, prospect)
        case _:
            reason = f"the arithmetic of the model on {site.accelerator}"
    if model is None:
        reason += f", taken to have {UNKNOWN_PARAMETERS / 1e9:g} billion parameters"
    return reason


def _length_reason(basis: Basis, length: int, *, known: bool) -> str:
    if basis in {Basis.MEASURED, Basis.EMULATED}:
        return ""
    half = "" if known else ", half of what they may have"
    return f"; examples of about {length:,} tokens{half}"


def _evidence(spec: JobSpec, site: Site, prospect: Estimate) -> str:
    """The pace of one GPU, how sure it is, and what it rests on."""
    low, middle, high = prospect.tokens_per_s
    pace = f"{site.accelerator}: {middle:,.0f} tokens/s ({low:,.0f} to {high:,.0f})"
    if "gpu_model" in prospect.extrapolated:
        return f"{pace}; nothing of {site.accelerator} was measured: by physics"
    count = prospect.support
    runs = f"{count or 'no'} measured run{'' if count < 2 else 's'} near it"
    unseen = {"model": spec.model, "method": "this method", "software": "this software"}
    missing = [str(words) for field, words in unseen.items() if field in prospect.extrapolated]
    nothing = f"; nothing was measured of {' or '.join(missing)}" if missing else ""
    return f"{pace}, {runs}{nothing}"


def _time_left(spec: JobSpec, now: float | None) -> float:
    if isinstance(spec.deadline, timedelta):
        return spec.deadline.total_seconds()
    if now is None:
        raise InvalidInput("deadline", written_deadline(spec.deadline), "a duration")
    return spec.deadline_s(now)


def _own_command(
    spec: JobSpec, site: Site, now: float | None, measured: Sequence[MeasuredPace]
) -> TrainingPlan:
    """One GPU. Progress is what the command reports: steps of ``max_steps``, or percent."""
    given = spec.training.max_steps
    total_steps = PERCENT if given is None else given
    alike = [
        run.step_s
        for run in measured
        if run.subject == spec.run and run.accelerator == site.accelerator
    ]
    if alike:
        basis, step = Basis.MEASURED, median(alike)
        pace = f"{len(alike)} earlier runs of this command"
    else:
        time_s = _time_left(spec, now) / site.speed
        basis, step = Basis.ASSUMED, ASSUMED_SHARE * time_s / total_steps
        pace = "nothing was measured: taken to need half of the time until the deadline"
    name, _, _ = spec.gpus
    return TrainingPlan(
        accelerator=site.accelerator,
        min_gpus=1,
        max_gpus=1,
        method=OWN_COMMAND,
        microbatch=1,
        accumulation=1,
        global_batch=1,
        precision="",
        gradient_checkpointing=False,
        max_length=0,
        lora_r=0,
        lora_alpha=0.0,
        epochs=None,
        total_steps=total_steps,
        parameters=None,
        memory_gb=None,
        memory_terms={},
        p_fits=None,
        step_s=(0.0, step),
        step_s_quick=(0.0, step),
        step_s_slow=(0.0, step),
        tokens_per_s=None,
        support=0,
        extrapolated=(),
        basis=basis,
        emulated_microbatch_s=site.emulated_microbatch_s,
        reasons={
            "accelerator": "what the fleet has" if name is None else GIVEN,
            "min_gpus": "an own command runs on one GPU",
            "max_gpus": "an own command runs on one GPU",
            "total_steps": "progress in percent" if given is None else GIVEN,
            "step_s": pace,
        },
    )

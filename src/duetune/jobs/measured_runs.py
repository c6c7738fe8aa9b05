"""How fast jobs really trained: written as observations when a job ends, and read for new plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from duetune.control.turn import measured_pace
from duetune.core.events import Status
from duetune.errors import InvalidInput
from duetune.jobs.question import Question
from duetune.jobs.site import Site
from duetune.jobs.step_time import MeasuredPace
from duetune.jobs.trainer_facts import trainer_software
from duetune.knowledge.configurations.configuration import Attention
from duetune.knowledge.facts.gpus import gpu_named
from duetune.knowledge.facts.model_registry import model_name
from duetune.knowledge.model.quality import ASSUMED_LENGTH, EMULATED, noted
from duetune.knowledge.observation import Observation, Origin, RunOutcome
from duetune.simulate.journal_replay import state_of
from duetune.training.task import read_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from duetune.core.events import Recorded
    from duetune.engine.state import JobState
    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.settings import SiteSettings
    from duetune.store.store import Store
    from duetune.training.task import TrainingTask


def record_observations(
    store: Store, site: SiteSettings, job: str, story: Sequence[Recorded]
) -> None:
    """Store one observation per number of GPUs the job was measured at, and one if it ran out of
    memory.

    The controller calls it when a job is over; a job is recorded only once. Users' own commands
    have no observations, because only they know what their steps are. Members of several GPUs have
    none yet: their paces must not be taken for those of single GPUs.
    """
    state = state_of(story, stream=job)
    if state.submitted.task.gpus > 1:
        return
    try:
        task = read_task(Path(state.submitted.task.folder))
    except InvalidInput:
        return
    provenance = f"job {job}"
    if len(store.observations.history(provenance=provenance)):
        return
    slot_wall_s = state.submitted.slot_s / site.speed
    # Decisions note the pace at the beginning of a slot; a short job ends before the second one.
    paces = state.pace | measured_pace(state, site.speed)
    found = [
        _measured(task, site, state, gpus, steps / slot_wall_s, provenance)
        for gpus, steps in sorted(paces.items())
        if steps > 0
    ]
    if state.status is Status.FAILED and state.progress.out_of_memory:
        found.append(
            Observation(
                configuration=_configuration(task, site, max(1, state.progress.world)),
                outcome=RunOutcome.OOM,
                measured_at=state.progress.at,
                origin=Origin.PRODUCTION,
                provenance=provenance,
                error=state.reason,
            )
        )
    store.observations.record_all(noted(found))


def measured_paces(observations: Iterable[Observation], spec: JobSpec) -> tuple[MeasuredPace, ...]:
    """Return the measured speeds of earlier jobs with the model of ``spec``."""
    if spec.model is None:
        return ()
    wanted = model_name(spec.model)
    paces = []
    for observation in observations:
        run = observation.configuration
        if (
            observation.origin is not Origin.PRODUCTION
            or not observation.step_s
            or model_name(run.model) != wanted
        ):
            continue
        length = run.longest_sample or run.tokens_per_sample
        microbatch = max(1, run.batch_size // run.num_gpus)
        if run.packed:
            microbatch = max(1, run.tokens_per_microbatch // length)
        rows = observation.step_rows or run.batch_size * run.grad_accum
        paces.append(
            MeasuredPace(
                subject=spec.model,
                accelerator=run.gpu_model,
                gpus=run.num_gpus,
                step_s=observation.step_s * run.grad_accum,
                method=run.method.value,
                microbatch=microbatch,
                accumulation=-(-rows // microbatch),
                max_length=length,
                gradient_checkpointing=run.grad_checkpoint,
            )
        )
    return tuple(paces)


def ran_out_of_memory(observations: Iterable[Observation]) -> tuple[Configuration, ...]:
    """Return the configurations with which jobs ran out of memory."""
    return tuple(
        each.configuration
        for each in observations
        if each.origin is Origin.PRODUCTION and each.outcome is RunOutcome.OOM
    )


def _measured(
    task: TrainingTask,
    site: SiteSettings,
    state: JobState,
    gpus: int,
    steps_per_s: float,
    provenance: str,
) -> Observation:
    """Return the observation of a job at one number of GPUs."""
    progress = state.progress
    counted = progress.tokens / progress.step if progress.step else 0.0
    mean = counted / task.batch_rows
    configuration = _configuration(task, site, gpus, mean)
    return Observation(
        configuration=configuration,
        outcome=RunOutcome.VALID,
        tokens_per_s=steps_per_s * (counted or task.batch_rows * task.max_length),
        step_s=1 / steps_per_s / configuration.grad_accum,
        steps=progress.step or None,
        step_rows=task.batch_rows,
        measured_at=progress.at,
        origin=Origin.PRODUCTION,
        provenance=provenance,
        protocol=f"steps of {task.batch_rows} rows",
        flags=() if counted else (ASSUMED_LENGTH,),
    )


def _configuration(
    task: TrainingTask, site: SiteSettings, gpus: int, mean: float = 0.0
) -> Configuration:
    """Return the configuration of a task, with rows of ``mean`` tokens if that is known. An
    emulated GPU is recorded as such, because its speed is made up.
    """
    asked = Question(
        max_length=task.max_length,
        precision=task.weights,
        optim=task.optim,
        lora_r=task.lora_r,
        lora_targets=task.lora_target_modules,
    )
    found = asked.configuration(
        task.method,
        task.model,
        None,
        Site.of(site, trainer_software()),
        gpus=gpus,
        microbatch=task.per_device_train_batch_size,
        accumulation=task.microbatches,
        checkpointing=task.gradient_checkpointing,
    )
    if task.emulated_microbatch_s is not None:
        return found.replace(gpu_model=EMULATED)
    if gpu_named(found.gpu_model) is None:
        return found
    length = max(1, min(task.max_length, round(mean) or task.max_length))
    return found.replace(
        batch_size=gpus,
        tokens_per_microbatch=task.microbatch_tokens,
        tokens_per_sample=length,
        longest_sample=task.max_length if length < task.max_length else 0,
        attention=Attention.VARLEN,
        fast_kernels=task.use_liger_kernel is not False,
    )

"""How fast training really was: written down for the configurations to come, and read for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from duetune.core.events import Status
from duetune.errors import InvalidInput
from duetune.jobs.question import Question
from duetune.jobs.site import Site
from duetune.jobs.step_time import MeasuredPace
from duetune.jobs.trainer_facts import trainer_software
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
    """One observation for each number of GPUs the job was measured at, and one if it ran out of
    memory. Own commands have none: what their steps are only they know. A job is recorded once.
    """
    state = state_of(story, stream=job)
    try:
        task = read_task(Path(state.submitted.task.folder))
    except InvalidInput:
        return
    provenance = f"job {job}"
    if len(store.observations.history(provenance=provenance)):
        return
    slot_wall_s = state.submitted.slot_s / site.speed
    found = [
        _measured(task, site, state, gpus, steps / slot_wall_s, provenance)
        for gpus, steps in sorted(state.pace.items())
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
    """What jobs have shown of the spec's model."""
    if spec.model is None:
        return ()
    wanted = model_name(spec.model)
    paces = []
    for each in observations:
        told = each.configuration
        if (
            each.origin is not Origin.PRODUCTION
            or not each.step_s
            or model_name(told.model) != wanted
        ):
            continue
        microbatch = max(1, told.batch_size // told.num_gpus)
        rows = each.step_rows or told.batch_size * told.grad_accum
        paces.append(
            MeasuredPace(
                subject=spec.model,
                accelerator=told.gpu_model,
                gpus=told.num_gpus,
                step_s=each.step_s * told.grad_accum,
                method=told.method.value,
                microbatch=microbatch,
                accumulation=-(-rows // microbatch),
                max_length=told.tokens_per_sample,
                gradient_checkpointing=told.grad_checkpoint,
            )
        )
    return tuple(paces)


def ran_out_of_memory(observations: Iterable[Observation]) -> tuple[Configuration, ...]:
    """Return the configurations that jobs ran out of memory with."""
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
    progress = state.progress
    counted = progress.tokens / progress.step if progress.step else 0.0
    configuration = _configuration(task, site, gpus)
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


def _configuration(task: TrainingTask, site: SiteSettings, gpus: int) -> Configuration:
    """An emulated GPU is told as such: its speed is made up."""
    asked = Question(
        max_length=task.max_length,
        bf16=task.bf16,
        fp16=task.fp16,
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
    return found if task.emulated_microbatch_s is None else found.replace(gpu_model=EMULATED)

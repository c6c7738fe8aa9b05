"""How fast training really was: written down for the configurations to come, and read for them."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.quote.pace import MeasuredPace
from duetune.simulate.journal import state_of
from duetune.store.observations import Observation
from duetune.training.task import read_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.events import Recorded
    from duetune.settings import SiteSettings
    from duetune.spec.schema import JobSpec
    from duetune.store.store import Store
    from duetune.training.task import TrainingTask

SOFTWARE = ("duetune", "torch", "torchft", "transformers", "peft")
EMULATED = "emulated"


def record_observations(
    store: Store, site: SiteSettings, job: str, story: Sequence[Recorded]
) -> None:
    """One observation for each number of GPUs the job was measured at. Own commands have none: what
    their steps are only they know.
    """
    state = state_of(story, stream=job)
    try:
        task = read_task(Path(state.submitted.task.folder))
    except InvalidInput:
        return
    slot_wall_s = state.submitted.slot_s / site.speed
    progress = state.progress
    tokens_per_step = progress.tokens / progress.step if progress.step else 0.0
    for gpus, steps in sorted(state.pace.items()):
        rate = steps / slot_wall_s
        store.observations.record(
            Observation(
                job=job,
                gpus=gpus,
                model=task.model,
                method=task.method.value,
                gpu=_gpu(site, task),
                microbatch=task.per_device_train_batch_size,
                global_batch=task.batch_rows,
                sequence_length=task.max_length,
                precision=_precision(task),
                measured_at=time.time(),
                steps_per_s=rate,
                tokens_per_s=rate * tokens_per_step or None,
                versions=_versions(),
            )
        )


def measured_paces(observations: Sequence[Observation], spec: JobSpec) -> tuple[MeasuredPace, ...]:
    """What is known of the spec's model."""
    return tuple(
        MeasuredPace(
            subject=each.model,
            accelerator=each.gpu,
            gpus=each.gpus,
            step_s=1 / each.steps_per_s,
            method=each.method,
            microbatch=each.microbatch,
            accumulation=-(-each.global_batch // each.microbatch),
            max_length=each.sequence_length,
        )
        for each in observations
        if each.model == spec.model and each.steps_per_s
    )


def _gpu(site: SiteSettings, task: TrainingTask) -> str:
    """What the steps ran on. An emulated GPU is told as such: its speed is made up."""
    if task.emulated_microbatch_s is not None:
        return EMULATED
    return site.accelerator or "cpu"


def _precision(task: TrainingTask) -> str:
    return "bf16" if task.bf16 else "fp16" if task.fp16 else "fp32"


def _versions() -> dict[str, str]:
    found = {}
    for name in SOFTWARE:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found

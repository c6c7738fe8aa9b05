"""From a job spec to the file of another tool."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

import msgspec

from duetune.errors import InvalidInput
from duetune.interop.export_jobs.comments import Notes
from duetune.interop.export_jobs.machines import machines_of
from duetune.interop.export_jobs.rayjob import to_rayjob
from duetune.interop.export_jobs.sbatch import to_sbatch
from duetune.interop.export_jobs.to_skypilot import to_skypilot
from duetune.interop.export_jobs.trainjob import to_trainjob
from duetune.jobs.spec.conversion_notes import Note

if TYPE_CHECKING:
    from duetune.jobs.spec.job_spec import JobSpec


class Target(StrEnum):
    SKYPILOT = "skypilot"
    TRAINJOB = "trainjob"
    RAYJOB = "rayjob"
    SBATCH = "sbatch"


class Exported(msgspec.Struct, frozen=True):
    """``text`` is the file; its first lines are the notes as comments."""

    target: Target
    text: str
    launch: tuple[str, ...]
    notes: tuple[Note, ...]


def export_job(
    spec: JobSpec,
    target: Target,
    *,
    gpus: int | None = None,
    image: str | None = None,
    file: str = "FILE",
) -> Exported:
    """Secrets are named in the file, their values never are. ``file``: how it will be called."""
    machines = machines_of(spec, gpus)
    notes = Notes(file)
    notes.common(spec, machines, has_limit=target is not Target.SKYPILOT)
    if image is not None and target in {Target.SKYPILOT, Target.SBATCH}:
        raise InvalidInput("--image", image, f"nothing: {target} runs in no container")
    match target:
        case Target.SKYPILOT:
            text = to_skypilot(spec, machines, notes)
        case Target.TRAINJOB:
            text = to_trainjob(spec, machines, notes, image)
        case Target.RAYJOB:
            text = to_rayjob(spec, machines, notes, image)
        case Target.SBATCH:
            text = to_sbatch(spec, machines, notes)
        case _:
            assert_never(target)
    first = "#!/bin/bash\n" if target is Target.SBATCH else ""
    return Exported(target, first + notes.comment() + text, tuple(notes.how), tuple(notes.all))

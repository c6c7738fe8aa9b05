"""Export a job spec as a file of another tool.

``export_job`` completes the spec with the recipe that duetune would choose and writes the file for
SkyPilot, Kubeflow, KubeRay or Slurm. Differences are listed as comments in its first lines.
"""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

import msgspec

from duetune.errors import InvalidInput
from duetune.interop.export_jobs.kubernetes import to_rayjob, to_trainjob
from duetune.interop.export_jobs.machines import machines_of
from duetune.interop.export_jobs.sbatch import to_sbatch
from duetune.interop.export_jobs.to_skypilot import ANY, to_skypilot
from duetune.jobs.recipe import recipe_by_data_sheet
from duetune.jobs.site import CPU
from duetune.jobs.spec.conversion_notes import Note, one_line
from duetune.jobs.spec.sections import AUTO, CheckpointSpec
from duetune.jobs.spec.values import written_deadline, written_duration

if TYPE_CHECKING:
    from duetune.interop.export_jobs.machines import Machines
    from duetune.jobs.spec.job_spec import JobSpec


class Notes:
    """Collects notes and launch commands while a file is made.

    ``all`` are fields that differ there, ``how`` are the commands that start the job.
    """

    def __init__(self, file: str) -> None:
        self.file = shlex.quote(file)
        self.all: list[Note] = []
        self.how: list[str] = []

    def add(self, field: str, says: str) -> None:
        """Note what is different about ``field`` in the other tool."""
        self.all.append(Note(field, says))

    def launch(self, command: str) -> None:
        """Add a command that the user runs to start the job."""
        self.how.append(command)

    def common(self, spec: JobSpec, machines: Machines, *, has_limit: bool) -> None:
        """Note what none of the tools has: deadlines, budgets and GPUs that come and go."""
        self.add("deadline", f"{written_deadline(spec.deadline)} is not enforced there")
        for field in ("budget", "value", "max_price"):
            amount = getattr(spec, field)
            if amount is not None:
                self.add(field, f"${amount:g} is not enforced there")
        if spec.max_duration is not None and not has_limit:
            self.add("max_duration", f"{written_duration(spec.max_duration)} is not enforced there")
        if spec.policy != AUTO:
            self.add("policy", f"{spec.policy} is not used there")
        if spec.priority:
            self.add("priority", f"{spec.priority} is not exported")
        if spec.project:
            self.add("project", f"{spec.project} has no quota there")
        _, least, most = spec.gpus
        if most != least:
            self.add(
                "resources.accelerators",
                f"{machines.total} GPUs all the time; choose another number with --gpus",
            )
        if spec.checkpoint.keep != CheckpointSpec().keep:
            self.add("checkpoint.keep", f"{spec.checkpoint.keep} is not exported")
        if spec.run is not None:
            self.add("run", "runs once per machine there, not once per GPU")
            if spec.training.max_steps is not None:
                self.add("training.max_steps", "not used there")

    def comment(self) -> str:
        """Return launch commands and notes as the comment at the top of the file."""
        lines = ["Exported by duetune. To launch:"]
        lines += [f"  {one_line(line)}" for line in self.how]
        if self.all:
            lines.append("Differences:")
            lines += [f"  {note}" for note in self.all]
        return "".join(f"# {line}\n" for line in lines)


class Target(StrEnum):
    """The tools to which a job can be exported."""

    SKYPILOT = "skypilot"
    TRAINJOB = "trainjob"
    RAYJOB = "rayjob"
    SBATCH = "sbatch"


class Exported(msgspec.Struct, frozen=True):
    """An exported job: ``text`` is the file, ``launch`` the commands that start it."""

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
    """Return the job as a file of ``target``. ``duetune export`` calls it.

    Secrets are named in the file; their values never are. ``file`` is the name the file will have.
    """
    machines = machines_of(spec, gpus)
    notes = Notes(file)
    notes.common(spec, machines, has_limit=target is not Target.SKYPILOT)
    if image is not None and target in {Target.SKYPILOT, Target.SBATCH}:
        raise InvalidInput("--image", image, f"no value: {target} does not use containers")
    spec = _planned(spec, machines, target, notes)
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


def _planned(spec: JobSpec, machines: Machines, target: Target, notes: Notes) -> JobSpec:
    """Return the spec with the recipe that ``duetune plan`` would choose for these GPUs.

    Fields that the spec gives stay as they are. A job that does not fit by the data sheet is
    exported as it is, with a note: the other site may know its GPUs better.
    """
    if spec.run is not None:
        return spec
    any_gpu = ANY[0] if target is Target.SKYPILOT else CPU
    accelerator = machines.accelerator or any_gpu
    try:
        recipe = recipe_by_data_sheet(spec, accelerator, machines.total)
    except InvalidInput as error:
        notes.add("training", f"not planned, the job may not run: {error}")
        return spec
    given = spec.training.given
    chosen: dict[str, object] = {
        "per_device_train_batch_size": recipe.batch_size,
        "gradient_accumulation_steps": recipe.grad_accum,
        "gradient_checkpointing": recipe.grad_checkpoint,
        "max_length": recipe.tokens_per_sample,
    }
    precision = recipe.precision.removesuffix("-mixed")
    if precision != "fp32" and not (given.get("bf16") or given.get("fp16")):
        chosen[precision] = True
    gpu = f"{machines.total} x {accelerator}" if accelerator != CPU else "an unknown GPU"
    notes.add(
        "training",
        f"{recipe.method}, {precision}, {recipe.grad_accum} x {recipe.batch_size} examples per "
        f"step, planned for {gpu} from data sheets, without measured runs",
    )
    return spec.amended(method=recipe.method.value, training=chosen | given)

"""Export a job spec as a file of another tool.

``export_job`` completes the spec with the recipe that duetune would choose and writes the file for
SkyPilot, Kubeflow, KubeRay or Slurm. Differences are listed as comments in its first lines.
"""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import msgspec

from duetune.errors import InvalidInput, MissingExtra
from duetune.interop.export_jobs.kubernetes import to_rayjob, to_trainjob
from duetune.interop.export_jobs.machines import machines_of
from duetune.interop.export_jobs.sbatch import to_sbatch
from duetune.interop.export_jobs.to_skypilot import ANY, to_skypilot
from duetune.jobs.configure import held_out_rows
from duetune.jobs.recipe import recipe_by_data_sheet
from duetune.jobs.site import CPU
from duetune.jobs.spec.adapter_fields import LORA_SETTINGS, QUANTISED_SETTINGS
from duetune.jobs.spec.conversion_notes import Note, one_line
from duetune.jobs.spec.sections import AUTO, CheckpointSpec
from duetune.jobs.spec.training_fields import Training
from duetune.jobs.spec.values import written_deadline, written_duration
from duetune.jobs.trainer_facts import USUAL
from duetune.knowledge.configurations.configuration import Method
from duetune.training.dataset_rows import TEXT_FIELD, check_dataset

if TYPE_CHECKING:
    from duetune.interop.export_jobs.machines import Machines
    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.training.dataset_rows import DatasetSummary


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
        if spec.hard_deadline:
            self.add("hard_deadline", "the job is not stopped at its deadline there")
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
        if spec.fleet:
            self.add("fleet", f"{spec.fleet} is a fleet of duetune; the tool has its own machines")
        _, least, most = spec.gpus
        if most != least:
            held = "1 GPU" if machines.total == 1 else f"{machines.total} GPUs"
            said = f"{held} all the time; choose another number with --gpus"
            self.add("resources.accelerators", said)
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
    folder: Path | None = None,
    home_gpu: str | None = None,
) -> Exported:
    """Return the job as a file of ``target``. ``duetune export`` calls it.

    Secrets are named in the file; their values never are. ``file`` is the name the file will have.
    Relative paths of the spec start at ``folder``, by default the current one. ``home_gpu`` is what
    a job is planned for that names no GPU.
    """
    machines = machines_of(spec, gpus)
    notes = Notes(file)
    notes.common(spec, machines, has_limit=target is not Target.SKYPILOT)
    if image is not None and target in {Target.SKYPILOT, Target.SBATCH}:
        raise InvalidInput("--image", image, f"no value: {target} does not use containers")
    if spec.run is None:
        any_gpu = ANY[0] if target is Target.SKYPILOT else home_gpu or CPU
        data = _data(spec, folder or Path.cwd(), notes)
        spec = _planned(spec, machines, notes, machines.accelerator or any_gpu, data)
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


def _data(spec: JobSpec, folder: Path, notes: Notes) -> DatasetSummary | None:
    """Return a summary of the dataset if it can be read here; the batch depends on its size."""
    place = spec.resolved(folder).dataset
    if place is None or not Path(place).exists():
        return None
    try:
        return check_dataset(place, text_field=spec.training.dataset_text_field or TEXT_FIELD)
    except (InvalidInput, MissingExtra) as error:
        notes.add("dataset", f"the trainer cannot read it: {error}")
        return None


def _planned(
    spec: JobSpec,
    machines: Machines,
    notes: Notes,
    accelerator: str,
    data: DatasetSummary | None,
) -> JobSpec:
    """Return the spec with everything that ``duetune plan`` would choose for these GPUs.

    Fields that the spec gives stay as they are. All others are written out, so that the job does
    not change with the defaults of another version. A job that does not fit by the data sheet is
    exported as it is, with a note: the other site may know its GPUs better.
    """
    rows = None if data is None else data.rows - held_out_rows(spec, data.rows)
    length = None if data is None else data.tokens_per_row
    try:
        chosen_recipe = recipe_by_data_sheet(spec, accelerator, machines.total, rows, length)
    except InvalidInput as error:
        notes.add("training", f"not planned, the job may not run: {error}")
        return spec
    recipe, member = chosen_recipe.one, chosen_recipe.gpus_per_member
    precision = recipe.precision.removesuffix("-mixed")
    chosen: dict[str, object] = {
        "per_device_train_batch_size": recipe.batch_size,
        "gradient_accumulation_steps": recipe.grad_accum,
        "gradient_checkpointing": recipe.grad_checkpoint,
        "max_length": recipe.tokens_per_sample,
    }
    if accelerator != CPU:
        # The memory is enough for so many tokens, and not for more.
        tokens = chosen_recipe.prospects.tokens_per_microbatch(recipe)
        chosen["max_tokens_per_microbatch"] = tokens
    given = spec.training.given
    if given.keys() & {"bf16", "fp16"}:
        chosen |= {"bf16": precision == "bf16", "fp16": precision == "fp16"}
    else:
        chosen["precision"] = recipe.precision.value
    known = accelerator != CPU
    gpu = f"{machines.total} x {accelerator} from data sheets" if known else "an unknown GPU"
    notes.add(
        "training",
        f"{recipe.method}, {precision}, {recipe.grad_accum} x {recipe.batch_size} examples of at "
        f"most {recipe.tokens_per_sample} tokens per step, planned for {gpu}, "
        "without measured runs",
    )
    for concession in chosen_recipe.concessions:
        notes.add("training", concession)
    if machines.total % member:
        used = machines.total // member * member
        notes.add("resources.gpus_per_member", f"{used} of {machines.total} GPUs are used")
    if accelerator == CPU:
        notes.add("resources.accelerators", "name the GPU, so that precision and batch suit it")
    defaults = _defaults(given, recipe.method)
    if member > 1:
        resources = spec.resources.model_copy(update={"gpus_per_member": member})
        spec = spec.model_copy(update={"resources": resources})
    return spec.amended(method=recipe.method.value, training=defaults | chosen | given)


_NOT_THE_RESULT = (
    "dataset_text_field",
    "eval_strategy",
    "metric_for_best_model",
    "early_stopping_threshold",
)


def _defaults(given: dict[str, object], method: Method) -> dict[str, object]:
    """Return the trainer's defaults of the fields that matter for the result."""
    instead = {"max_steps": "num_train_epochs", "warmup_ratio": "warmup_steps"}
    instead["eval_dataset"] = "eval_fraction"
    left_out = {field for other, field in instead.items() if other in given} | set(instead)
    left_out |= {*_NOT_THE_RESULT, "bf16", "fp16"}
    left_out |= {*LORA_SETTINGS} if method is Method.FULL else set()
    left_out |= {*QUANTISED_SETTINGS} if method is not Method.QLORA else set()
    usual: dict[str, object] = {
        field: getattr(USUAL, field, None)
        for field in Training.model_fields
        if field not in left_out
    }
    return {
        field: usual[field]
        for field in Training.model_fields
        if isinstance(usual.get(field), (int, float, str)) and usual[field] is not False
    }

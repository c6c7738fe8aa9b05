"""Export a job as a SkyPilot task, for ``sky jobs launch``."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from duetune.core.node_contract import LEFT
from duetune.interop.export_jobs.script import install_command, run_script
from duetune.jobs.spec.sections import Spot
from duetune.jobs.spec.values import is_path
from duetune.jobs.spec.yaml_document import written_yaml

if TYPE_CHECKING:
    from duetune.interop.export_jobs.machines import Machines
    from duetune.interop.export_jobs.writing import Notes
    from duetune.jobs.spec.job_spec import JobSpec

INPUTS = "/tmp/duetune-inputs"  # noqa: S108 - a folder on the machine that SkyPilot makes
# SkyPilot needs a GPU name even if any GPU will do; these two can train most models.
ANY = ("A100-80GB", "H100")


def to_skypilot(spec: JobSpec, machines: Machines, notes: Notes) -> str:
    """Return the task as YAML, and add notes on what SkyPilot does differently."""
    fields: dict[str, object] = {"name": spec.name}
    if machines.count > 1:
        fields["num_nodes"] = machines.count
    fields["resources"] = _resources(spec, machines, notes)
    dataset = _inputs(spec, fields, notes)
    if spec.envs:
        fields["envs"] = dict(spec.envs)
    if spec.secrets:
        fields["secrets"] = dict.fromkeys(spec.secrets)
    if spec.run is None:
        fields["setup"] = install_command(spec)
    elif spec.setup is not None:
        fields["setup"] = spec.setup
    fields["run"] = run_script(spec, machines.gpus, dataset=dataset)
    asked = [f"--env {name}" for name, value in spec.envs.items() if value is None]
    asked += [f"--secret {name}" for name in spec.secrets]
    notes.launch(" ".join(("sky jobs launch", notes.file, *asked)))
    notes.add(
        "checkpoint.dir",
        "mount a bucket (file_mounts) and set DUETUNE_JOB_DIR to it; otherwise checkpoints are "
        "lost with the machine",
    )
    return written_yaml(fields)


def _resources(spec: JobSpec, machines: Machines, notes: Notes) -> dict[str, object]:
    """Return the section ``resources`` of the task."""
    resources: dict[str, object] = {}
    choices: list[dict[str, object]] = [{}]
    if machines.accelerator is not None:
        resources["accelerators"] = f"{machines.accelerator}:{machines.gpus}"
    else:
        choices = [{"accelerators": f"{name}:{machines.gpus}"} for name in ANY]
        notes.add("resources.accelerators", f"auto becomes one of {', '.join(ANY)}")
    if spec.resources.spot is Spot.AUTO:
        choices = [each | {"use_spot": spot} for spot in (True, False) for each in choices]
        notes.add("resources.spot", "auto becomes spot or on-demand at each launch, not a mix")
    else:
        resources["use_spot"] = spec.resources.spot is Spot.ONLY
    if choices != [{}]:
        resources["any_of"] = choices
    if spec.tags:
        resources["labels"] = dict(spec.tags)
    resources["job_recovery"] = {"max_restarts_on_errors": 3, "recover_on_exit_codes": [LEFT]}
    return resources


def _inputs(spec: JobSpec, fields: dict[str, object], notes: Notes) -> str | None:
    """Add the folder of the spec and data from elsewhere to the task's files.

    Returns where the dataset will be, if not where the spec says.
    """
    if spec.run is not None:
        fields["workdir"] = spec.workdir or "."
        return None
    moved: str | None = None
    for field, place in (
        ("model", spec.model),
        ("dataset", spec.dataset),
        ("training.eval_dataset", spec.training.eval_dataset),
    ):
        if place is None or not is_path(place):
            continue
        if not place.startswith(("/", "~")):
            fields["workdir"] = "."
        elif field == "dataset":
            moved = f"{INPUTS}/{PurePosixPath(place).name}"
            fields["file_mounts"] = {moved: place}
        else:
            notes.add(field, f"{place} must be on the machine: mount it (file_mounts)")
    return moved

"""What objects of Kubernetes share: names, environments, and dollars."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from duetune.jobs.spec.places import is_path

if TYPE_CHECKING:
    from duetune.interop.export_jobs.comments import Notes
    from duetune.jobs.spec.job_spec import JobSpec

# Controllers add their own endings to a name, and a pod's name has room for 63.
LONGEST_NAME = 45


def object_name(spec: JobSpec) -> str:
    """A name as RFC 1035 allows it."""
    name = re.sub(r"[^a-z0-9-]+", "-", spec.name.lower()).strip("-")
    name = name if name[:1].isalpha() else f"job-{name}"
    return name[:LONGEST_NAME].strip("-")


def tag_annotations(spec: JobSpec) -> dict[str, str]:
    return {f"duetune/{tag.replace('/', '.').strip('.')}": text for tag, text in spec.tags.items()}


def literal(text: str) -> str:
    """Kubernetes expands ``$(NAME)`` and ``$$`` in commands and environments; this undoes it."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def environment(spec: JobSpec) -> list[dict[str, object]]:
    """Secrets, and what only the submitter's environment knows, come from a Secret by name."""
    found: list[dict[str, object]] = []
    for name, value in (dict.fromkeys(spec.secrets) | spec.envs).items():
        if value is None:
            reference = {"name": secret_name(spec), "key": name}
            found.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
        else:
            found.append({"name": name, "value": literal(value)})
    return found


def secret_name(spec: JobSpec) -> str:
    return f"{object_name(spec)}-secrets"


def launch_notes(spec: JobSpec, notes: Notes) -> None:
    names = [*spec.secrets, *(name for name, value in spec.envs.items() if value is None)]
    if names:
        literals = " ".join(f'--from-literal={name}="${name}"' for name in names)
        notes.launch(f"kubectl create secret generic {secret_name(spec)} {literals}")
    notes.launch(f"kubectl apply -f {notes.file}")
    notes.add(
        "checkpoint.dir",
        "mount a volume and set DUETUNE_JOB_DIR to it, or a lost pod takes its checkpoints along",
    )
    accelerator, _, _ = spec.gpus
    notes.add(
        "resources",
        f"{accelerator or 'the kind of GPU'} and spot {spec.resources.spot} are said by node "
        "selectors, which differ from cluster to cluster: add them",
    )
    mounted = "must be in the image or on a volume"
    if spec.run is not None:
        notes.add("workdir", f"{spec.workdir or 'the folder of the spec'} {mounted}")
    for field, place in (
        ("model", spec.model),
        ("dataset", spec.dataset),
        ("training.eval_dataset", spec.training.eval_dataset),
    ):
        if place is not None and is_path(place):
            notes.add(field, f"{place} {mounted}")

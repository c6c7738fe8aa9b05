"""Kubernetes objects: a TrainJob of Kubeflow Trainer 2 and a RayJob of KubeRay.

The TrainJob is ``trainer.kubeflow.org/v1alpha1``. The RayJob is ``ray.io/v1``; its script is in a
ConfigMap and runs on one machine with GPUs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.interop.export_jobs.script import install_command, run_script
from duetune.jobs.spec.values import is_path
from duetune.jobs.spec.yaml_document import written_yaml

if TYPE_CHECKING:
    from duetune.interop.export_jobs.machines import Machines
    from duetune.interop.export_jobs.writing import Notes
    from duetune.jobs.spec.job_spec import JobSpec


# Controllers append to the name, and the name of a pod has at most 63 characters.
LONGEST_NAME = 45


def object_name(spec: JobSpec) -> str:
    """Return the job's name as RFC 1035 allows it."""
    name = re.sub(r"[^a-z0-9-]+", "-", spec.name.lower()).strip("-")
    name = name if name[:1].isalpha() else f"job-{name}"
    return name[:LONGEST_NAME].strip("-")


def tag_annotations(spec: JobSpec) -> dict[str, str]:
    """Return the tags of a job as annotations."""
    return {f"duetune/{tag.replace('/', '.').strip('.')}": text for tag, text in spec.tags.items()}


def literal(text: str) -> str:
    """Return ``text`` escaped: Kubernetes would expand ``$(NAME)`` and ``$$`` in it."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def environment(spec: JobSpec) -> list[dict[str, object]]:
    """Return the container's environment. Secrets and variables without a value come from a Secret
    by name.
    """
    found: list[dict[str, object]] = []
    for name, value in (dict.fromkeys(spec.secrets) | spec.envs).items():
        if value is None:
            reference = {"name": secret_name(spec), "key": name}
            found.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
        else:
            found.append({"name": name, "value": literal(value)})
    return found


def secret_name(spec: JobSpec) -> str:
    """Return the name of the job's Secret."""
    return f"{object_name(spec)}-secrets"


def launch_notes(spec: JobSpec, notes: Notes) -> None:
    """Add the launch commands and the notes that both objects share."""
    names = [*spec.secrets, *(name for name, value in spec.envs.items() if value is None)]
    if names:
        literals = " ".join(f'--from-literal={name}="${name}"' for name in names)
        notes.launch(f"kubectl create secret generic {secret_name(spec)} {literals}")
    notes.launch(f"kubectl apply -f {notes.file}")
    notes.add(
        "checkpoint.dir",
        "mount a volume and set DUETUNE_JOB_DIR to it; otherwise checkpoints are lost with the pod",
    )
    accelerator, _, _ = spec.gpus
    notes.add(
        "resources",
        f"add node selectors for {accelerator or 'the kind of GPU'} and spot "
        f"{spec.resources.spot}; they differ between clusters",
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


RUNTIME = "torch-distributed"


def to_trainjob(spec: JobSpec, machines: Machines, notes: Notes, image: str | None) -> str:
    """Return the TrainJob as YAML; ``image`` None uses that of the runtime."""
    launch_notes(spec, notes)
    script = pod_script(spec, machines, installed=image is not None)
    gpus: dict[str, object] = {"nvidia.com/gpu": machines.gpus}
    trainer: dict[str, object] = {} if image is None else {"image": image}
    trainer |= {
        "numNodes": machines.count,
        "command": ["bash", "-c", literal(script)],
        "resourcesPerNode": {"requests": gpus, "limits": dict(gpus)},
    }
    if variables := environment(spec):
        trainer["env"] = variables
    metadata: dict[str, object] = {"name": object_name(spec)}
    if spec.tags:
        metadata["annotations"] = tag_annotations(spec)
    body: dict[str, object] = {
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "ClusterTrainingRuntime",
            "name": RUNTIME,
        },
        "trainer": trainer,
    }
    if spec.max_duration is not None:
        body["activeDeadlineSeconds"] = max(1, round(spec.max_duration.total_seconds()))
    return written_yaml(
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": metadata,
            "spec": body,
        }
    )


def pod_script(spec: JobSpec, machines: Machines, *, installed: bool) -> str:
    """Return the script of a pod, including the setup: a pod has no setup of its own."""
    lines = ""
    if spec.run is None and not installed:
        lines = f"{install_command(spec)}\n"
    elif spec.setup is not None:
        lines = f"{spec.setup.rstrip()}\n"
    return lines + run_script(spec, machines.gpus)


RAY = "2.46.0"
IMAGE = f"rayproject/ray:{RAY}-py311-gpu"
RETRIES = 3
_FOLDER = "/duetune"
_SCRIPT = "run.sh"


def to_rayjob(spec: JobSpec, machines: Machines, notes: Notes, image: str | None) -> str:
    """Return the RayJob and the ConfigMap with its script, as YAML."""
    if machines.count > 1:
        allowed = "at most 8: Ray runs the command once, on one machine"
        raise InvalidInput("resources.accelerators", machines.total, allowed)
    launch_notes(spec, notes)
    name = object_name(spec)
    script = pod_script(spec, machines, installed=image is not None)
    # The script is in a ConfigMap, because the entrypoint passes through several shells.
    scripts = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-script"},
        "data": {_SCRIPT: script},
    }
    metadata: dict[str, object] = {"name": name}
    if spec.tags:
        metadata["annotations"] = tag_annotations(spec)
    body: dict[str, object] = {
        "entrypoint": f"bash {_FOLDER}/{_SCRIPT}",
        "entrypointNumGpus": machines.gpus,
        "shutdownAfterJobFinishes": True,
        "backoffLimit": RETRIES,
    }
    if spec.max_duration is not None:
        body["activeDeadlineSeconds"] = max(1, round(spec.max_duration.total_seconds()))
    head = _pod(spec, "ray-head", image or IMAGE, {"cpu": "2", "memory": "8Gi"})
    worker = _pod(spec, "ray-worker", image or IMAGE, {"nvidia.com/gpu": machines.gpus})
    body["rayClusterSpec"] = {
        "rayVersion": RAY,
        "headGroupSpec": {"rayStartParams": {"num-gpus": "0"}, "template": head},
        "workerGroupSpecs": [
            {
                "groupName": "gpu",
                "replicas": 1,
                "minReplicas": 1,
                "maxReplicas": 1,
                "rayStartParams": {},
                "template": worker,
            }
        ],
    }
    notes.add("image", f"{image or IMAGE}; its Ray version must be {RAY}, as in rayVersion")
    job = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": body}
    return f"{written_yaml(scripts)}---\n{written_yaml(job)}"


def _pod(spec: JobSpec, name: str, image: str, limits: dict[str, object]) -> dict[str, object]:
    """Return the pod template of the Ray head or worker."""
    container: dict[str, object] = {
        "name": name,
        "image": image,
        "resources": {"requests": dict(limits), "limits": limits},
        "volumeMounts": [{"name": "script", "mountPath": _FOLDER}],
    }
    if variables := environment(spec):
        container["env"] = variables
    scripts = {"name": f"{object_name(spec)}-script"}
    return {
        "spec": {
            "containers": [container],
            "volumes": [{"name": "script", "configMap": scripts}],
        }
    }

"""A TrainJob of Kubeflow Trainer 2 (``trainer.kubeflow.org/v1alpha1``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.interop.export_jobs import kubernetes
from duetune.interop.export_jobs.script import install_command, run_script
from duetune.jobs.spec.yaml_document import written_yaml

if TYPE_CHECKING:
    from duetune.interop.export_jobs.comments import Notes
    from duetune.interop.export_jobs.machines import Machines
    from duetune.jobs.spec.job_spec import JobSpec

RUNTIME = "torch-distributed"


def to_trainjob(spec: JobSpec, machines: Machines, notes: Notes, image: str | None) -> str:
    kubernetes.launch_notes(spec, notes)
    script = pod_script(spec, machines, installed=image is not None)
    gpus: dict[str, object] = {"nvidia.com/gpu": machines.gpus}
    trainer: dict[str, object] = {} if image is None else {"image": image}
    trainer |= {
        "numNodes": machines.count,
        "command": ["bash", "-c", kubernetes.literal(script)],
        "resourcesPerNode": {"requests": gpus, "limits": dict(gpus)},
    }
    if variables := kubernetes.environment(spec):
        trainer["env"] = variables
    metadata: dict[str, object] = {"name": kubernetes.object_name(spec)}
    if spec.tags:
        metadata["annotations"] = kubernetes.tag_annotations(spec)
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
    """With all that comes before the command: a pod has no setup of its own."""
    lines = ""
    if spec.run is None and not installed:
        lines = f"{install_command()}\n"
    elif spec.setup is not None:
        lines = f"{spec.setup.rstrip()}\n"
    return lines + run_script(spec, machines.gpus)

"""A RayJob of KubeRay (``ray.io/v1``): the script in a ConfigMap, run on one GPU machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.interop.export_jobs import kubernetes
from duetune.interop.export_jobs.trainjob import pod_script
from duetune.jobs.spec.yaml_document import written_yaml

if TYPE_CHECKING:
    from duetune.interop.export_jobs.comments import Notes
    from duetune.interop.export_jobs.machines import Machines
    from duetune.jobs.spec.job_spec import JobSpec

RAY = "2.46.0"
IMAGE = f"rayproject/ray:{RAY}-py311-gpu"
RETRIES = 3
_FOLDER = "/duetune"
_SCRIPT = "run.sh"


def to_rayjob(spec: JobSpec, machines: Machines, notes: Notes, image: str | None) -> str:
    if machines.count > 1:
        allowed = "at most 8: Ray starts the command once, on one machine"
        raise InvalidInput("resources.accelerators", machines.total, allowed)
    kubernetes.launch_notes(spec, notes)
    name = kubernetes.object_name(spec)
    script = pod_script(spec, machines, installed=image is not None)
    # Not as the entrypoint itself: that one passes through several shells.
    scripts = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-script"},
        "data": {_SCRIPT: script},
    }
    metadata: dict[str, object] = {"name": name}
    if spec.tags:
        metadata["annotations"] = kubernetes.tag_annotations(spec)
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
    notes.add("image", f"{image or IMAGE}; its Ray must be the rayVersion {RAY}")
    job = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": body}
    return f"{written_yaml(scripts)}---\n{written_yaml(job)}"


def _pod(spec: JobSpec, name: str, image: str, limits: dict[str, object]) -> dict[str, object]:
    container: dict[str, object] = {
        "name": name,
        "image": image,
        "resources": {"requests": dict(limits), "limits": limits},
        "volumeMounts": [{"name": "script", "mountPath": _FOLDER}],
    }
    if variables := kubernetes.environment(spec):
        container["env"] = variables
    scripts = {"name": f"{kubernetes.object_name(spec)}-script"}
    return {
        "spec": {
            "containers": [container],
            "volumes": [{"name": "script", "configMap": scripts}],
        }
    }

"""A stand-in for SkyPilot's SDK: clusters that are only rows of the file that FAKE_SKY names.

It has what ``skypilot_bridge`` uses, and answers in the same shapes as SkyPilot 0.14.1. Tests
change the file. Waiting launches are granted at the next call if there is room.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

from sky import exceptions

__version__ = "0.14.1"
FILE = Path(os.environ["FAKE_SKY"])
ANSWERS = {}


class StatusRefreshMode(enum.Enum):
    NONE = "NONE"
    FORCE = "FORCE"


class Task:
    def __init__(self, config):
        self.config = config

    @classmethod
    def from_yaml_config(cls, config):
        if "wrong" in config["resources"]["infra"]:
            raise ValueError("Cloud 'wrong' is not a valid cloud among ['aws']")
        return cls(config)


class Dag:
    def add(self, task):
        self.task = task


@contextlib.contextmanager
def world():
    with FILE.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = json.load(file)
        if found["away"]:
            raise exceptions.ApiServerConnectionError("Could not connect to SkyPilot API server")
        found["calls"] += 1
        advance(found)
        yield found
        file.seek(0)
        file.truncate()
        json.dump(found, file)


def advance(found):
    for request in found["requests"].values():
        if request["name"] != "sky.launch" or request["status"] != "PENDING":
            continue
        name, kind = request["cluster_name"], request["kind"]
        held = [each for each in found["clusters"].values() if each["kind"] == kind]
        if found["failure"]:
            request.update(status="FAILED", finished_at=time.time())
        elif len(held) < found["room"][kind]:
            request.update(status="SUCCEEDED", finished_at=time.time())
            row = {"status": "UP", "launched_at": int(time.time()), "kind": kind, "taken": False}
            found["clusters"][name] = row


def add(found, name, cluster, status, **more):
    key = f"request-{len(found['requests'])}"
    now = time.time()
    over = None if status == "PENDING" else now
    request = {"request_id": key, "name": name, "cluster_name": cluster, "status": status}
    found["requests"][key] = {**request, "created_at": now, "finished_at": over, **more}
    return key


def get(request):
    if request in ANSWERS:
        return ANSWERS.pop(request)
    with world() as found:
        if found["requests"][request]["status"] == "FAILED":
            raise exceptions.ResourcesUnavailableError(found["failure"])
    return None


def answered(found, name, cluster, answer):
    key = add(found, name, cluster, "SUCCEEDED")
    ANSWERS[key] = answer
    return key


def status(names=None, refresh=StatusRefreshMode.NONE):
    with world() as found:
        if refresh is StatusRefreshMode.FORCE:
            kept = {name: row for name, row in found["clusters"].items() if not row["taken"]}
            found["clusters"] = kept
        rows = [
            {**row, "name": name, "status": SimpleNamespace(value=row["status"])}
            for name, row in found["clusters"].items()
            if names is None or name in names
        ]
        return answered(found, "sky.status", None, rows)


def launch(task, cluster_name, idle_minutes_to_autostop, down):
    assert down == (idle_minutes_to_autostop is not None)
    resources = task.config["resources"]
    kind = "spot" if "spot" in resources["infra"] or resources.get("use_spot") else "on_demand"
    with world() as found:
        found["launches"].append(cluster_name)
        return add(found, "sky.launch", cluster_name, "PENDING", kind=kind)


def down(name):
    with world() as found:
        if found["clusters"].pop(name, None) is None:
            raise exceptions.ClusterDoesNotExist(f"Cluster {name!r} does not exist.")
        return add(found, "sky.down", name, "SUCCEEDED")


def queue(name):
    with world() as found:
        code = found["exits"].get(name)
        value = "RUNNING" if code is None else "FAILED" if code else "SUCCEEDED"
        job = {"job_id": 1, "status": SimpleNamespace(value=value), "start_at": time.time()}
        job["end_at"] = None if code is None else time.time()
        return answered(found, "sky.queue", name, [job])


def api_cancel(keys):
    with world() as found:
        for key in keys:
            found["requests"][key].update(status="CANCELLED", finished_at=time.time())
        return answered(found, "sky.api_cancel", None, keys)


def api_status(request_ids=None, all_status=False, fields=None, cluster_name=None):
    assert fields
    with world() as found:
        return [
            SimpleNamespace(**row)
            for key, row in found["requests"].items()
            if cluster_name is None or row["cluster_name"] == cluster_name
            if not request_ids or key in request_ids
            if request_ids or all_status or row["status"] == "PENDING"
        ]


def optimize(dag):
    with world() as found:
        if found["failure"]:
            raise exceptions.ResourcesUnavailableError(found["failure"])
        return answered(found, "sky.optimize", None, dag)


def api_info():
    return SimpleNamespace(version=__version__)

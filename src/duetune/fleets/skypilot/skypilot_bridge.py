"""The process that speaks to SkyPilot for a driver: ``PYTHON skypilot_bridge.py FD``.

``FD`` is a socket to the driver. ``PYTHON`` has SkyPilot and need not have duetune, so this file
uses nothing of it and is run by its path. It answers every line, a JSON object with a ``verb``,
with a line: an object with what was found, or with ``error`` and ``kind``, the name of the
exception. The driver decides what that means.

No verb waits for machines. SkyPilot's API server carries out launches, ends and looks at machines
as requests in the background; this process remembers which it has asked for.
"""

from __future__ import annotations

import json
import os
import queue
import re
import socket
import sys
import threading
import time
from typing import Any

FORGET_S = 24 * 3600.0
"""Requests that are over for longer are forgotten; SkyPilot forgets them then too."""
_FIELDS = ["request_id", "name", "status", "cluster_name", "created_at", "finished_at"]
_LAUNCH, _DOWN = "sky.launch", "sky.down"
_ACTIVE = ("PENDING", "RUNNING", "WAITING")
_LONGEST = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Bridge:
    """Carries out the verbs of one fleet, whose clusters have names that begin with ``prefix``."""

    def __init__(self, prefix: str) -> None:
        import sky  # noqa: PLC0415 - the file is read where there is no SkyPilot, too
        from sky.client import sdk  # noqa: PLC0415

        self._sky, self._sdk, self._prefix = sky, sdk, prefix
        self._requests: dict[str, dict[str, Any]] = {}
        self._errors: dict[str, str] = {}
        self._jobs: dict[str, dict[str, Any]] = {}
        self._queues: dict[str, str] = {}
        self._refresh = ""
        self._refreshed_at = 0.0
        self._learnt = False

    def carry_out(self, verb: str, words: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a verb."""
        answer: dict[str, Any] = getattr(self, f"do_{verb}")(**words)
        return answer

    def do_start(self, name: str, task: dict[str, Any], autodown: int | None) -> dict[str, Any]:
        """Launch a cluster, unless SkyPilot knows one of this name or was asked for it before."""
        sky = self._sky
        before = self._asked(name)
        if before or sky.get(sky.status([name])):
            return {}
        request = sky.launch(
            sky.Task.from_yaml_config(task),
            cluster_name=name,
            idle_minutes_to_autostop=autodown,
            down=autodown is not None,
        )
        self._requests[str(request)] = {
            "request_id": str(request),
            "name": _LAUNCH,
            "status": "PENDING",
            "cluster_name": name,
            "created_at": time.time(),
            "finished_at": None,
        }
        return {}

    def do_stop(self, name: str) -> dict[str, Any]:
        """Withdraw what is being launched, and give the cluster back if there is one."""
        sky = self._sky
        there = sky.get(sky.status([name]))
        active = [each for each in self._asked(name) if each["status"] in _ACTIVE]
        launches = [each["request_id"] for each in active if each["name"] == _LAUNCH]
        if launches:
            sky.get(sky.api_cancel(launches))
        if there and not any(each["name"] == _DOWN for each in active):
            sky.down(name)
        return {}

    def do_look(self, refresh_s: float) -> dict[str, Any]:
        """Return clusters, requests and commands as SkyPilot last knew them, and let it look at
        the machines if that is due.
        """
        sky = self._sky
        # Before the clusters: one whose launch is over and that is not listed then is gone.
        self._follow()
        clusters = [
            {
                "name": each["name"],
                "status": each["status"].value,
                "launched_at": each["launched_at"],
            }
            for each in sky.get(sky.status())
            if each["name"].startswith(self._prefix)
        ]
        names = [each["name"] for each in clusters]
        self._jobs = {name: job for name, job in self._jobs.items() if name in names}
        self._forget(set(names))
        if names and not self._refresh and time.time() - self._refreshed_at >= refresh_s:
            self._refreshed_at = time.time()
            self._refresh = str(sky.status(names, refresh=sky.StatusRefreshMode.FORCE))
            launched = {
                each["cluster_name"]
                for each in self._requests.values()
                if each["name"] == _LAUNCH and each["status"] in _ACTIVE
            }
            for each in clusters:
                name = each["name"]
                if each["status"] == "UP" and name not in launched and name not in self._queues:
                    self._queues[name] = str(sky.queue(name))
        found = [
            {**each, "error": self._errors.get(each["request_id"], "")}
            for each in self._requests.values()
        ]
        return {"clusters": clusters, "requests": found, "jobs": self._jobs, "now": time.time()}

    def do_free(self, clusters: list[str]) -> dict[str, Any]:
        """Return the machines of Slurm clusters, as SkyPilot sees them."""
        nodes = []
        for name in clusters:
            nodes += self._sky.get(self._sdk.slurm_node_info(slurm_cluster_name=name))
        return {"machines": nodes}

    def do_check(self, tasks: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Return the versions, the enabled infrastructure, and what is wrong with each task."""
        sky = self._sky
        wrong = {}
        for name, task in tasks.items():
            dag = sky.Dag()
            try:
                dag.add(sky.Task.from_yaml_config(task))
                sky.get(sky.optimize(dag))
                wrong[name] = ""
            except Exception as error:  # noqa: BLE001 - SkyPilot raises whatever its parts raise
                wrong[name] = line_of(error)
        return {
            "version": sky.__version__,
            "server": str(sky.api_info().version),
            "enabled": [str(each) for each in sky.get(self._sdk.enabled_clouds(expand=True))],
            "wrong": wrong,
        }

    def _asked(self, name: str) -> list[dict[str, Any]]:
        """Return the launches and ends of a cluster that the server knows of."""
        found = self._sky.api_status(cluster_name=name, all_status=True, fields=_FIELDS)
        return [facts for facts in map(_facts, found) if self._kept(facts, {name})]

    def _follow(self) -> None:
        """Read how the requests go. A new process also learns of those of its predecessors."""
        sky = self._sky
        listed = {
            each.request_id: _facts(each)
            for each in sky.api_status(all_status=not self._learnt, fields=_FIELDS)
        }
        self._learnt = True
        asked = [self._refresh, *self._queues.values()]
        open_ = [key for key, each in self._requests.items() if each["status"] in _ACTIVE]
        ended = [key for key in (*open_, *asked) if key and key not in listed]
        if ended:
            for each in sky.api_status(request_ids=ended, fields=_FIELDS):
                listed[each.request_id] = _facts(each)
        for key, facts in listed.items():
            if self._kept(facts):
                self._requests[key] = facts
                if facts["name"] == _LAUNCH and facts["status"] == "FAILED":
                    self._errors.setdefault(key, self._failure(key))
        # A server that was restarted has forgotten what it was doing.
        for key in open_:
            if key not in listed:
                del self._requests[key]
        if self._refresh and listed.get(self._refresh, {}).get("status") not in _ACTIVE:
            request, self._refresh = self._refresh, ""
            if request in listed:
                sky.get(request)
        for name, key in list(self._queues.items()):
            if listed.get(key, {}).get("status") not in _ACTIVE:
                del self._queues[name]
                if key in listed and listed[key]["status"] == "SUCCEEDED":
                    self._see_job(name, sky.get(key))

    def _see_job(self, name: str, jobs: list[Any]) -> None:
        """Keep the state of a cluster's command: the first job of its queue."""
        if jobs:
            job = min(jobs, key=lambda each: each["job_id"])
            times = {key: job.get(key) for key in ("start_at", "end_at")}
            self._jobs[name] = {"status": job["status"].value, **times}

    def _kept(self, facts: dict[str, Any], names: set[str] | None = None) -> bool:
        name = facts["cluster_name"] or ""
        ours = name in names if names else name.startswith(self._prefix)
        return ours and facts["name"] in {_LAUNCH, _DOWN}

    def _failure(self, request: str) -> str:
        """Return why a request failed."""
        try:
            self._sky.get(request)
        except Exception as error:  # noqa: BLE001 - SkyPilot raises whatever its parts raise
            return line_of(error)
        return ""

    def _forget(self, names: set[str]) -> None:
        last = time.time() - FORGET_S
        for key, each in list(self._requests.items()):
            if (each["finished_at"] or time.time()) < last and each["cluster_name"] not in names:
                del self._requests[key]
                self._errors.pop(key, None)


def _facts(request: Any) -> dict[str, Any]:
    return {field: getattr(request, field) for field in _FIELDS}


def line_of(error: BaseException) -> str:
    """Return an error as one short line without colours."""
    text = " ".join(_COLOUR.sub("", str(error)).split())
    return f"{type(error).__name__}: {text}"[:_LONGEST]


def main(descriptor: int) -> None:
    """Answer lines until the driver closes its socket."""
    connection = socket.socket(fileno=descriptor)
    received = connection.makefile("rb")
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def receive() -> None:
        for line in received:
            lines.put(line)
        # The driver is gone, and SkyPilot may be waiting for an answer.
        os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    bridge: Bridge | None = None
    while True:
        words = json.loads(lines.get())
        try:
            if bridge is None:
                bridge = Bridge(words["prefix"])
                answer: dict[str, Any] = {}
            else:
                answer = bridge.carry_out(words.pop("verb"), words)
        except Exception as error:  # noqa: BLE001 - SkyPilot raises whatever its parts raise
            answer = {"error": line_of(error), "kind": type(error).__name__}
        connection.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))

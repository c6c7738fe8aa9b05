"""A driver whose nodes are processes of this machine: the smallest engine that runs something.

It keeps its nodes in a folder, so a second driver on the same folder is the same engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

from duetune.core.fleet import NodeEnd, NodeKind
from duetune.fleets.driver import Capacity, EngineNode, EngineState, Finding
from duetune.fleets.embedded.processes import end_family

WATCH = """
import os, sys

def watch(event, arguments):
    if event in {"open", "os.mkdir", "os.rename", "os.remove", "os.listdir", "os.scandir"}:
        path = os.fspath(arguments[0]) if not isinstance(arguments[0], (int, type(None))) else ""
        path = path.decode() if isinstance(path, bytes) else path
        if path.startswith(HIDDEN):
            with os.fdopen(os.open(SEEN, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "w") as file:
                file.write(f"{event} {path}\\n")
            raise FileNotFoundError(2, "this machine does not have it", path)

sys.addaudithook(watch)
"""
"""The ``sitecustomize`` of a machine that does not have some folders."""


class Machine:
    """A machine of its own, with its own home and scratch, that does not have ``hidden`` paths.

    ``seen`` lists the hidden paths that a process has tried to use, which all fail.
    """

    def __init__(self, folder, hidden):
        self.folder, self.seen = Path(folder), Path(folder) / "seen"
        for name in ("home", "tmp", "watch"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        text = f"HIDDEN = {tuple(hidden)!r}\nSEEN = {str(self.seen)!r}\n{WATCH}"
        (self.folder / "watch" / "sitecustomize.py").write_text(text)

    @property
    def environment(self):
        kept = {name: value for name, value in os.environ.items() if name != "DUETUNE_HOME"}
        path = os.pathsep.join([str(self.folder / "watch"), kept.get("PYTHONPATH", "")])
        places = {"HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "tmp")}
        return {**kept, **places, "PYTHONPATH": path}


class ProcessDriver:
    """Starts a node as a process at once, as long as its kind has room.

    While there is a file ``hang`` in its folder, no verb returns.
    """

    machine = None

    def __init__(self, folder, prefix, spot=2, on_demand=4):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._prefix = prefix
        self._room = {NodeKind.SPOT: spot, NodeKind.ON_DEMAND: on_demand}

    def start(self, order):
        self._hang()
        file = self.folder / order.name
        if file.exists() or self._free(order.kind) < order.gpus:
            return
        with Path(order.log).open("ab") as log:
            process = subprocess.Popen(
                order.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **(os.environ if self.machine is None else self.machine.environment),
                    **order.environment,
                },
                cwd=None if self.machine is None else self.machine.folder,
                start_new_session=True,
            )
        row = {"pid": process.pid, "kind": order.kind, "gpus": order.gpus, "at": time.time()}
        file.write_text(json.dumps(row))

    def stop(self, name):
        self._hang()
        self._signal(name, signal.SIGTERM)

    def list(self):
        self._hang()
        nodes = []
        for file in sorted(self.folder.glob(f"{self._prefix}*")):
            if file.suffix:
                continue
            row = json.loads(file.read_text())
            over = _is_over(row["pid"])
            ended = file.with_suffix(".end")
            if over and not ended.exists():
                ended.write_text(json.dumps({"at": time.time(), "end": None}))
            last = json.loads(ended.read_text()) if over else {"at": None, "end": None}
            nodes.append(
                EngineNode(
                    name=file.name,
                    state=EngineState.ENDED if over else EngineState.RUNNING,
                    started_at=row["at"],
                    ended_at=last["at"],
                    end=None if last["end"] is None else NodeEnd(last["end"]),
                )
            )
        return nodes

    def capacity(self):
        self._hang()
        return Capacity(self._free(NodeKind.SPOT), self._free(NodeKind.ON_DEMAND))

    def check(self):
        return [Finding("the folder is there", "" if self.folder.is_dir() else "it is not")]

    def preempt(self, name):
        """Take a node with notice: SIGTERM now; its end counts as a preemption."""
        self.folder.joinpath(f"{name}.end").write_text(
            json.dumps({"at": time.time(), "end": NodeEnd.CAPACITY})
        )
        self._signal(name, signal.SIGTERM)

    def kill(self, name):
        """Let the whole machine of a node fail."""
        row = json.loads((self.folder / name).read_text())
        self.folder.joinpath(f"{name}.end").write_text(
            json.dumps({"at": time.time(), "end": NodeEnd.DIED})
        )
        end_family(row["pid"])

    def _hang(self):
        while (self.folder / "hang").exists():
            time.sleep(0.05)

    def _free(self, kind):
        held = 0
        for file in self.folder.glob(f"{self._prefix}*"):
            if not file.suffix:
                row = json.loads(file.read_text())
                held += row["gpus"] * (row["kind"] == kind and not _is_over(row["pid"]))
        return max(0, self._room[kind] - held)

    def _signal(self, name, number):
        file = self.folder / name
        if file.exists():
            _send(json.loads(file.read_text())["pid"], number)


def _is_over(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in "ZX"


def _send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def processes(file, prefix):
    """Return the driver of a fleet's file; tests register it as the engine ``processes``."""
    options = {name: file.options[name] for name in ("spot", "on_demand") if name in file.options}
    driver = ProcessDriver(file.options["folder"], prefix, **options)
    if "hidden" in file.options:
        driver.machine = Machine(driver.folder.with_name("machine"), file.options["hidden"])
    return driver


def register(folder):
    """Make a distribution that registers the engine, and return the folder for ``sys.path``."""
    info = Path(folder) / "process_engine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: process-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[duetune.fleets]\nprocesses = support.process_driver:processes\n"
    )
    return str(folder)

"""A Ray cluster on loopback: a head without GPUs, and nodes with labels, each with one GPU that is
only a number. Tests skip if Ray is not installed.

Every node has its own raylet, so it can be drained and killed as a machine can. The head keeps its
tables on disk, so it can be killed and started again. ``ray stop`` would end every Ray of the
machine; here only processes of this lab are ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from duetune.fleets.embedded.processes import running, send
from support.patience import until

MARK = "DUETUNE_RAY_LAB"
# The defaults take 15 s to notice that a machine is gone.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
}
COMMON = ("--node-ip-address=127.0.0.1", "--object-store-memory=80000000", "--disable-usage-stats")


class RayLab:
    """``start`` it, ``add`` nodes, and ``stop`` it."""

    def __init__(self) -> None:
        # Short: sockets of Ray are in it, and the path of a socket has at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="dray-"))
        self.address = f"127.0.0.1:{_free_port()}"
        self._environment = os.environ | HEALTH | {
            MARK: str(self.folder),
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(self.folder / "tables"),
        }  # fmt: skip
        self._markets: dict[str, str] = {}
        self._gcs: list[str] = []
        self._head: subprocess.Popen[bytes] | None = None

    def start(self, *markets: str) -> None:
        port = self.address.partition(":")[2]
        self._ray(
            "start", "--head", f"--port={port}", "--num-cpus=0", "--num-gpus=0",
            "--include-dashboard=false", f"--temp-dir={self.folder}/s", *COMMON,
        )  # fmt: skip
        self.add(*markets)

    def add(self, *markets: str, gpus: int = 1) -> list[str]:
        """Start one node for each market, one after another since all use one folder; return
        their ids.
        """
        added = []
        for market in markets:
            before = set(self.raylets())
            self._ray(
                "start", f"--address={self.address}", f"--num-cpus={gpus}", f"--num-gpus={gpus}",
                f"--labels=ray.io/market-type={market}", *COMMON,
            )  # fmt: skip
            (machine,) = set(self.raylets()) - before
            self._markets[machine] = market
            added.append(machine)
        return added

    def remove(self, node: str) -> None:
        """End a node for good; ``heal`` does not replace it."""
        del self._markets[node]
        self.kill(node)

    def heal(self) -> None:
        """Replace the nodes that are gone."""
        for machine in set(self._markets) - set(self.raylets()):
            self.add(self._markets.pop(machine))

    def machine_of(self, word: str) -> str | None:
        """Return the machine that runs the command with this in its words or its log's name."""
        by_pid = {str(pid): machine for machine, pid in self.raylets().items()}
        for guard in self.processes("duetune.fleets.ray.node_guard"):
            if any(word in each for each in _words(guard, "cmdline")):
                variables = dict(each.partition("=")[::2] for each in _words(guard, "environ"))
                return by_pid.get(variables.get("RAY_RAYLET_PID", ""))
        return None

    def actors(self) -> list[int]:
        """Return the processes of Ray that are nodes of fleets."""
        raylets = set(self.raylets().values())
        return [
            process.pid
            for process in running()
            if process.parent in raylets and "NodeActor" in _words(process.pid, "cmdline")[0]
        ]

    def processes(self, *words: str) -> list[int]:
        """Return the processes of this lab that have all these words in their command lines."""
        return [pid for pid in _marked(self.folder) if set(words) <= set(_words(pid, "cmdline"))]

    def drain(self, node: str, seconds: float) -> None:
        """Say that the market will take a node; Ray leaves it to the cloud to do so."""
        self._ray(
            "drain-node", f"--address={self.address}", f"--node-id={node}",
            "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot",
            f"--deadline-remaining-seconds={seconds:g}",
        )  # fmt: skip

    def kill(self, node: str) -> None:
        """Kill the raylet of a node, and nothing else of it."""
        send(self.raylets()[node], signal.SIGKILL)
        until(lambda: node not in self.raylets(), "the raylet to be gone")

    def kill_head(self) -> None:
        """Kill the server of the cluster's tables."""
        pid = self._gcs_server()
        self._gcs = _words(pid, "cmdline")
        send(pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid}").exists() or _zombie(pid), "the head to be gone")

    def restart_head(self) -> None:
        """Start the server of the tables again, on what it has on disk."""
        with (self.folder / "gcs.log").open("ab") as log:
            # Its parent does not matter to it, and ``stop`` ends it.
            self._head = subprocess.Popen(
                self._gcs, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        until(self._answers, "the head to listen")

    def pause_head(self, paused: bool) -> None:
        """Let the server of the tables hang: connections are accepted, nothing is answered."""
        send(self._gcs_server(), signal.SIGSTOP if paused else signal.SIGCONT)

    def stop(self) -> None:
        def left() -> list[int]:
            found = _marked(self.folder)
            for pid in found:
                send(pid, signal.SIGKILL)
            return found

        until(lambda: not left(), "the lab to end")
        if self._head is not None:
            self._head.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ray(self, *words: str) -> None:
        log = self.folder / "ray.log"
        # What it starts inherits its output, so a pipe would never end.
        with log.open("wb") as file:
            done = subprocess.run(
                [sys.executable, "-m", "ray.scripts.scripts", *words],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                check=False,
            )
        assert done.returncode == 0, log.read_text()

    def _answers(self) -> bool:
        host, port = self.address.split(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return True
        return False

    def _gcs_server(self) -> int:
        (pid,) = (
            pid for pid in _marked(self.folder) if _words(pid, "cmdline")[0].endswith("gcs_server")
        )
        return pid

    def raylets(self) -> dict[str, int]:
        """Return the processes of the machines that live, by the machines' ids."""
        found = {}
        for pid in _marked(self.folder):
            words = _words(pid, "cmdline")
            if words and words[0].endswith("/raylet"):
                options = dict(word.lstrip("-").partition("=")[::2] for word in words[1:])
                found[options["node_id"]] = pid
        return found


def _marked(folder: Path) -> list[int]:
    wanted = f"{MARK}={folder}"
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if wanted in _words(pid, "environ") and not _zombie(pid)]


def _words(pid: int, file: str) -> list[str]:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace")
        return text.rstrip("\0").split("\0")
    return []


def _zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def made_lab() -> RayLab:
    """Return a lab that is not started yet; skip the test if there is no Ray."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: 'make ray' installs it")
    return RayLab()


@pytest.fixture(scope="session")
def ray_lab():
    """A cluster with two spot nodes and one on-demand node."""
    lab = made_lab()
    try:
        lab.start("spot", "spot", "on-demand")
        yield lab
    finally:
        lab.stop()

"""How long a change of members holds up training, next to torchrun's elastic restart.

A resize is timed from the request (a member is started, told to leave, or killed) to the first
optimiser step that the new number of members completed together. Both train the same model on the
same data with the same microbatches, one after the other on the same machine.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from duetune.training.task import TrainingTask, write_task
from duetune.training.tiny import build_tiny_model
from duetune.training.worker import main as train
from duetune.training.worker import preload
from reporting import arguments, finish, markdown_table, publish

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = 180.0
SETTLE_STEPS = 5
SMALL, LARGE = 2, 3
TAIL_BYTES = 16_384
CHANGE = re.compile(r"(\S+ \S+) step \d+: .*-> (\d+) members?,")


class Resize(NamedTuple):
    """One resize: the system, what happened to the member, and the seconds it took."""

    system: str
    kind: str
    seconds: float


def wait_for(condition: Callable[[], object], what: str) -> object:
    limit = time.monotonic() + LIMIT_S
    while not (found := condition()):
        if time.monotonic() > limit:
            raise TimeoutError(f"{what} did not come within {LIMIT_S:g} s")
        time.sleep(0.005)
    return found


class Members:
    """Our members, forked warm from this process or started cold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.living: dict[str, int] = {}
        self._count = 0
        address = folder / "coordinator.address"
        self._group = {
            "DUETUNE_JOB_DIR": str(folder),
            "DUETUNE_COORDINATOR_FILE": str(address),
            "DUETUNE_JOB_SECRET": secrets.token_hex(32),
        }
        self._coordinator = subprocess.Popen(
            [sys.executable, "-m", "duetune.training.coordinator", "--address-file", address],
            env=os.environ | self._group,
        )
        wait_for(address.exists, "the coordinator")

    def launch(self, *, warm: bool = True) -> str:
        self._count += 1
        name = f"n{self._count}"
        environment = {
            "DUETUNE_JOB_ID": "resize",
            "DUETUNE_NODE_ID": name,
            "DUETUNE_EPOCH": str(self._count),
            **self._group,
        }
        log = os.open(self.folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.environ.update(environment)
                os.dup2(log, 1)
                os.dup2(log, 2)
                if not warm:
                    program = [sys.executable, "-m", "duetune.training"]
                    os.execv(program[0], program)  # noqa: S606
                code = train()
            except BaseException:  # noqa: BLE001 - the last resort before the process ends
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        os.close(log)
        self.living[name] = pid
        return name

    def end(self, name: str, number: signal.Signals) -> None:
        pid = self.living.pop(name)
        os.kill(pid, number)
        self._last = pid

    def reap(self) -> None:
        os.waitpid(self._last, 0)

    def first_step(self, world: int, after: float) -> float | None:
        """When the first step was done by ``world`` members since then."""
        for name in self.living:
            for line in (self.folder / f"{name}.log").read_text().splitlines():
                if (found := CHANGE.match(line)) and int(found[2]) == world:
                    shown = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f")  # noqa: DTZ007
                    moment = shown.timestamp()
                    if moment > after:
                        return moment
        return None

    def step(self) -> int:
        file = self.folder / "progress.json"
        return int(json.loads(file.read_text())["step"]) if file.exists() else 0

    def settle(self) -> None:
        begin = self.step()
        wait_for(lambda: self.step() >= begin + SETTLE_STEPS, "steady training")

    def close(self) -> None:
        for name in list(self.living):
            self.end(name, signal.SIGKILL)
            self.reap()
        self._coordinator.kill()
        self._coordinator.wait()


def measure_ours(folder: Path, rounds: int, seed: int) -> list[Resize]:
    """Time joins, departures and kills of our members."""
    chance = random.Random(seed)  # noqa: S311
    members = Members(folder)
    found: list[Resize] = []

    def timed(kind: str, world: int, request: Callable[[], object]) -> None:
        begin = time.time()
        request()
        done = wait_for(lambda: members.first_step(world, begin), f"{kind} to {world}")
        found.append(Resize("duetune", kind, float(str(done)) - begin))
        members.settle()
        print(f"  duetune {kind}: {found[-1].seconds:.2f} s", file=sys.stderr)

    try:
        members.launch()
        wait_for(members.step, "the first step")
        members.launch()
        members.settle()
        for _ in range(rounds):
            for kind, number in (("killed", signal.SIGKILL), ("left", signal.SIGTERM)):
                timed("joined, warm", LARGE, members.launch)
                victim = chance.choice(sorted(members.living))
                timed(kind, SMALL, lambda victim=victim, number=number: members.end(victim, number))
                members.reap()
        for _ in range(max(1, rounds // 3)):
            timed("joined, cold", LARGE, lambda: members.launch(warm=False))
            members.end(max(members.living), signal.SIGKILL)
            members.reap()
            members.settle()
    finally:
        members.close()
    return found


class Torchrun:
    """One agent of torchrun per node, each with one worker."""

    def __init__(self, folder: Path, conf: str) -> None:
        self.folder = folder
        self._conf = conf
        self._port = 20_000 + os.getpid() % 20_000
        self.agents: list[subprocess.Popen[bytes]] = []

    def launch(self) -> None:
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes=1:3", "--nproc-per-node=1", "--max-restarts=1000"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}"),
            *("--rdzv-id=resize", *([f"--rdzv-conf={self._conf}"] if self._conf else [])),
            *(str(Path(__file__).with_name("resize_ddp.py")), str(self.folder)),
        ]
        with (self.folder / "torchrun.log").open("ab") as log:
            # With the shared store of torch 2.13 a member that joins waits for ever: the others
            # tell the store's address in the first round only.
            environment = os.environ | {
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            }
            self.agents.append(
                subprocess.Popen(
                    command, stdout=log, stderr=log, env=environment, start_new_session=True
                )
            )

    def kill_last(self) -> None:
        """Kill a whole node, but not the first, which keeps the rendezvous."""
        agent = self.agents.pop()
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
        for pid in self._orphans(agent.pid):
            os.kill(pid, signal.SIGKILL)

    def first_step(self, world: int, after: float) -> float | None:
        file = self.folder / "steps.jsonl"
        if not file.exists():
            return None
        with file.open("rb") as lines:
            lines.seek(max(0, file.stat().st_size - TAIL_BYTES))
            for line in lines.read().splitlines(keepends=True)[1:]:
                seen = json.loads(line) if line.endswith(b"\n") else {"at": 0.0, "world": 0}
                if seen["at"] > after and seen["world"] == world:
                    return float(seen["at"])
        return None

    def settle(self, world: int) -> None:
        for _ in range(SETTLE_STEPS):
            begin = time.time()
            wait_for(lambda begin=begin: self.first_step(world, begin), "steady training")

    def close(self) -> None:
        while self.agents:
            self.kill_last()

    def _orphans(self, session: int) -> list[int]:
        """Return workers by their folder, since they have sessions of their own."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except (OSError, ValueError):
                    continue
                ours = str(self.folder).encode() in words
                if ours and parent == 1 and int(entry.name) != session:
                    found.append(int(entry.name))
        return found


def measure_torchrun(name: str, folder: Path, rounds: int, conf: str) -> list[Resize]:
    """Time joins and kills of torchrun nodes."""
    group = Torchrun(folder, conf)
    found: list[Resize] = []

    def timed(kind: str, world: int, request: Callable[[], object]) -> None:
        begin = time.time()
        request()
        done = wait_for(lambda: group.first_step(world, begin), f"{kind} to {world}")
        found.append(Resize(name, kind, float(str(done)) - begin))
        group.settle(world)
        print(f"  {name} {kind}: {found[-1].seconds:.2f} s", file=sys.stderr)

    try:
        group.launch()
        wait_for(lambda: group.first_step(1, 0.0), "the first step")
        group.launch()
        wait_for(lambda: group.first_step(SMALL, 0.0), "two members")
        for _ in range(rounds):
            timed("joined", LARGE, group.launch)
            timed("killed", SMALL, group.kill_last)
    finally:
        group.close()
    return found


def prepared(folder: Path) -> TrainingTask:
    """Return the task that both systems train."""
    build_tiny_model(folder / "model", hidden=64, layers=2, seed=1)
    with (folder / "rows.jsonl").open("w") as file:
        for number in range(500):
            row = {"prompt": f"{number} + 1 = ", "completion": f"{number + 1}"}
            file.write(json.dumps(row) + "\n")
    return TrainingTask(
        model=str(folder / "model"),
        dataset=str(folder / "rows.jsonl"),
        max_steps=10**6,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=6,
        emulated_microbatch_s=0.02,
        logging_steps=10**6,
        eval_fraction=0.0,
    )


def table(resizes: list[Resize]) -> str:
    """Return one row per system and kind of change."""
    rows: list[list[object]] = []
    for system, kind in dict.fromkeys((each.system, each.kind) for each in resizes):
        times = sorted(
            each.seconds for each in resizes if (each.system, each.kind) == (system, kind)
        )
        rows.append([system, kind, len(times), statistics.median(times), times[0], times[-1]])
    header = ("system", "member", "resizes", "median (s)", "quickest (s)", "slowest (s)")
    return markdown_table(header, rows)


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    ours, theirs = (2, 1) if options.quick else (10, 10)
    os.environ["OMP_NUM_THREADS"] = "1"
    preload()
    place = Path(tempfile.mkdtemp(prefix="duetune-resize-"))
    resizes: list[Resize] = []
    try:
        task = prepared(place)
        for name in ("ours", "stock", "tuned"):
            (place / name).mkdir()
            write_task(place / name, task)
        resizes += measure_ours(place / "ours", ours, options.seed)
        resizes += measure_torchrun("torchrun", place / "stock", theirs, "")
        resizes += measure_torchrun(
            "torchrun, tuned", place / "tuned", theirs, "last_call_timeout=1,keep_alive_interval=1"
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)

    def median(system: str, kinds: tuple[str, ...]) -> float:
        return statistics.median(
            each.seconds for each in resizes if each.system == system and each.kind in kinds
        )

    own = median("duetune", ("joined, warm", "killed", "left"))
    stock = median("torchrun", ("joined", "killed"))
    tuned = median("torchrun, tuned", ("joined", "killed"))
    note = (
        f"The group changes between two and three members on {os.cpu_count()} cores; a step is "
        "six microbatches of at least 20 ms. A *warm* worker is forked from a process that has "
        "imported the libraries, as in the embedded fleet. A killed member costs the step it was "
        "in; the others notice that its connections are closed. torchrun restarts every worker "
        "from the last checkpoint, at most five steps back; *tuned* sets `last_call_timeout=1` "
        "and `keep_alive_interval=1`. Both run with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`; "
        "without it a joining member never gets in with torch 2.13."
    )
    publish(
        "resize",
        "Resizes",
        "How long does a running job stand still when a member joins, leaves or is killed?",
        [table(resizes), note],
        write=not (options.no_write or options.quick),
    )
    finish(
        {
            "median_resize_s": round(own, 3),
            "torchrun_median_s": round(stock, 3),
            "torchrun_tuned_median_s": round(tuned, 3),
            "ratio": round(stock / own, 1),
        }
    )


if __name__ == "__main__":
    main()

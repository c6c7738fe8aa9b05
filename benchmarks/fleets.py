"""How long a fleet takes to start, to notice a loss and to train again.

A job with an own command that saves every step runs on one node. The node's machine is killed; the
job goes on elsewhere. The same on every fleet that this machine can start.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from reporting import arguments, finish, markdown_table, publish, rounded
from support.live_home import LiveHome
from support.ray_lab import RayLab
from support.slurm_lab import SlurmLab, missing

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.fleet import Node

EMBEDDED = "embedded"
STEP_S = 0.1
SETTLED = 20
TURNS = 10


class Loss(NamedTuple):
    """One loss of a node: seconds, and the steps that were done twice."""

    started_s: float
    noticed_s: float
    trained_s: float
    steps: int


class Bench:
    """A home on one fleet. ``kill`` ends the machine of a node; ``heal`` repairs it."""

    def __init__(
        self,
        name: str,
        home: LiveHome,
        kill: Callable[[Node], None],
        heal: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.home = name, home
        self._kill, self._heal = kill, heal

    def loss(self) -> tuple[Loss, float]:
        """Run one job through one loss; also return the seconds of a look at the fleet."""
        home = self.home
        job = home.launch(home.spec(steps=100_000, step_s=STEP_S, deadline="20h"))
        home.until_step(job, SETTLED)
        fleet = home.fleet().fleet
        node = home.until(lambda: self._running(job), "the node in the ledger")
        started = _began(home, job, node) - node.requested_at
        turn = statistics.median(_seconds(fleet, job) for _ in range(TURNS))
        before, begun = home.step(job), time.time()
        self._kill(node)
        home.until(lambda: self._gone(job, node), "the loss to be noticed")
        noticed = time.time() - begun
        again = home.until(lambda: self._running(job, node), "another node")
        home.until(lambda: home.step(job) > before, "training again")
        trained = time.time() - begun
        first = _first_step(home, job, again)
        home.run("cancel", job)
        home.until_over(job)
        self._heal()
        return Loss(started, noticed, trained, max(0, before - first)), turn

    def _nodes(self, job: str) -> list[Node]:
        """Return the nodes of a job, as its controller knows them."""
        if self.name == EMBEDDED:
            return list(self.home.fleet().fleet.observe(job).nodes)
        return [each.node for each in self.home.entries(job)]

    def _running(self, job: str, lost: Node | None = None) -> Node | None:
        nodes = [node for node in self._nodes(job) if node.state == "running"]
        return next((node for node in nodes if lost is None or node.id != lost.id), None)

    def _gone(self, job: str, lost: Node) -> bool:
        return not any(node.id == lost.id and node.state.alive for node in self._nodes(job))


def _seconds(fleet: object, job: str) -> float:
    begun = time.perf_counter()
    look = getattr(fleet, "look", None)
    look() if look is not None else fleet.observe(job)
    return time.perf_counter() - begun


def _log(home: LiveHome, job: str, node: Node) -> Path:
    return home.settings.folder(job) / "logs" / f"{node.id}.log"


def _began(home: LiveHome, job: str, node: Node) -> float:
    """When the command of a node wrote its only line."""
    return _log(home, job, node).stat().st_mtime


def _first_step(home: LiveHome, job: str, node: Node) -> int:
    log = _log(home, job, node)
    home.until(lambda: log.exists() and log.read_text().endswith("\n"), "its first line")
    return int(log.read_text().split()[-1])


def embedded(stack: ExitStack, folder: Path) -> Bench:
    """The fleet of this machine, in real time."""
    home = LiveHome(folder)
    stack.callback(home.close)
    market = home.market((0.9, 2), slot_hours=0.1)
    home.run("fleet", "start", "--trace", market, "--cold", "--speed", 1, "--history", 0)
    return Bench(EMBEDDED, home, lambda _: os.kill(home.process("embedded.agent"), signal.SIGKILL))


def slurm(stack: ExitStack, folder: Path, **settings: object) -> Bench:
    """A Slurm cluster on loopback that notices a dead machine after 10 s."""
    lab = stack.enter_context(SlurmLab(nodes=3, slurmd_timeout_s=10))
    home = LiveHome(folder)
    stack.callback(home.close)
    _add(home, "slurm", conf=lab.conf, spot="spot", on_demand="guaranteed", **settings)
    failed: list[str] = []

    def kill(node: Node) -> None:
        failed.append(lab.place(_engine_name(home, node)))
        lab.fail(failed[-1])

    def heal() -> None:
        lab.start_node(failed.pop())

    return Bench("slurm", home, kill, heal)


def ray(stack: ExitStack, folder: Path) -> Bench:
    """A Ray cluster on loopback that notices a dead machine after about 5 s."""
    lab = RayLab()
    stack.callback(lab.stop)
    lab.start("spot", "spot", "on-demand")
    home = LiveHome(folder)
    stack.callback(home.close)
    _add(home, "ray", address=lab.address)

    def kill(node: Node) -> None:
        machine = lab.machine_of(_engine_name(home, node))
        assert machine is not None
        lab.kill(machine)

    return Bench("ray", home, kill, lab.heal)


def through_storage(stack: ExitStack, folder: Path) -> Bench:
    """The same Slurm cluster; the nodes get their files through a storage, not the home."""
    bench = slurm(stack, folder / "home", storage=str(folder / "storage"))
    bench.name = "slurm, files in a storage"
    return bench


def _add(home: LiveHome, engine: str, **settings: object) -> None:
    home.use_engine(
        engine, slot_minutes=5 / home.slowness, startup_s=5, resize_s=5, max_gpus=1, **settings
    )


def _engine_name(home: LiveHome, node: Node) -> str:
    return next(each.name for each in home.entries(node.job) if each.node.id == node.id)


def main() -> None:
    """Measure every fleet and write the page."""
    options = arguments(__doc__ or "").parse_args()
    cases = [
        embedded,
        *(() if missing() else (slurm, through_storage)),
        *(() if find_spec("ray") is None else (ray,)),
    ]
    rows, answer = [], {}
    for make in cases:
        with ExitStack() as stack:
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            )
            bench = make(stack, folder)
            name = bench.name
            losses = [bench.loss() for _ in range(1 if options.quick else 3)]
        found = [statistics.median(each[place] for each, _ in losses) for place in range(4)]
        turn = statistics.median(turn for _, turn in losses)
        rows.append([name, *(round(each, 2) for each in found[:3]), int(found[3]), round(turn, 4)])
        answer[name] = {
            "started_s": rounded(found[0]),
            "noticed_s": rounded(found[1]),
            "trained_s": rounded(found[2]),
            "steps_lost": int(found[3]),
            "turn_s": rounded(turn),
        }
        print(rows[-1], flush=True)
    table = markdown_table(
        "fleet | start (s) | noticed (s) | training again (s) | steps lost | a look (s)", rows
    )
    note = (
        "*start* is from the request of a node to the first line of its command; the other times"
        " count from the kill of the machine. The command saves every step of 0.1 s. Slurm's"
        " `SlurmdTimeout` is 10 s here and often 300 s elsewhere: Slurm notices a dead machine no"
        " earlier. Ray's health checks fail after about 5 s here, after 15 s by default. Through"
        " a storage, logs, reports and what a command has saved travel every 10 s, so times are"
        " longer and the steps since then are lost. A look asks the engine for all nodes."
    )
    publish(
        "fleets",
        "Fleets",
        "How long does each fleet take to start a node, to notice a loss and to train again?",
        [table, note],
        write=not (options.no_write or options.quick),
    )
    finish(answer)


if __name__ == "__main__":
    main()

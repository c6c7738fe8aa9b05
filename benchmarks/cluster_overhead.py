"""How long a round of planning takes, from 64 to 8,192 GPUs, beside other solvers.

Rounds are synthetic: the cluster of the Sia paper many times over, 20 jobs per 64 GPUs, seven of
ten of them running, with paces that grow with a power of the GPUs.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.planning import JobView, Partition, Stock
from duetune.planners.round_program import program_of, solve
from duetune.planners.sia import Sia
from duetune.registry.planners import planner_named
from knowledge_peers import Peer, Unavailable, environment, variables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.ports import Planner
    from duetune.planners.round_program import Pairs, Solution

PEER = Peer("cvxpy", ("cvxpy==1.9.3", "cvxopt==1.3.3", "cylp==0.94.1"), "sia_peer.py")
SOLVERS = ("CBC", "GLPK_MI")
UNIT = 64
SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
QUICK_SIZES = (64, 256, 2048)
QUICK_PEER_SIZES = (64, 256)
LIMIT_S = 60.0
EVERY_SHAPE = Sia(scale_up=1e9)
"""Without the rule that a job at most doubles: about as many pairs as in the published figures."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The time of rounds with ``gpus`` GPUs: median and 95th percentile in seconds.

    ``pairs`` is the median number of possible pairs; ``gap`` is the worst distance from the bound.
    """

    gpus: int
    jobs: int
    shapes: int
    planner: str
    pairs: int
    median_s: float
    p95_s: float
    gap: float


class PeerTiming(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a peer's solver on the same rounds.

    ``ratio`` is the peer's median time over that of our whole ``plan()``; ``worst`` is the largest
    difference between objectives, as a share of the peer's.
    """

    gpus: int
    solver: str
    rounds: int
    median_s: float
    ratio: float
    worst: float


def stock_of(gpus: int) -> Stock:
    """Return 6 nodes of 4 T4, 3 of 8 RTX and 2 of 8 A100 for every 64 GPUs."""
    unit = gpus // UNIT
    return Stock(
        (
            Partition(name="t4", gpu_model="T4", nodes=6 * unit, gpus_per_node=4),
            Partition(name="rtx", gpu_model="RTX2080Ti", nodes=3 * unit, gpus_per_node=8),
            Partition(name="a100", gpu_model="A100-40GB", nodes=2 * unit, gpus_per_node=8),
        )
    )


def views_of(stock: Stock, jobs: int, random: np.random.Generator) -> list[JobView]:
    """Return synthetic jobs: up to six times faster on one GPU type than on another, scaling to
    between 8 and 64 GPUs.
    """
    views = []
    for number in range(jobs):
        speed = np.sort(random.uniform(1, 6, len(stock.partitions)))
        pace = speed[stock.partition] * stock.gpus.astype(np.float64) ** random.uniform(0.6, 0.95)
        pace[stock.gpus > random.choice([8, 16, 32, 64])] = 0
        small = np.flatnonzero((pace > 0) & (stock.gpus <= 4))
        held = int(random.choice(small)) if random.random() < 0.7 else -1
        views.append(
            JobView(
                name=f"job-{number + 1}",
                pace=pace,
                remaining=1e5,
                age_s=float(random.uniform(0, 5000)),
                held=held,
                restarts=int(random.integers(0, 3)),
                restart_s=60.0,
            )
        )
    return views


def overhead(
    sizes: Sequence[int], planners: Sequence[str], repeats: int, seed: int
) -> list[Timing]:
    """Time rounds of every size with every planner."""
    found = []
    for gpus in sizes:
        stock, jobs = stock_of(gpus), gpus * 20 // UNIT
        rounds = max(3, repeats if gpus <= 2048 else repeats // 3)
        drawn = [views_of(stock, jobs, np.random.default_rng(seed + k)) for k in range(rounds)]
        chosen = {**{name: planner_named(name) for name in planners}, "every shape": EVERY_SHAPE}
        for name, planner in chosen.items():
            planner.plan(drawn[0], stock)
            seconds = [_seconds(planner, views, stock) for views in drawn]
            programs = [_program(planner, views, stock) for views in drawn[:3]]
            found.append(
                Timing(
                    gpus=gpus,
                    jobs=jobs,
                    shapes=len(stock.shapes),
                    planner=name,
                    pairs=int(np.median([pairs.job.size for pairs, _ in programs])),
                    median_s=float(np.median(seconds)),
                    p95_s=float(np.quantile(seconds, 0.95)),
                    gap=max(_gap(solution) for _, solution in programs),
                )
            )
    return found


def _seconds(planner: Planner, views: Sequence[JobView], stock: Stock) -> float:
    began = time.process_time()
    planner.plan(views, stock)
    return time.process_time() - began


def _program(planner: object, views: Sequence[JobView], stock: Stock) -> tuple[Pairs, Solution]:
    sia = planner if isinstance(planner, Sia) else Sia()
    pairs, capacity = program_of(
        views, [sia.costs(view, stock) for view in views], views, stock, {}
    )
    return pairs, solve(pairs, stock, capacity=capacity)


def _gap(solution: Solution) -> float:
    return (solution.objective - solution.bound) / max(1.0, abs(solution.bound))


def peers(
    sizes: Sequence[int], seed: int, *, rounds: int, install: bool
) -> tuple[list[PeerTiming], list[str]]:
    """Time each solver up to the size at which a round takes more than a minute, and say why no
    further.
    """
    try:
        python = environment(PEER, install=install)
    except Unavailable as error:
        return [], [str(error)]
    found: list[PeerTiming] = []
    reasons = []
    for solver in SOLVERS:
        for gpus in sizes:
            stock = stock_of(gpus)
            programs, objectives, own_s = [], [], []
            for number in range(rounds):
                views = views_of(stock, gpus * 20 // UNIT, np.random.default_rng(seed + number))
                rows = [EVERY_SHAPE.costs(view, stock) for view in views]
                objectives.append(_program(EVERY_SHAPE, views, stock)[1].objective)
                programs.append(_dense(rows, stock))
                own_s.append(_seconds(EVERY_SHAPE, views, stock))
            answers = _asked(python, {"solver": solver, "limit_s": LIMIT_S, "programs": programs})
            if isinstance(answers, str):
                reasons.append(f"{solver} at {gpus:,} GPUs: {answers}")
                break
            seconds = [each["seconds"] for each in answers]
            found.append(
                PeerTiming(
                    gpus=gpus,
                    solver=solver,
                    rounds=len(answers),
                    median_s=float(np.median(seconds)),
                    ratio=float(np.median(seconds) / np.median(own_s[: len(seconds)])),
                    worst=max(
                        abs(each["objective"] - objective) / abs(each["objective"])
                        for each, objective in zip(answers, objectives, strict=False)
                    ),
                )
            )
            if max(seconds) > LIMIT_S:
                reasons.append(f"{solver} beyond {gpus:,} GPUs: over {LIMIT_S:.0f} s a round")
                break
    return found, reasons


def _dense(rows: Sequence[np.ndarray], stock: Stock) -> dict[str, object]:
    return {
        "cost": [[None if np.isinf(each) else each for each in row.tolist()] for row in rows],
        "incentive": EVERY_SHAPE.incentive,
        "gpus": stock.gpus.tolist(),
        "partition": stock.partition.tolist(),
        "capacity": stock.capacity.tolist(),
        "pinned": [],
    }


def _asked(python: Path, question: dict[str, object]) -> list[dict[str, float]] | str:
    """Return the answers that came in time, or why there are none."""
    adapter = Path(__file__).resolve().parent / "peers" / PEER.adapter
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "question.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps(question), encoding="utf-8")
        try:
            done = subprocess.run(
                [python, adapter, asked, answered],
                env=variables(PEER),
                capture_output=True,
                text=True,
                timeout=2 * LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            late = f"over {LIMIT_S:.0f} s a round"
            return json.loads(answered.read_text()) if answered.is_file() else late
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return said[-1][:200]
        found: list[dict[str, float]] = json.loads(answered.read_text(encoding="utf-8"))
        return found

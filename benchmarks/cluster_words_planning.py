"""What the page of the cluster benchmark says of markets and of planning time."""

from __future__ import annotations

import msgspec
import numpy as np

from cluster_experiments import (
    MARKET_LOAD,
    SLACK,
    SUPPLIES,
    Learning,
    Plan,
    market_trial,
    met_alone,
)
from cluster_overhead import LIMIT_S, PeerTiming, Timing
from cluster_trials import Result, Trial, over_seeds
from reporting import markdown_table


class Content(msgspec.Struct, frozen=True):
    plan: Plan
    results: dict[Trial, Result]
    learning: list[Learning]
    timings: list[Timing]
    peers: list[PeerTiming]
    skipped: list[str]
    markets: tuple[str, ...]

    def has(self, trial: Trial) -> bool:
        return trial in self.results


def markets(content: Content) -> list[str]:
    plan, rows = content.plan, []
    for planner, supply in SUPPLIES:
        one = market_trial(planner, supply, plan.seeds[0])
        if content.has(one):
            figures = [
                float(over_seeds(content.results, one, plan.seeds, field).mean())
                for field in ("mean_jct_h", "p99_jct_h", "dollars", "missed", "evictions_per_job")
            ]
            rescued = [met_alone(content.results, one, seed) for seed in plan.seeds]
            place = "owned GPUs alone" if supply == "fixed" else f"with {supply} spot nodes"
            late, alone = (f"{share:.1%}" for share in (figures[3], float(np.mean(rescued))))
            rows.append((planner, place, *figures[:3], late, alone, figures[4]))
    if not rows:
        return []
    header = (
        *("planner", "GPUs", "mean JCT (h)", "p99 JCT (h)", "dollars"),
        *("late", "met alone", "evictions/job"),
    )
    return [
        "## Our planner, with deadlines and a spot market (replay)",
        (
            f"All with predicted knowledge, {MARKET_LOAD} jobs/h, {len(plan.seeds)} seeds. Half of "
            "the usual GPUs are owned, at usual prices by the hour of use; up to four spot nodes "
            "of 8 A100 and four of 4 L40S come and go. FIFO, Sia and EDF take spot nodes as if "
            f"they were theirs. Deadlines are {SLACK[0]:g} to {SLACK[1]:g} times what the median "
            "configuration needs. *Real* markets are numbers of nodes that AWS zones gave in 2023, "
            "at 35% of the price on demand. *Met alone* are the jobs that are in time with this "
            "planner and late with FIFO and Sia both (with Sia alone for FIFO, and the reverse)."
        ),
        markdown_table(header, rows),
    ]


def overhead(content: Content) -> list[str]:
    if not content.timings:
        return []
    rows = [
        (
            each.gpus,
            each.jobs,
            each.shapes,
            each.planner if each.planner != "every shape" else "sia, every shape",
            each.pairs,
            1000 * each.median_s,
            1000 * each.p95_s,
            f"{each.gap:.1e}",
        )
        for each in content.timings
    ]
    header = (
        *("GPUs", "jobs", "shapes", "planner", "pairs", "median (ms)", "p95 (ms)"),
        "gap to the bound",
    )
    parts = [
        "## E11: how long a round takes",
        (
            "The whole `plan()` of made-up rounds, in milliseconds of one core. *Every shape* lets "
            "jobs grow by more than twice in a round, so the program has about as many pairs as in "
            "published figures. Pairs and gap are those of Sia's program."
        ),
        markdown_table(header, rows),
    ]
    if content.peers:
        peer_rows = [
            (
                each.gpus,
                each.solver,
                each.rounds,
                1000 * each.median_s,
                f"{each.ratio:.1f}x",
                f"{each.worst:.1e}",
            )
            for each in content.peers
        ]
        peer_header = ("GPUs", "solver", "rounds", "median (ms)", "of ours", "objectives differ by")
        parts += [
            (
                "The same program (every shape) written densely with cvxpy, as the published "
                "scheduler does it, and solved by CBC or GLPK with the same gap of 0.01%; stopped "
                f"where a round takes more than {LIMIT_S:.0f} s."
            ),
            markdown_table(peer_header, peer_rows),
        ]
    return parts

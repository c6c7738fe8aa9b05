"""The page and the picture of one instance over several pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.plots.style import BLUE, GREEN, ORANGE, PINK, RED, SKY, house_style, new_figure
from reporting import bullets, markdown_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from pools import FamilyResult

OURS = "rubato over pools"
QUESTION = (
    "What does one instance cost if it may run in any of several pools, and how far is that from "
    "the optimum?"
)
METHOD = (
    "12, 24 or 36 hours of work, 10, 30 or 60% more time than work, restarts of 72, 180 or 360 "
    "seconds, ticks of 10 minutes that are billed in full. A policy sees all prices, and of "
    "availability only the answers to its own requests. The optimum knows everything and is exact. "
    "Real zones: every other zone by name, second half of the time; the other zones in the first "
    "half were tuned on. The lengths of spells in the belief were set earlier on V100 traces of "
    "the same recordings. Synthetic pools: four kinds of market with seeds that were not tuned on. "
    "*Correlated*: pools follow a common market for 60% of the time. *GPU types*: H100 and A100 at "
    "half the pace in two zones, 20 GB to move between zones at 1 Gbit/s and $0.02 per GB. "
    "H100 zones have list prices; their jobs overlap, as the record has seven days."
)
BASELINES = (
    "All baselines run behind the same guard. *UP(S)* keeps a spot instance until it is lost, then "
    "asks all pools by price; *UP(AP)* asks them by price over the share of requests that found "
    "spot. *SkyNomad's rule* is our reading of the published utility of a lifetime; an attempt "
    "takes the place of its probes. *Best pool in hindsight* takes the pool in which uniform "
    "progress was cheapest for each job. Baselines order GPU types by price per unit of work. That "
    "favours the slower type, which alone cannot finish in time, so on-demand has to make up for "
    "it: with GPU types they are weak rivals."
)
MARKS = {
    "uniform progress, best pool in hindsight": (PINK, "v"),
    "UP(S)": (ORANGE, "^"),
    "SkyNomad's rule": (RED, "X"),
    "rubato, cheapest pool": (SKY, "D"),
    "rubato, cheapest pool with failover": (GREEN, "P"),
    OURS: (BLUE, "o"),
}


def page(results: Sequence[FamilyResult], figures: dict[str, object]) -> list[str]:
    """Return the tables, the picture and the findings."""
    return [
        bullets(_findings(results, figures)),
        "![Cost above the optimum](pools.png)",
        "Cost over that of the optimum:",
        _ratios(results),
        "Ours, with 95% intervals:",
        _ours(results),
        BASELINES,
        METHOD,
    ]


def _findings(results: Sequence[FamilyResult], figures: dict[str, object]) -> list[str]:
    ratios = [each.of(OURS).ratio for each in results]
    behind = []
    for each in results:
        cheaper = [
            other.policy
            for other in each.policies
            if other.policy != OURS and other.cost < each.of(OURS).cost
        ]
        behind += [f"{each.name}: {name}" for name in cheaper]
    late, jobs = sum(each.of(OURS).late for each in results), sum(each.jobs for each in results)
    low, high = (100 * (ratio - 1) for ratio in (min(ratios), max(ratios)))
    median, longest = figures["decision_ms"], figures["tables_s"]
    costs = f"Rubato over pools costs {low:.1f} to {high:.1f}% more than the optimum"
    found = "It is cheaper in the mean than every baseline in every family."
    if behind:
        found = f"A baseline is cheaper in the mean: {'; '.join(behind)}."
    speed = f"A step takes {median} ms in the median; the longest, which fills tables, {longest} s."
    return [f"{costs}; {late} of its {jobs} jobs are late.", found, speed]


def _ratios(results: Sequence[FamilyResult]) -> str:
    header = ["policy", *(each.name.removeprefix("one instance, ") for each in results), "late"]
    rows = [
        (
            policy.policy,
            *(f"{each.of(policy.policy).ratio:.3f}" for each in results),
            sum(each.of(policy.policy).late for each in results),
        )
        for policy in sorted(
            results[0].policies,
            key=lambda row: -float(np.mean([each.of(row.policy).ratio for each in results])),
        )
    ]
    return markdown_table(header, rows)


def _ours(results: Sequence[FamilyResult]) -> str:
    header = (
        "family | jobs | pools | optimum ($) | ours ($) | ratio | restarts | "
        "saving over the best single pool"
    )
    rows = [
        (
            each.name,
            each.jobs,
            each.pools,
            each.optimum,
            each.of(OURS).cost,
            f"{each.of(OURS).ratio:.3f} ({each.of(OURS).low:.3f} to {each.of(OURS).high:.3f})",
            each.of(OURS).restarts,
            f"{each.saving:.1%}",
        )
        for each in results
    ]
    return markdown_table(header, rows)


@house_style()
def figure(results: Sequence[FamilyResult]) -> Figure:
    """Draw what each policy costs above the optimum, one row per family."""
    drawing = new_figure(10, 1.8 + 0.8 * len(results))
    axes = drawing.subplots()
    rows = np.arange(len(results))[::-1]
    offsets = np.linspace(0.28, -0.28, len(MARKS))
    for offset, (name, (colour, marker)) in zip(offsets, MARKS.items(), strict=True):
        found = [each.of(name) for each in results]
        above = np.array([100 * (each.ratio - 1) for each in found])
        ends = np.array([(100 * (each.low - 1), 100 * (each.high - 1)) for each in found]).T
        axes.errorbar(
            above,
            rows + offset,
            xerr=np.abs(ends - above),
            fmt=marker,
            color=colour,
            label=name,
            markersize=6,
            elinewidth=1,
        )
    axes.set_yticks(rows, [each.name.removeprefix("one instance, ") for each in results])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("Cost above the optimum (%, logarithmic), 95% intervals")
    axes.grid(axis="y", visible=False)
    for row in rows[:-1]:
        axes.axhline(row - 0.5, color="#D9D9D9", linewidth=0.7)
    drawing.legend(loc="outside lower center", ncols=3)
    return drawing

"""Figures of policies: utility against the optimum, and online selection over jobs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PINK,
    SKY,
    YELLOW,
    house_style,
    legend_beside,
    new_figure,
    plain,
    styled_axes,
)
from duetune.simulate.summary import BASELINES, Standing, dollars, regret_slope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from duetune.policies.select.selection_run import SelectionRun


MOST_BARS = 16
_COLOURS = {"ahap": BLUE, "ahanp": GREEN, "selected": ORANGE}


class Bar(msgspec.Struct, frozen=True):
    """One bar of the figure: a policy and its label."""

    label: str
    standing: Standing


@house_style()
def policies_figure(
    standings: Sequence[Standing], *, optimum: float | None = None, jobs: int | None = None
) -> Figure:
    """Return the bar chart of the policies of a tournament, the best on top.

    Bars are the mean utility in dollars per job with its 95% interval; a line marks the optimum. Of
    many policies only some of each family are shown (see ``chosen_bars``).
    """
    bars = chosen_bars(standings)
    figure = new_figure(12, 1.7 + 0.42 * len(bars))
    (axes,) = styled_axes(figure)
    for place, bar in enumerate(bars):
        row = bar.standing
        axes.barh(place, row.mean_utility, height=0.68, color=_colour(row.policy))
        axes.errorbar(
            row.mean_utility,
            place,
            xerr=[[row.mean_utility - row.low], [row.high - row.mean_utility]],
            color=INK,
            linewidth=1.2,
            capsize=3,
        )
    largest = max([0.0, optimum or 0.0, *(bar.standing.high for bar in bars)])
    smallest = min([0.0, *(bar.standing.low for bar in bars)])
    span = (largest - smallest) or 1.0
    for place, bar in enumerate(bars):
        row = bar.standing
        share = row.fraction_of_optimum
        words = dollars(row.mean_utility) + ("" if share is None else f"  ({share:.1%})")
        axes.text(largest + 0.02 * span, place, plain(words), va="center", fontsize=10)
    if optimum is not None:
        axes.axvline(optimum, color=PINK, linewidth=2.2)
        axes.text(
            optimum - 0.008 * span,
            -0.72,
            plain(f"offline optimum {dollars(optimum)}"),
            color=PINK,
            ha="right",
            va="bottom",
            fontweight="bold",
        )
    axes.set_yticks(range(len(bars)), [plain(bar.label) for bar in bars])
    axes.set_ylim(len(bars) - 0.4, -1.3)
    axes.set_xlim(smallest - (0.02 * span if smallest < 0 else 0), largest + 0.2 * span)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    paired = "" if optimum is None else " of the distance to the optimum"
    axes.set_xlabel(f"Mean utility per job ($), with 95% intervals{paired}")
    over = "" if jobs is None else f" over {jobs:,} jobs"
    axes.set_title(f"Utility by policy{over}")
    return figure


def chosen_bars(standings: Sequence[Standing], *, most: int = MOST_BARS) -> tuple[Bar, ...]:
    """Return a bar per policy if they fit, else best, median and worst of each large family."""
    ranked = sorted(standings, key=lambda row: -row.mean_utility)
    if len(ranked) <= most:
        return tuple(Bar(row.policy, row) for row in ranked)
    families: dict[str, list[Standing]] = {}
    for row in ranked:
        families.setdefault(family(row.policy), []).append(row)
    bars: list[Bar] = []
    for name, members in families.items():
        if len(members) <= 3:
            bars += [Bar(row.policy, row) for row in members]
            continue
        places = {"best": 0, "median": len(members) // 2, "worst": len(members) - 1}
        bars += [
            Bar(f"{members[place].policy}\n{rank} of {len(members)} {name}", members[place])
            for rank, place in places.items()
        ]
    return tuple(sorted(bars, key=lambda bar: -bar.standing.mean_utility))


def family(policy: str) -> str:
    """Return a policy's name without its parameters: ``ahap`` for ``ahap:5:1:0.3``."""
    return re.sub(r"(:[\d.e+-]+|:refuse|:virtual|:gang|:eager)+$", "", policy)


def _colour(policy: str) -> str:
    """Return the colour of a policy's family; baselines are grey."""
    if policy in BASELINES:
        return GREY
    return _COLOURS.get(family(policy).removeprefix("guarded:"), ORANGE)


TOP_ARMS = 6
_ARM_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW)


@house_style()
def weights_figure(run: SelectionRun, policies: Sequence[str], *, title: str = "") -> Figure:
    """Return the figure of the policies' weights over jobs.

    The policies with the largest weights are named; all others are one area.
    """
    figure = new_figure(12, 5)
    (axes,) = styled_axes(figure)
    draw_weights(axes, run, policies)
    axes.set_title(plain(title or "Weights over jobs"))
    return figure


@house_style()
def regret_figure(run: SelectionRun, *, unit: str = "$", title: str = "") -> Figure:
    """Return the figure of regret and its bounds on log-log axes.

    ``unit`` is that of the utilities that were learned from.
    """
    figure = new_figure(12, 6)
    (axes,) = styled_axes(figure)
    draw_regret(axes, run, unit=unit)
    axes.set_title(plain(title or "Regret and its bounds"))
    return figure


@house_style()
def selection_figure(
    run: SelectionRun, policies: Sequence[str], *, unit: str = "$", title: str = ""
) -> Figure:
    """Return one figure with the weights above and the regret below."""
    figure = new_figure(12, 9.5)
    above, below = styled_axes(figure, 2, heights=(0.9, 1.0))
    draw_weights(above, run, policies)
    above.set_title(plain(title or "Weights over jobs"))
    draw_regret(below, run, unit=unit)
    below.set_title("Regret and its bounds")
    return figure


def draw_weights(axes: Axes, run: SelectionRun, policies: Sequence[str]) -> None:
    """Draw the weights of the policies with the largest weights, and all others as one."""
    shares = 100 * run.weights
    importance = np.maximum(shares.mean(axis=0), 100 * run.final_weights)
    top = np.argsort(-importance, kind="stable")[: min(TOP_ARMS, len(policies))]
    layers = [shares[:, arm] for arm in top]
    labels = [plain(policies[arm]) for arm in top]
    colours = list(_ARM_COLOURS[: len(top)])
    rest = len(policies) - len(top)
    if rest:
        layers.append(np.clip(100 - np.sum(layers, axis=0), 0, None))
        labels.append(f"other ({rest})")
        colours.append(PALE)
    jobs = run.weight_jobs + 1
    axes.stackplot(jobs, *layers, labels=labels, colors=colours, linewidth=0)
    axes.set_xlim(1, max(2, int(jobs[-1])))
    axes.set_ylim(0, 100)
    axes.set_xlabel("Job")
    axes.set_ylabel("Weight (%)")
    legend_beside(axes, reverse=True)


def draw_regret(axes: Axes, run: SelectionRun, *, unit: str = "$") -> None:
    """Draw regret and its bounds; regret below 1% of one job's range is drawn at 1%."""
    from matplotlib.ticker import FuncFormatter

    jobs = np.arange(1, run.jobs + 1)
    floor = 0.01 * run.spread or 1e-3
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.plot(
        jobs,
        np.maximum(run.bound, floor),
        color=INK,
        linestyle="--",
        label="worst-case bound",
    )
    seen = np.maximum(run.certificate, floor)
    axes.plot(jobs, seen, color=GREY, linewidth=1.4, label="bound from the\nobserved gaps")
    words = "regret"
    slope = regret_slope(run)
    if slope is not None:
        # The sum turns -0.0 into 0.0.
        words += f", slope {round(slope.fit, 2) + 0.0:.2f}\nfrom job {slope.first:,} on"
    axes.plot(jobs, np.maximum(run.regret, floor), color=BLUE, label=words)
    axes.set_xlim(1, max(2, run.jobs))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,g}"))
    axes.set_xlabel("Jobs (log scale)")
    axes.set_ylabel(plain(f"Cumulative regret ({unit}, log scale)"))
    legend_beside(axes)

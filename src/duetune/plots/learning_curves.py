"""Online selection over jobs: where the weight went, and regret against its bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from duetune.simulate.summary import regret_slope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from duetune.policies.select.selection_run import SelectionRun

TOP_ARMS = 6
_ARM_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW)


@house_style()
def weights_figure(run: SelectionRun, policies: Sequence[str], *, title: str = "") -> Figure:
    """The share of each policy over the jobs, the heaviest ones by name."""
    figure = new_figure(12, 5)
    (axes,) = styled_axes(figure)
    draw_weights(axes, run, policies)
    axes.set_title(plain(title or "Weights over jobs"))
    return figure


@house_style()
def regret_figure(run: SelectionRun, *, unit: str = "$", title: str = "") -> Figure:
    """Regret and its bound on log-log axes; ``unit`` is that of the utilities learnt from."""
    figure = new_figure(12, 6)
    (axes,) = styled_axes(figure)
    draw_regret(axes, run, unit=unit)
    axes.set_title(plain(title or "Regret against its bound"))
    return figure


@house_style()
def selection_figure(
    run: SelectionRun, policies: Sequence[str], *, unit: str = "$", title: str = ""
) -> Figure:
    """Both of the above in one."""
    figure = new_figure(12, 9.5)
    above, below = styled_axes(figure, 2, heights=(0.9, 1.0))
    draw_weights(above, run, policies)
    above.set_title(plain(title or "Weights over jobs"))
    draw_regret(below, run, unit=unit)
    below.set_title("Regret against its bound")
    return figure


def draw_weights(axes: Axes, run: SelectionRun, policies: Sequence[str]) -> None:
    """The arms that weigh most, in the mean over the jobs or at the end, and all others as one."""
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
    """Regret below 1% of one job's range counts as none and is drawn there."""
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
        label="bound for the\nworst sequence",
    )
    seen = np.maximum(run.certificate, floor)
    axes.plot(jobs, seen, color=GREY, linewidth=1.4, label="bound, from the\ngaps really seen")
    words = "regret"
    slope = regret_slope(run)
    if slope is not None:
        words += f", slope {slope.fit:.2f}\nfrom job {slope.first:,} on"
    axes.plot(jobs, np.maximum(run.regret, floor), color=BLUE, label=words)
    axes.set_xlim(1, max(2, run.jobs))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,g}"))
    axes.set_xlabel("Jobs (log scale)")
    axes.set_ylabel(plain(f"Cumulative regret ({unit}, log scale)"))
    legend_beside(axes)

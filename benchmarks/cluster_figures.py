"""The figures of the cluster benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from cluster_experiments import (
    FIFO,
    MARKET_LOAD,
    NOISES,
    OURS,
    PLANNERS,
    PREDICTED,
    SIA,
    WORLDS,
    Plan,
    Results,
    sources_at,
)
from cluster_trials import Trial, mean_of, over_seeds
from duetune.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    house_style,
    new_figure,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCES = {
    "random": ("random", GREY, "x"),
    "default": ("site defaults", PINK, "v"),
    "analytic": ("physics alone", ORANGE, "^"),
    "proportional": ("profiled on one GPU", SKY, "D"),
    "hybrid": ("predicted", BLUE, "o"),
    "oracle": ("oracle", GREEN, "P"),
}
COLOURS = dict(zip(PLANNERS, (GREY, PINK, ORANGE, SKY, RED, BLUE), strict=True))
DRAWN = tuple(each for each in PLANNERS if each != "edf")
"""Without deadlines that is much like first come, first served with backfill."""

MARKERS = dict(zip(PLANNERS, "xv^DPo", strict=True))


@house_style()
def sources_figure(results: Results, plan: Plan) -> Figure:
    """Mean JCT by load, a line for each source; FIFO and Sia, replayed and emulated."""
    figure = new_figure(11, 8)
    grid = figure.subplots(2, 2, sharex=True)
    for row, planner in zip(grid, (FIFO, SIA), strict=True):
        for axes, world in zip(row, WORLDS, strict=True):
            for source, (label, colour, marker) in SOURCES.items():
                loads = [load for load in plan.loads if source in sources_at(load)]
                trials = [Trial(world, planner, source, load, 0) for load in loads]
                _line(axes, results, trials, plan.seeds, (label, colour, marker))
            _by_load(axes, plan, f"{'FIFO' if planner == FIFO else 'Sia'}, {world}")
            if planner == FIFO:
                axes.set_xlabel("")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(SOURCES))
    return figure


@house_style()
def loads_figure(results: Results, plan: Plan) -> Figure:
    """Mean JCT by load, a line for each planner, all with predicted knowledge."""
    figure = new_figure(11, 4.8)
    row = figure.subplots(1, 2)
    for axes, world in zip(row, WORLDS, strict=True):
        for planner in DRAWN:
            trials = [Trial(world, planner, PREDICTED, load, 0) for load in plan.loads]
            _line(axes, results, trials, plan.seeds, (planner, COLOURS[planner], MARKERS[planner]))
        _by_load(axes, plan, world.capitalize())
    handles, labels = row[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(DRAWN))
    return figure


@house_style()
def worse_figure(results: Results, plan: Plan) -> Figure:
    """Mean JCT by how far paces are off, against that of random completion."""
    figure = new_figure(11, 4.8)
    row = figure.subplots(1, 2)
    shown = [mape for mape in NOISES if f"noisy:{mape}" in plan.worse]
    at = [0.0, *(100 * float(mape) for mape in shown)]
    for axes, world in zip(row, WORLDS, strict=True):
        for planner in (FIFO, SIA, OURS):
            one = Trial(world, planner, "random", MARKET_LOAD, 0)
            base = over_seeds(results, one, plan.few).mean()
            names = [PREDICTED, *(f"noisy:{mape}" for mape in shown)]
            drawn = [msgspec.structs.replace(one, source=name) for name in names]
            values = [over_seeds(results, each, plan.few).mean() / base for each in drawn]
            axes.plot(at, values, color=COLOURS[planner], marker=MARKERS[planner], label=planner)
        axes.axhline(1.0, color=GREY, linewidth=1)
        axes.set_ylim(bottom=0)
        axes.set_title(world.capitalize())
        axes.set_xlabel("Paces are off by (%, mean)")
        axes.set_ylabel("Mean JCT, random completion = 1")
    handles, labels = row[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _line(
    axes: Axes,
    results: Results,
    trials: Sequence[Trial],
    seeds: Sequence[int],
    look: tuple[str, str, str],
) -> None:
    label, colour, marker = look
    means = [mean_of(over_seeds(results, trial, seeds)) for trial in trials]
    middle = np.array([each.middle for each in means])
    spread = np.array([(each.middle - each.low, each.high - each.middle) for each in means]).T
    axes.errorbar(
        [trial.load for trial in trials],
        middle,
        yerr=spread,
        color=colour,
        marker=marker,
        label=label,
        elinewidth=1,
        capsize=2,
    )


def _by_load(axes: Axes, plan: Plan, title: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(plan.loads, [str(load) for load in plan.loads])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_title(title)
    axes.set_xlabel("Jobs per hour")
    axes.set_ylabel("Mean JCT (h)")

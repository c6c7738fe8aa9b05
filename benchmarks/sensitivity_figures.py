"""The figures of the sensitivity study."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    RED,
    SKY,
    YELLOW,
    house_style,
    new_figure,
    plain,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sensitivity import Point
    from sensitivity_bound import BoundPoint

PLANNERS = {
    "ahap:24:1:0:0:0": ("AHAP, 24 slots ahead", BLUE, "o"),
    "ahap:5:1:0.5:0.5:0.3": ("AHAP, 5 slots", INK, "D"),
    "ahap:5:1:0.5:0:0:lavish": ("AHAP, 5 slots, as specified", SKY, "s"),
    "selected": ("selected online", GREEN, "P"),
    "selected, with rubato": ("selected, with rubato", ORANGE, "^"),
}
WITHOUT = {
    "maximal_spot:thrifty": ("maximal spot, thrifty", RED, "--"),
    "rubato": ("rubato", YELLOW, "--"),
    "maximal_spot": ("maximal spot", RED, ":"),
    "uniform_progress": ("uniform progress", PINK, "-."),
    "ahanp:0.6": ("AHANP", GREY, ":"),
}
REGIME_COLOURS = (BLUE, SKY, GREEN, YELLOW, ORANGE, RED, PINK, INK)


@house_style()
def sensitivity_figure(
    points: Sequence[Point], free: dict[str, dict[str, float]], optimum: dict[str, float]
) -> Figure:
    """Draw utility by error level: one row per set of markets, one column per error."""
    regimes = list(dict.fromkeys(each.regime for each in points))
    shapes = list(dict.fromkeys(regime.split("-")[1] for regime in regimes))
    rows = [(label, scale) for label in free for scale in ("proportional", "fixed")]
    figure = new_figure(15, 3.1 * len(rows) + 0.6)
    grid = figure.subplots(len(rows), len(shapes), squeeze=False, sharex=True, sharey="row")
    for across, (label, scale) in zip(grid, rows, strict=True):
        for axes, shape in zip(across, shapes, strict=True):
            chosen = [
                each
                for each in points
                if each.markets == label and each.regime == f"{scale}-{shape}"
            ]
            _draw(axes, chosen, free[label], optimum[label])
            axes.set_title(f"{label}: {scale}, {shape}", fontsize=10.5)
        across[0].set_ylabel("Of the optimum (%)")
    for axes in grid[-1]:
        axes.set_xlabel("Forecast error (%)")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def _draw(axes: Axes, points: Sequence[Point], free: dict[str, float], optimum: float) -> None:
    for policy, (label, colour, dashes) in WITHOUT.items():
        axes.axhline(
            100 * free[policy] / optimum, color=colour, linestyle=dashes, linewidth=1.4, label=label
        )
    for policy, (label, colour, marker) in PLANNERS.items():
        line = sorted(
            (each.level, each.fraction_of_optimum) for each in points if each.policy == policy
        )
        levels, shares = np.array(line).T
        axes.plot(
            100 * levels, 100 * shares, color=colour, marker=marker, markersize=5, label=label
        )


@house_style()
def bound_figure(bounds: Sequence[BoundPoint]) -> Figure:
    """Draw the measured loss under its bounds, and the ratio of the two."""
    labels = list(dict.fromkeys(each.markets for each in bounds))
    regimes = list(dict.fromkeys(each.regime for each in bounds))
    figure = new_figure(14, 5.6 * len(labels))
    grid = figure.subplots(len(labels), 2, squeeze=False)
    for (left, right), label in zip(grid, labels, strict=True):
        for colour, regime in zip(REGIME_COLOURS, regimes, strict=True):
            those = sorted(
                (each for each in bounds if (each.markets, each.regime) == (label, regime)),
                key=lambda each: each.level,
            )
            levels = [100 * each.level for each in those]
            left.plot(levels, [_drawn(each.loss) for each in those], color=colour, label=regime)
            left.plot(levels, [each.bound for each in those], color=colour, linestyle="--")
            right.plot(
                levels, [each.bound - each.loss for each in those], color=colour, label=regime
            )
            right.plot(
                levels,
                [each.tight_bound - each.loss for each in those],
                color=colour,
                linestyle=":",
            )
        left.set_title(plain(f"{label}: loss (lines) and bound 2E (dashed)"))
        right.set_title(plain("Bound less loss; dotted: the tighter bound"))
        for axes in (left, right):
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("Forecast error (%, log scale)")
            axes.set_ylabel(plain("$ per job (log scale)"))
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4)
    return figure


def _drawn(loss: float) -> float:
    """Return the values to draw; a zero loss has no logarithm, so its line ends."""
    return loss if loss > 1e-3 else float("nan")

"""The figure of the evaluation on real markets: what each policy leaves on the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.plots.style import (
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    RED,
    SKY,
    house_style,
    new_figure,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from real_markets import FamilyResult

LINES = {
    "uniform_progress": ("uniform progress", PINK, "v"),
    "maximal_spot": ("maximal spot", ORANGE, "^"),
    "maximal_spot:thrifty": ("maximal spot, thrifty", RED, "X"),
    "ahap:5:1:0.5:0.5:0.3": ("AHAP with persistence", SKY, "D"),
    "selected": ("selected from the pool", GREEN, "P"),
    "rubato": ("rubato", BLUE, "o"),
}


@house_style()
def standings_figure(results: Sequence[FamilyResult]) -> Figure:
    """Percent of the offline optimum that is missed, one row per family of markets."""
    figure = new_figure(11, 1.6 + 0.75 * len(results))
    axes = figure.subplots()
    rows = np.arange(len(results))[::-1]
    offsets = np.linspace(0.26, -0.26, len(LINES))
    for offset, (name, (label, colour, marker)) in zip(offsets, LINES.items(), strict=True):
        found = [
            next(each for each in result.standings if each.policy == name) for result in results
        ]
        missed = np.array([100 * (1 - each.fraction) for each in found])
        low = np.array([100 * (each.fraction_high - each.fraction) for each in found])
        high = np.array([100 * (each.fraction - each.fraction_low) for each in found])
        axes.errorbar(
            missed,
            rows + offset,
            xerr=np.abs([low, high]),
            fmt=marker,
            color=colour,
            label=label,
            markersize=6,
            elinewidth=1,
        )
    axes.set_yticks(rows, [result.name for result in results])
    axes.set_xlim(left=0)
    axes.set_xlabel("Missed of the optimum's utility (%), zones not tuned on, 95% intervals")
    axes.grid(axis="y", visible=False)
    for row in rows[:-1]:
        axes.axhline(row - 0.5, color="#D9D9D9", linewidth=0.7)
    figure.legend(loc="outside lower center", ncols=3)
    return figure

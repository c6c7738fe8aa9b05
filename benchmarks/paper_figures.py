"""The figure of the paper's experiments: fraction of the optimum while one thing varies.

On-demand only is far below the others and is in the table only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.plots.style import (
    BLUE,
    GREEN,
    INK,
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

    from paper import Standing

LINES = {
    "maximal_spot": ("maximal spot", ORANGE, "^"),
    "maximal_spot:thrifty": ("maximal spot, thrifty", RED, "X"),
    "uniform_progress": ("uniform progress", PINK, "v"),
    "ahanp:0.6": ("AHANP", SKY, "D"),
    "selected, paper's pool": ("selected, paper's pool", GREEN, "P"),
    "selected": ("selected", BLUE, "o"),
}
PANELS = (
    ("deadline tightness", "Deadline tightness"),
    ("spot price level", "Spot price level"),
    ("availability level", "Availability level"),
    ("reconfiguration cost", "Work lost to growing / shrinking"),
    ("forecast error", "Forecast error (proportional, uniform)"),
    ("market kind", "Kind of market"),
)


@house_style()
def sweep_figure(standings: Sequence[Standing]) -> Figure:
    """Draw the fraction of the optimum by regime, one panel per sweep."""
    figure = new_figure(14, 9.5)
    panels = figure.subplots(2, 3).ravel()
    for axes, (sweep, title) in zip(panels, PANELS, strict=True):
        chosen = [each for each in standings if each.sweep == sweep]
        if sweep == "forecast error":
            chosen = [each for each in chosen if each.regime.startswith("proportional-uniform")]
        _draw(axes, chosen, title)
    panels[0].set_ylabel("Share of the offline optimum (%)")
    panels[3].set_ylabel("Share of the offline optimum (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6)
    figure.get_layout_engine().set(h_pad=0.12, w_pad=0.08)
    return figure


def _draw(axes: Axes, standings: Sequence[Standing], title: str) -> None:
    regimes = list(dict.fromkeys(each.regime for each in standings))
    ticks = [_short(regime) for regime in regimes]
    lowest = 100.0
    for policy, (label, colour, marker) in LINES.items():
        shares = {
            each.regime: 100 * each.fraction_of_optimum
            for each in standings
            if each.policy == policy
        }
        heights = [shares[regime] for regime in regimes]
        lowest = min(lowest, *heights)
        axes.plot(ticks, heights, color=colour, marker=marker, markersize=6, label=label)
    axes.axhline(100, color=INK, linewidth=1, linestyle="--")
    axes.set_title(title)
    axes.set_ylim(max(0.0, lowest - 1), 100.5)
    crowded = max(len(line) for tick in ticks for line in tick.split("\n")) > 6
    axes.tick_params(axis="x", labelsize=9 if crowded else 11)


def _short(regime: str) -> str:
    words = regime.replace("proportional-uniform, ", "").replace(" of capacity", "")
    words = words.replace(", by composition", "\nand swaps").replace("_", "\n")
    return words.replace(" / ", " /\n")

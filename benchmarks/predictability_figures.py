"""The figures of the predictability study, by family of series."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.market.predictability_spells import AGE_HOURS
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
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from predictability import Family

COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, INK, GREY, YELLOW)
MARKERS = "oDPv^Xs*<>ph"
AWS = "AWS, "


@house_style()
def reach_figure(families: Sequence[Family]) -> Figure:
    """Draw how much of the mean's error knowing the past removes, by horizon."""
    figure = new_figure(14, 6.2)
    left, right = figure.subplots(1, 2, sharey=True)
    chosen = [each for each in families if each.explained]
    _draw_reach(left, [each for each in chosen if not each.price], "Availability")
    _draw_reach(right, [each for each in chosen if each.price], "Price")
    left.set_ylabel("Squared error of the mean that the past removes (%)")
    return figure


def _draw_reach(axes: Axes, families: Sequence[Family], title: str) -> None:
    hours = sorted({hour for family in families for hour in family.explained})
    for place, family in enumerate(families):
        line = [
            (hours.index(hour), 100 * share)
            for hour, share in family.explained.items()
            if share is not None
        ]
        axes.plot(
            *zip(*line, strict=True),
            color=COLOURS[place % len(COLOURS)],
            marker=MARKERS[place % len(MARKERS)],
            linestyle="-" if place < len(COLOURS) else "--",
            label=f"{family.name} ({family.series})",
        )
    axes.axhline(0, color=INK, linewidth=1)
    axes.set_xticks(range(len(hours)), [_hours(hour) for hour in hours])
    axes.set_ylim(-12, 102)
    axes.set_xlabel("Ahead")
    axes.set_title(title)
    if title == "Price":
        axes.legend(loc="center left", bbox_to_anchor=(0.0, 0.62), fontsize=8.5, ncols=2)
    else:
        axes.legend(loc="upper right", fontsize=8.5)


@house_style()
def pattern_figure(families: Sequence[Family]) -> Figure:
    """Draw the share of series with a pattern beyond chance, and its share of the variance."""
    chosen = _bars(families)[::-1]
    figure = new_figure(14, 1.6 + 0.36 * len(chosen))
    left, right = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(chosen))
    for axes, fields in (
        (left, ("daily_real", "weekly_real")),
        (right, ("daily_share", "weekly_share")),
    ):
        for field, colour, shift, label in zip(
            fields, (BLUE, ORANGE), (0.19, -0.19), ("daily", "weekly"), strict=True
        ):
            widths = [100 * bar.get(field, 0.0) for _, bar in chosen]
            axes.barh(places + shift, widths, height=0.36, color=colour, label=label)
    left.axvline(5, color=INK, linestyle="--", linewidth=1.2, label="by chance")
    left.set_yticks(places, [label for label, _ in chosen])
    left.set_xlabel("Series with a pattern beyond chance (%)")
    right.set_xlabel("Variance explained beyond chance, median (%)")
    left.set_title("How often the clock matters")
    right.set_title("How much")
    for axes in (left, right):
        axes.grid(visible=False, axis="y")
        axes.set_ylim(-0.7, len(chosen) - 0.3)
    left.legend(loc="lower right")
    return figure


def _bars(families: Sequence[Family]) -> list[tuple[str, dict[str, float]]]:
    """Return a bar for each family, but only one for all of AWS."""
    fields = ("daily_real", "weekly_real", "daily_share", "weekly_share")
    tested = [each for each in families if each.daily_real is not None]
    groups = {each.name: [each] for each in tested if not each.name.startswith(AWS)}
    groups["AWS prices"] = [each for each in tested if each.name.startswith(AWS)]
    bars = []
    for name, members in groups.items():
        weights = [each.series for each in members]
        bar = {
            field: float(np.average([getattr(each, field) for each in members], weights=weights))
            for field in fields
            if all(getattr(each, field) is not None for each in members)
        }
        bars.append((f"{name} ({sum(weights)})", bar))
    return bars


@house_style()
def hazard_figure(families: Sequence[Family]) -> Figure:
    """Draw how often spells end by age; a memoryless market would be level."""
    figure = new_figure(14, 6.2)
    left, right = figure.subplots(1, 2)
    chosen = [each for each in families if not each.price]
    for axes, which, title in ((left, "up", "Up spells end"), (right, "down", "Down spells end")):
        for place, family in enumerate(chosen):
            line = pooled_hazard(family, which)
            if len(line) < 2:
                continue
            axes.plot(
                [hours for hours, _ in line],
                [hazard for _, hazard in line],
                color=COLOURS[place % len(COLOURS)],
                marker=MARKERS[place % len(MARKERS)],
                linestyle="-" if place < len(COLOURS) else "--",
                label=family.name,
            )
        axes.set_yscale("log")
        axes.set_xticks(range(len(AGES)), AGES)
        axes.set_xlim(-0.2, len(AGES) - 0.8)
        axes.set_xlabel("Age of the spell (h)")
        axes.set_ylabel("Ends per hour (log scale)")
        axes.set_title(title)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=9)
    return figure


AGES = ("0-1", "1-3", "3-6", "6-12", "12-24", "24+")
FEWEST_ENDS = 5


def pooled_hazard(family: Family, which: str) -> list[tuple[int, float]]:
    """Return (place in AGES, ends per hour) over all spells of a family with enough data."""
    ends, exposed = np.zeros(len(AGES)), np.zeros(len(AGES))
    for each in family.members:
        spells = getattr(each, which)
        for hazard in () if spells is None else spells.hazard:
            place = AGE_HOURS.index(hazard.from_hours)
            ends[place] += hazard.per_hour * hazard.exposed_hours
            exposed[place] += hazard.exposed_hours
    return [
        (place, float(ends[place] / exposed[place]))
        for place in range(len(AGES))
        if round(ends[place]) >= FEWEST_ENDS
    ]


def _hours(hours: float) -> str:
    return f"{hours / 24:g} d" if hours > 24 else f"{hours:g} h"

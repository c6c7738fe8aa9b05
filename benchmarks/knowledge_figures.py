"""The figures of the results on configuration knowledge."""

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
    RED,
    SKY,
    house_style,
    new_figure,
)
from knowledge_baselines import LOG, OURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from knowledge_errors import Coverage
    from knowledge_learning import CurvePoint, StreamPoint
    from knowledge_trials import Said

CURVES = {
    (OURS, "random"): ("duetune, random", BLUE, "o"),
    (OURS, "Latin hypercube"): ("duetune, Latin hypercube", SKY, "s"),
    (OURS, "active"): ("duetune, active", GREEN, "D"),
    (LOG, "random"): ("gradient boosting, random", ORANGE, "^"),
}
GPU_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY)
POSTER_SAMPLES, POSTER_ERROR = 600, 11.0
PLAIN_TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)


@house_style()
def learning_figure(points: Sequence[CurvePoint]) -> Figure:
    """Draw error by number of measured runs and by their cost, one row per table."""
    tables = list(dict.fromkeys(point.table for point in points))
    figure = new_figure(12, 4.4 * len(tables))
    grid = figure.subplots(len(tables), 2, squeeze=False)
    for (left, right), name in zip(grid, tables, strict=True):
        for (subject, strategy), (label, colour, marker) in CURVES.items():
            mine = [
                point
                for point in points
                if (point.table, point.subject, point.strategy) == (name, subject, strategy)
            ]
            if not mine:
                continue
            errors = [100 * point.mape for point in mine]
            style = {"color": colour, "marker": marker, "markersize": 5, "label": label}
            left.plot([point.samples for point in mine], errors, **style)
            right.plot([point.gpu_s / 3600 for point in mine], errors, **style)
        for axes in (left, right):
            axes.axhline(POSTER_ERROR, color=INK, linewidth=1, linestyle="--")
            axes.set_ylim(0, min(60.0, axes.get_ylim()[1]))
            axes.set_ylabel("Mean absolute error of tokens/s (%)")
        if name.startswith("ibm"):
            star = {"color": RED, "markersize": 14, "linestyle": "", "label": "the poster"}
            left.plot([POSTER_SAMPLES], [POSTER_ERROR], marker="*", **star)
        left.set_title(f"Runs to learn from: {name}")
        left.set_xlabel("Measured runs")
        right.set_title("What they cost to measure")
        right.set_xlabel("GPU-hours")
        left.legend(loc="upper right")
    figure.get_layout_engine().set(h_pad=0.1, w_pad=0.1)
    return figure


@house_style()
def scatter_figure(panels: dict[str, tuple[Sequence[Said], NDArray[np.str_]]]) -> Figure:
    """Draw predicted over measured for held-out rows, coloured by group."""
    figure = new_figure(6.4 * len(panels), 5.8)
    for axes, (title, (said, group)) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        measured = np.concatenate([each.measured for each in said])
        middle = np.concatenate([each.middle for each in said])
        ends = np.array([measured.min() / 1.5, measured.max() * 1.5])
        axes.fill_between(ends, ends / 1.2, ends * 1.2, color=PALE, linewidth=0, label="within 20%")
        axes.plot(ends, ends, color=INK, linewidth=1)
        for name, colour in zip(np.unique(group), GPU_COLOURS, strict=False):
            mine = group == name
            axes.scatter(
                measured[mine],
                middle[mine],
                s=16,
                color=colour,
                alpha=0.7,
                linewidths=0,
                label=name,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(*ends)
        axes.set_ylim(*ends)
        axes.set_aspect("equal")
        axes.set_title(title)
        axes.set_xlabel("Measured tokens/s")
        axes.set_ylabel("Predicted tokens/s, row held out")
        axes.legend(loc="upper left", markerscale=1.6)
    return figure


@house_style()
def frontier_figure(panels: dict[str, Sequence[Said]]) -> Figure:
    """Draw the believed probability to fit by the believed share of memory."""
    figure = new_figure(6.4 * len(panels), 4.8)
    for axes, (title, said) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        filled = np.clip(np.concatenate([each.filled for each in said]), 1 / 16, 16.0)
        likely = np.concatenate([each.likely for each in said])
        valid = np.concatenate([each.valid for each in said])
        known = np.isfinite(filled)
        for mask, colour, marker, label in (
            (valid, BLUE, "o", "fitted"),
            (~valid, RED, "X", "did not"),
        ):
            chosen = mask & known
            axes.scatter(
                filled[chosen],
                likely[chosen],
                s=22,
                color=colour,
                marker=marker,
                alpha=0.65,
                linewidths=0,
                label=f"{label} ({int(chosen.sum())})",
            )
        axes.axhline(0.5, color=INK, linewidth=1, linestyle="--")
        axes.axvline(1.0, color=INK, linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("Predicted peak over the GPU's memory")
        axes.set_ylabel("Predicted probability to fit")
        axes.set_title(title)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.legend(loc="lower left")
    return figure


@house_style()
def coverage_figure(found: Sequence[Coverage]) -> Figure:
    """Draw the coverage of intervals by GPU type."""
    figure = new_figure(11, 0.5 * len(found) + 1.8)
    left, right = figure.subplots(1, 2, sharey=True)
    labels = [f"{each.group} ({each.table}, {each.rows} rows)" for each in found]
    places = np.arange(len(found))[::-1]
    left.axvspan(87, 93, color=PALE, linewidth=0)
    left.axvline(90, color=INK, linewidth=1, linestyle="--")
    _dots(left, places, [100 * each.covered for each in found], found)
    left.set_yticks(places, labels)
    left.set_xlabel("Rows inside their 90% interval (%)")
    left.set_title("Coverage")
    _dots(right, places, [100 * each.half_width for each in found], found)
    right.set_xlim(left=0)
    right.set_xlabel("Median half-width of the interval (%)")
    right.set_title("Width")
    return figure


def _dots(
    axes: Axes, places: NDArray[np.int64], values: list[float], found: Sequence[Coverage]
) -> None:
    for place, value, each in zip(places, values, found, strict=True):
        total = each.group == "total"
        axes.plot(value, place, "D" if total else "o", color=INK if total else BLUE, markersize=8)
    axes.set_ylim(-0.6, len(places) - 0.4)


@house_style()
def stream_figure(points: Sequence[StreamPoint]) -> Figure:
    """Draw the error on a stream of runs."""
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    tables = list(dict.fromkeys(point.table for point in points))
    for name, colour in zip(tables, (BLUE, GREEN, ORANGE), strict=False):
        mine = [point for point in points if point.table == name]
        seen = [point.seen for point in mine]
        left.plot(
            seen, [100 * point.mape for point in mine], "o-", color=colour, label=f"{name}: mean"
        )
        left.plot(
            seen, [100 * point.mdape for point in mine], "o:", color=colour, label=f"{name}: median"
        )
        if any(point.validity > 0 for point in mine):
            rates = [100 * point.validity for point in mine]
            right.plot(seen, rates, "o-", color=colour, label=name)
    left.set_yscale("log")
    left.set_yticks(PLAIN_TICKS, [f"{tick:g}" for tick in PLAIN_TICKS])
    left.minorticks_off()
    errors = [100 * error for point in points for error in (point.mape, point.mdape)]
    left.set_ylim(0.8 * np.nanmin(errors), 1.25 * np.nanmax(errors))
    left.set_title("Error of tokens/s, next 25 runs")
    right.set_title("Error of validity, next 25 runs")
    for axes in (left, right):
        axes.set_xlabel("Runs written back before")
        axes.set_ylabel("Error (%)")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper right")
    right.set_ylim(bottom=0)
    return figure

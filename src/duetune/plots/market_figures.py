"""A market over time, and how well its past predicts its future."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.market.predictability_pattern import autocorrelation, hourly_means
from duetune.market.predictability_skill import Predictor
from duetune.market.predictability_spells import kaplan_meier, spells_of
from duetune.market.slot_grid import MICROSECONDS_PER_HOUR, dated
from duetune.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ON_DEMAND,
    ORANGE,
    PALE,
    PINK,
    RED,
    SKY,
    SPOT,
    house_style,
    legend_beside,
    new_figure,
    plain,
    styled_axes,
    whole_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from duetune.core.market import MarketTrace
    from duetune.market.predictability_skill import Horizon
    from duetune.market.slot_grid import Grid
    from duetune.market.statistics import MarketStatistics

    Curve = tuple[NDArray[np.float64], NDArray[np.float64]]

LINES = (BLUE, ORANGE, GREEN, PINK, SKY, RED, INK)
LONGEST_LAG_HOURS = 72.0
LONGEST_SPELL_HOURS = 48.0
PREDICTORS = {
    Predictor.MEAN: ("mean so far", GREY, "v"),
    Predictor.SEASONAL: ("value one day before", ORANGE, "^"),
    Predictor.HOURLY: ("mean of the same hour", PINK, "D"),
    Predictor.DAMPED: ("last value, damped to the mean", BLUE, "o"),
    Predictor.DAMPED_HOURLY: ("last value, damped to the hour's mean", GREEN, "P"),
}


@house_style()
def market_figure(grid: Grid) -> Figure:
    """Return the figure of one pool over time: prices, and spot GPUs available.

    Gaps stay white, and slots whose GPUs nobody counted are shaded.
    """
    figure = new_figure(11, 6.4)
    prices, counts = styled_axes(figure, 2, heights=(1.0, 1.0), share_x=True)
    slots = grid.present.shape[1]
    edges: NDArray[np.float64] = np.arange(slots + 1) * grid.slot_hours / 24
    if dated(grid):
        edges += grid.start / (24 * MICROSECONDS_PER_HOUR)  # matplotlib counts days since 1970
    spot = np.where(grid.present[0], grid.spot_usd_gpu_h[0], np.nan)
    on_demand = np.where(grid.present[0], grid.on_demand_usd_gpu_h[0], np.nan)
    prices.stairs(spot, edges, baseline=None, color=SPOT, linewidth=1.6, label="spot")
    prices.stairs(on_demand, edges, baseline=None, color=ON_DEMAND, label="on demand")
    prices.set_ylim(bottom=0)
    prices.set_ylabel("$ per GPU-hour")
    prices.set_title("Price")
    legend_beside(prices)
    for bound, colour, label in ((False, SPOT, "counted"), (True, SKY, "at least")):
        shown = grid.counted[0] & (grid.at_least[0] == bound)
        if shown.any():
            values = np.where(shown, grid.available[0], np.nan)
            counts.stairs(values, edges, fill=True, color=colour, alpha=0.75, label=label)
    unknown = np.where(grid.counted[0], np.nan, 1.0)
    if not grid.counted.all():
        counts.stairs(
            unknown,
            edges,
            fill=True,
            color=PALE,
            alpha=0.6,
            label="unknown",
            transform=counts.get_xaxis_transform(),
        )
    counts.set_ylim(bottom=0)
    counts.set_ylabel("GPUs")
    counts.set_title("Spot GPUs available")
    whole_numbers(counts.yaxis)
    legend_beside(counts)
    counts.set_xlim(edges[0], edges[-1])
    counts.set_xlabel("Time (UTC)" if dated(grid) else "Days")
    if dated(grid):
        counts.xaxis_date("UTC")
    figure.suptitle(plain(grid.pools[0].name), x=0.01, ha="left", fontweight="bold")
    return figure


@house_style()
def predictability_figure(
    series: Sequence[tuple[MarketTrace, MarketStatistics]], *, title: str = ""
) -> Figure:
    """Return the figure of one or more series, each being one pool of a market.

    Its panels are the daily pattern, autocorrelation, the length of spells, and the skill of simple
    predictors. Of many series each is a thin line and their mean a thick one.
    """
    figure = new_figure(13, 9)
    (pattern, memory), (spells, skill) = figure.subplots(2, 2)
    labels = [trace.pools[0].name for trace, _ in series]
    _draw_pattern(pattern, series, labels)
    _draw_memory(memory, series, labels)
    _draw_spells(spells, series)
    _draw_skill(skill, series)
    handles, names = pattern.get_legend_handles_labels()
    if len(series) > 1:
        figure.legend(handles, names, loc="outside lower center", ncols=min(7, len(names)))
    figure.suptitle(plain(title or series[0][0].name), x=0.01, ha="left", fontweight="bold")
    return figure


def _draw_pattern(
    axes: Axes, series: Sequence[tuple[MarketTrace, MarketStatistics]], labels: Sequence[str]
) -> None:
    """Draw the mean availability by hour of the day."""

    def by_hour(place: int) -> Curve | None:
        trace = series[place][0]
        found = hourly_means(trace.available[0].astype(np.float64), trace.slot_hours)
        if found is None:
            return None
        hours, means = found
        begun = 0.0
        if trace.start is not None:
            begun = trace.start.hour + trace.start.minute / 60
        order = np.argsort((hours + begun) % 24, kind="stable")
        return ((hours + begun) % 24)[order], means[order]

    known = all(trace.start is not None for trace, _ in series)
    _draw_lines(axes, [by_hour(place) for place in range(len(series))], labels)
    axes.set_xlabel("Hour of the day (UTC)" if known else "Hours since the first slot, modulo 24")
    axes.set_ylabel("Mean GPUs available")
    axes.set_xlim(0, 23)
    axes.set_xticks(range(0, 24, 3))
    axes.set_ylim(bottom=0)
    tested = [
        daily
        for _, figures in series
        if figures.predictability and (daily := figures.predictability.available.daily)
    ]
    real = f", beyond chance in {sum(each.real for each in tested)} of {len(tested)} series"
    axes.set_title("Daily pattern" + (real if tested else ""))


def _draw_memory(
    axes: Axes, series: Sequence[tuple[MarketTrace, MarketStatistics]], labels: Sequence[str]
) -> None:
    """Draw the autocorrelation of availability."""

    def by_lag(trace: MarketTrace) -> Curve | None:
        values = trace.available[0].astype(np.float64)
        longest = min(LONGEST_LAG_HOURS, values.size * trace.slot_hours / 4)
        lags: NDArray[np.float64] = trace.slot_hours * np.arange(
            1.0, int(longest / trace.slot_hours) + 1
        )
        if lags.size > 144:
            lags = lags[:: int(np.ceil(lags.size / 144))]
        found = [autocorrelation(values, float(lag), trace.slot_hours) for lag in lags]
        if not found or None in found:
            return None
        return lags, np.array(found, dtype=np.float64)

    _draw_lines(axes, [by_lag(trace) for trace, _ in series], labels)
    axes.axhline(0, color=INK, linewidth=1)
    axes.set_title("Autocorrelation of availability")
    axes.set_xlabel("Lag (hours)")
    axes.set_ylabel("Autocorrelation")
    axes.set_xticks(range(0, int(LONGEST_LAG_HOURS) + 1, 12))
    axes.set_xlim(0, LONGEST_LAG_HOURS)
    axes.set_ylim(-0.5, 1.0)


def _draw_spells(axes: Axes, series: Sequence[tuple[MarketTrace, MarketStatistics]]) -> None:
    """Draw the survival curves of spells with and without enough GPUs."""
    from matplotlib.lines import Line2D

    few = len(series) <= len(LINES)
    for place, (trace, figures) in enumerate(series):
        up = trace.available[0] >= figures.gpus
        for state, dashes in ((up, "-"), (~up, ":")):
            spells = spells_of(state)
            if not spells.slots.size:
                continue
            left = kaplan_meier(spells)
            axes.step(
                np.arange(left.size) * trace.slot_hours,
                100 * left,
                where="post",
                color=LINES[place] if few else (BLUE if state is up else ORANGE),
                linestyle=dashes,
                linewidth=1.8 if few else 1.0,
            )
    colours = (INK, INK) if few else (BLUE, ORANGE)
    lines = [Line2D([], [], color=colours[0]), Line2D([], [], color=colours[1], linestyle=":")]
    axes.legend(lines, ["enough GPUs", "too few GPUs"], loc="upper right")
    axes.set_title("How long spells last")
    axes.set_xlabel("Hours since the spell began")
    axes.set_ylabel("Spells still lasting (%)")
    axes.set_xlim(0, LONGEST_SPELL_HOURS)
    axes.set_xticks(range(0, int(LONGEST_SPELL_HOURS) + 1, 6))
    axes.set_ylim(0, 100)


def _draw_skill(axes: Axes, series: Sequence[tuple[MarketTrace, MarketStatistics]]) -> None:
    """Draw the skill of each predictor by horizon, the median over the series."""
    found = [
        horizon
        for _, figures in series
        if figures.predictability is not None
        for horizon in figures.predictability.available.horizons
    ]
    hours = sorted({each.hours for each in found})
    lowest = -0.2
    for predictor, (label, colour, marker) in PREDICTORS.items():
        line = [
            (place, middle)
            for place, hour in enumerate(hours)
            if (middle := _median_skill([each for each in found if each.hours == hour], predictor))
            is not None
        ]
        if line:
            lowest = min([lowest, *(middle for _, middle in line)])
            axes.plot(*zip(*line, strict=True), color=colour, marker=marker, label=label)
    axes.axhline(0, color=INK, linewidth=1)
    many = f", median of {len(series)}" if len(series) > 1 else ""
    axes.set_title(f"Skill over the last value{many}")
    axes.set_xlabel("Hours ahead")
    axes.set_ylabel("Share of squared error saved")
    axes.set_xticks(range(len(hours)), [f"{hour:g}" for hour in hours])
    axes.set_ylim(max(-1.0, lowest - 0.05), 1.0)
    if found:
        axes.legend(loc="lower right", fontsize=9)


def _median_skill(horizons: Sequence[Horizon], predictor: Predictor) -> float | None:
    """Return the median skill over the series; None where no series has one."""
    known = [skill for each in horizons if (skill := each.squared(predictor)) is not None]
    return float(np.median(known)) if known else None


def _draw_lines(axes: Axes, curves: Sequence[Curve | None], labels: Sequence[str]) -> None:
    """Draw one line per series, each in its own colour while there are enough colours."""
    many = len(curves) > len(LINES)
    for place, (curve, label) in enumerate(zip(curves, labels, strict=True)):
        if curve is None:
            continue
        if many:
            name = "one series" if place == 0 else None
            axes.plot(*curve, color=SKY, linewidth=0.9, label=name)
        else:
            axes.plot(*curve, color=LINES[place], label=plain(label))
    drawn = [curve for curve in curves if curve is not None]
    if many and drawn and len({curve[0].tobytes() for curve in drawn}) == 1:
        mean = np.mean([curve[1] for curve in drawn], axis=0)
        axes.plot(drawn[0][0], mean, color=BLUE, linewidth=2.6, label="mean")

"""Figures of forecasts: the fan of one forecast, and the scores of several forecasters."""

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
    SPOT,
    house_style,
    legend_beside,
    new_figure,
    note,
    plain,
    styled_axes,
    whole_numbers,
)
from duetune.simulate.backtest.standings import Quantity
from duetune.simulate.summary import dollars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from duetune.core.market import MarketTrace
    from duetune.simulate.backtest.forecast_backtest import Backtest
    from duetune.simulate.backtest.past_forecasts import Expected, Fan

_COLOURS = (BLUE, ORANGE, GREEN, PINK, RED, SKY)
_MARKERS = "osD^vP"
_LOWEST_SKILL = -0.6
_SIGNIFICANT = 0.05
_LONGEST_NAME = 26


@house_style()
def fan_figure(forecast: Fan, trace: MarketTrace) -> Figure:
    """Return the figure of one forecast of price and availability.

    It shows twice as much of the past as is forecast, the ranges, and the actual values if known.
    """
    figure = new_figure(12, 7.4)
    prices, counts = styled_axes(figure, 2, heights=(1.0, 1.0), share_x=True)
    past = slice(max(0, forecast.at + 1 - 2 * len(forecast.slots)), forecast.at + 1)
    hours = trace.slot_hours
    _draw_fan(
        prices,
        trace.spot_price[0, past] / hours,
        [slot.spot_price for slot in forecast.slots],
        hours,
    )
    _draw_fan(counts, trace.available[0, past], [slot.available for slot in forecast.slots], hours)
    prices.set_ylabel(plain("Spot price ($/GPU-h)"))
    counts.set_ylabel("Spot GPUs available")
    # A line at zero must not be hidden by the axis.
    counts.set_ylim(bottom=-0.02 * counts.get_ylim()[1])
    whole_numbers(counts.yaxis)
    counts.set_xlabel("Hours since the slot in which the forecast was made")
    for axes in (prices, counts):
        axes.axvline(hours, color=GREY, linewidth=1.2, linestyle=(0, (4, 2)))
        axes.set_xlim(-hours * (past.stop - past.start - 1), hours * (len(forecast.slots) + 1))
        legend_beside(axes)
    prices.set_title(plain(f"{trace.name}: forecast by {forecast.forecaster}"))
    figure.align_ylabels([prices, counts])
    return figure


@house_style()
def backtest_figure(result: Backtest) -> Figure:
    """Return the figure of a backtest.

    Its panels are skill by horizon, the coverage of the 90% range, and what errors cost a policy.
    """
    names = [row.forecaster for row in result.standings]
    figure = new_figure(13, 7.2 + 0.22 * len(names))
    available, price, covered, regret = (
        axes for row in figure.subplots(2, 2, squeeze=False) for axes in row
    )
    _draw_skill(available, result, Quantity.AVAILABLE)
    _draw_skill(price, result, Quantity.SPOT_PRICE)
    available.set_title("Skill over persistence: GPUs available")
    price.set_title("Skill over persistence: spot price")
    for axes in (price, available):
        if axes.get_legend_handles_labels()[0]:
            legend_beside(axes)
            break
    _draw_coverage(covered, result)
    _draw_regret(regret, result)
    return figure


def _draw_fan(
    axes: Axes, past: NDArray[np.number], expected: Sequence[Expected], slot_hours: float
) -> None:
    """Draw one quantity; slot k after the present one lasts from k to k + 1 slots."""
    edges = slot_hours * np.arange(1, len(expected) + 2)
    for ends, colour, label in (
        ([each.ninety for each in expected], "#CFE3F0", "90% range"),
        ([each.half for each in expected], "#8FC1E0", "50% range"),
    ):
        known = [pair for pair in ends if pair is not None]
        if len(known) == len(expected):
            low, high = np.array(known).T
            axes.stairs(high, edges, baseline=low, fill=True, color=colour, label=label)
    axes.stairs(
        [each.value for each in expected],
        edges,
        baseline=None,
        color=SPOT,
        linewidth=2.0,
        label="forecast",
    )
    before = slot_hours * np.arange(1 - len(past), 2)
    axes.stairs(past, before, baseline=None, color=INK, linewidth=1.6, label="observed")
    came = [each.came for each in expected if each.came is not None]
    if came:
        known_edges = edges[: len(came) + 1]
        axes.stairs(came, known_edges, baseline=None, color=RED, linewidth=1.6, label="actual")


def _draw_skill(axes: Axes, result: Backtest, quantity: Quantity) -> None:
    """Draw skill by horizon; markers are filled where the difference is significant."""
    places = np.arange(len(result.horizons))
    found = [0.0]
    for number, row in enumerate(result.standings):
        scores = [result.score(row.forecaster, hours, quantity) for hours in result.horizons]
        values = [np.nan if score.skill is None else score.skill for score in scores]
        if np.isnan(values).all():
            continue
        found += [value for value in values if not np.isnan(value)]
        colour = _colour(row.forecaster, number)
        marker = _MARKERS[number % len(_MARKERS)]
        axes.plot(
            places,
            values,
            color=colour,
            marker=marker,
            markersize=7,
            label=plain(_short(row.forecaster)),
            zorder=3,
        )
        for place, value, score in zip(places, values, scores, strict=True):
            sure = score.p_value is not None and score.p_value < _SIGNIFICANT
            axes.plot(
                place,
                value,
                marker,
                color=colour,
                markerfacecolor=colour if sure else "white",
                markersize=7,
                zorder=4,
            )
    axes.axhline(0, color=INK, linewidth=1.0, zorder=2)
    axes.set_xticks(places, [f"{hours:g} h" for hours in result.horizons])
    axes.set_xlim(-0.3, len(places) - 0.7)
    hidden = f"; below {_LOWEST_SKILL:.0%} not shown" if min(found) < _LOWEST_SKILL else ""
    axes.set_xlabel(f"Horizon (filled markers: p < {_SIGNIFICANT:g}{hidden})")
    axes.yaxis.set_major_formatter("{x:.0%}")
    bottom, top = max(min(found), _LOWEST_SKILL), max(found)
    room = 0.08 * ((top - bottom) or 1.0)
    axes.set_ylim(bottom - room, top + room)
    if len(found) == 1:
        axes.set_yticks([])
        note(axes, "persistence is never wrong here")


def _draw_coverage(axes: Axes, result: Backtest) -> None:
    """Draw the coverage of the 90% range, one dot per horizon."""
    axes.axvspan(0.88, 0.92, color=PALE, zorder=0)
    axes.axvline(0.9, color=INK, linewidth=1.0, zorder=1)
    for quantity, colour, shift, label in (
        (Quantity.AVAILABLE, BLUE, -0.16, "GPUs available"),
        (Quantity.SPOT_PRICE, ORANGE, 0.16, "spot price"),
    ):
        points = [
            (result.score(row.forecaster, hours, quantity).coverage, place + shift)
            for place, row in enumerate(result.standings)
            for hours in result.horizons
        ]
        axes.plot(
            *zip(*points, strict=True), "o", color=colour, markersize=6, alpha=0.75, label=label
        )
    _forecasters_beside(axes, result)
    lowest = min(score.coverage for score in result.scores)
    axes.set_xlim(min(0.5, lowest) - 0.03, 1.03)
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel("Actual values within the 90% range (one dot per horizon)")
    axes.set_title("Coverage of 90% ranges")
    # An empty row for the legend: dots may be anywhere in the others.
    axes.set_ylim(len(result.standings) + 0.15, -0.55)
    axes.legend(loc="lower left", ncols=2, columnspacing=1.2, handletextpad=0.3)


def _draw_regret(axes: Axes, result: Backtest) -> None:
    """Draw what forecast errors cost the policy, in dollars per job."""
    axes.set_title("Cost of forecast errors")
    _forecasters_beside(axes, result)
    rows = [row.regret for row in result.standings]
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        axes.set_xticks([])
        note(axes, "no jobs were simulated")
        return
    for place, (row, standing) in enumerate(zip(known, result.standings, strict=True)):
        axes.barh(place, row.dollars, height=0.62, color=_colour(standing.forecaster, place))
        axes.errorbar(
            row.dollars, place, xerr=row.margin, color=INK, linewidth=1.2, capsize=3, zorder=4
        )
    ends = [row.dollars + row.margin for row in known]
    starts = [row.dollars - row.margin for row in known]
    span = (max([0.0, *ends]) - min([0.0, *starts])) or 1.0
    for place, row in enumerate(known):
        share = "" if row.share is None else f" ({row.share:.2%})"
        axes.text(
            max(0.0, ends[place]) + 0.02 * span,
            place,
            plain(dollars(row.dollars) + share),
            va="center",
            fontsize=10,
        )
    axes.axvline(0, color=INK, linewidth=1.0)
    axes.set_xlim(min([0.0, *starts]) - 0.03 * span, max([0.0, *ends]) + 0.34 * span)
    axes.set_xlabel(
        plain(f"Loss of {result.policy} against the perfect forecast\n($ per job, 95% intervals)")
    )


def _forecasters_beside(axes: Axes, result: Backtest) -> None:
    """Label the rows with the forecasters, the best on top."""
    names = [plain(_short(row.forecaster)) for row in result.standings]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def _colour(forecaster: str, number: int) -> str:
    """Return the colour of a forecaster; persistence is grey."""
    return GREY if forecaster == "last" else _COLOURS[number % len(_COLOURS)]


def _short(name: str) -> str:
    """Return the name, cut to a length that fits beside the axes."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"

"""Figures of a cluster simulation over time, and of several planners compared."""

from __future__ import annotations

import itertools
import math
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
    RED,
    SKY,
    YELLOW,
    house_style,
    legend_beside,
    new_figure,
    note,
    plain,
    styled_axes,
    whole_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from duetune.simulate.cluster.cluster_outcome import ClusterOutcome, RoundRecord
    from duetune.simulate.cluster.trial import Compared

_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW, RED, GREY)
_MARKERS = "osD^vP"


@house_style()
def cluster_figure(outcome: ClusterOutcome, partitions: Sequence[str], *, title: str) -> Figure:
    """Return the figure of one simulation.

    Its panels are GPUs in use by partition, jobs running and waiting, and the distribution of the
    times to the first start and to the end.
    """
    figure = new_figure(12, 9.6)
    gpus, jobs, times = styled_axes(figure, 3, heights=(1.2, 0.8, 1.0))
    if outcome.rounds:
        _draw_gpus(gpus, outcome, partitions)
        _draw_jobs(jobs, outcome)
    else:
        for axes in (gpus, jobs):
            note(axes, "No round was played: no job could run")
            axes.set(xticks=[], yticks=[])
    _draw_completion(times, outcome)
    figures = outcome.figures()
    done = figures.jobs - figures.unserved
    # Two lines: names of planners and sources may be long.
    words = f"{title}\n{done} of {figures.jobs} job{'' if figures.jobs == 1 else 's'} finished"
    if done:
        words += f", mean completion time {figures.mean_jct_h:.2f} h"
    gpus.set_title(plain(words))
    jobs.sharex(gpus)
    gpus.tick_params(labelbottom=False)
    figure.align_ylabels([gpus, jobs, times])
    return figure


@house_style()
def comparison_figure(settings: Sequence[Compared], *, title: str) -> Figure:
    """Return the mean completion time of each setting, with 95% intervals over seeds.

    With several loads it has a line per planner and source, with one load a bar.
    """
    loads = list(dict.fromkeys(each.setting.load for each in settings))
    height = 5.6 if len(loads) > 1 else max(3.0, 1.4 + 0.42 * len(settings))
    figure = new_figure(11, height)
    (axes,) = styled_axes(figure)
    if len(loads) > 1:
        _draw_lines(axes, settings)
    else:
        _draw_bars(axes, settings)
    axes.set_title(plain(title))
    return figure


def _draw_gpus(axes: Axes, outcome: ClusterOutcome, partitions: Sequence[str]) -> None:
    """Draw the GPUs in use by partition, and the GPUs available."""
    rounds, edges = _rounds(outcome)
    used = np.array([each.used for each in rounds]).reshape(len(rounds), len(partitions))
    there = np.array([sum(each.there) for each in rounds])
    base = np.zeros(len(rounds))
    for number, name in enumerate(partitions):
        top = base + used[:, number]
        axes.stairs(
            top,
            edges,
            baseline=base,
            fill=True,
            color=_COLOURS[number % len(_COLOURS)],
            label=plain(name),
            linewidth=0,
        )
        base = top
    axes.stairs(there, edges, baseline=None, color=INK, linewidth=1.4, label="available")
    axes.set_ylim(0, 1.05 * max(1, int(there.max(initial=1))))
    axes.set_xlim(edges[0], edges[-1])
    whole_numbers(axes.yaxis)
    axes.set_ylabel("GPUs in use")
    legend_beside(axes, reverse=True)


def _draw_jobs(axes: Axes, outcome: ClusterOutcome) -> None:
    """Draw how many jobs run and how many wait."""
    rounds, edges = _rounds(outcome)
    for counts, colour, label in (
        ([each.running for each in rounds], BLUE, "running"),
        ([each.waiting for each in rounds], RED, "waiting"),
    ):
        axes.stairs(counts, edges, baseline=None, color=colour, label=label, linewidth=1.6)
    axes.set_ylim(bottom=0)
    whole_numbers(axes.yaxis)
    axes.set_ylabel("Jobs")
    axes.set_xlabel("Time (hours)")
    legend_beside(axes)


def _draw_completion(axes: Axes, outcome: ClusterOutcome) -> None:
    """Draw the share of jobs that were started, and finished, within a time."""
    from matplotlib.ticker import PercentFormatter

    taken = np.sort([each.jct_s / 3600 for each in outcome.jobs if each.jct_s is not None])
    waited = np.sort([each.queued_s / 3600 for each in outcome.jobs if each.queued_s is not None])
    for values, colour, label in (
        (waited, ORANGE, "started"),
        (taken, BLUE, "finished"),
    ):
        if not values.size:
            continue
        share = 100 * np.arange(values.size + 1) / max(1, len(outcome.jobs))
        hours = np.maximum(np.append(values[:1], values), 1 / 60)
        axes.step(hours, share, where="post", color=colour, label=label)
    axes.set_xscale("log")
    if not waited.size and not taken.size:
        axes.set_xlim(1 / 60, 100)
    _label_nicely(axes.xaxis, *axes.get_xlim())
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.set_ylim(0, 102)
    axes.set_ylabel("Share of jobs")
    axes.set_xlabel("Hours since submission (log scale; shorter times are drawn at 1 minute)")
    if not taken.size:
        note(axes, "No job finished" if waited.size else "No job started")
    if waited.size or taken.size:
        legend_beside(axes, reverse=True)


def _rounds(outcome: ClusterOutcome) -> tuple[list[RoundRecord], NDArray[np.float64]]:
    """Return the rounds and their edges in hours, with an empty round for each idle pause."""
    found: list[RoundRecord] = []
    for each in outcome.rounds:
        if found and each.at_s > found[-1].at_s + 1.5 * outcome.round_s:
            pause = msgspec.structs.replace(
                found[-1],
                at_s=found[-1].at_s + outcome.round_s,
                used=tuple(0 for _ in each.used),
                running=0,
                waiting=0,
            )
            found.append(pause)
        found.append(each)
    begins = [each.at_s for each in found]
    end = begins[-1] + outcome.round_s if begins else 0.0
    return found, np.array([*begins, end]) / 3600


def _draw_lines(axes: Axes, settings: Sequence[Compared]) -> None:
    """Draw one line over the loads for each planner and source."""
    from matplotlib.ticker import FuncFormatter

    sources = list(dict.fromkeys(each.setting.source for each in settings))
    planners = list(dict.fromkeys(each.setting.planner for each in settings))
    for number, (planner, source) in enumerate(itertools.product(planners, sources)):
        line = [
            each
            for each in settings
            if (each.setting.planner, each.setting.source) == (planner, source)
        ]
        place = planners.index(planner)
        axes.errorbar(
            # Shifted a little, so that intervals do not cover each other.
            [(each.setting.load or 0.0) * 1.012**number for each in line],
            [each.figures.mean_jct_h for each in line],
            yerr=_error(line),
            color=_COLOURS[sources.index(source) % len(_COLOURS)],
            marker=_MARKERS[place % len(_MARKERS)],
            linestyle=("-", "--", ":", "-.")[place % 4],
            capsize=3,
            elinewidth=1.2,
            label=plain(f"{planner}, {source}"),
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sorted({each.setting.load or 0.0 for each in settings}))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
    _label_nicely(axes.yaxis, *axes.get_ylim())
    axes.set_xlabel("Jobs per hour (log scale)")
    axes.set_ylabel("Mean completion time (hours, log scale)")
    legend_beside(axes)


def _label_nicely(axis: Axis, low: float, high: float) -> None:
    """Label a logarithmic axis at 0.1, 0.2, 0.5, 1, ..."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    nice = [digit * 10.0**power for power in range(-3, 5) for digit in (1, 2, 5)]
    axis.set_ticks([each for each in nice if low <= each <= high])
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))


def _draw_bars(axes: Axes, settings: Sequence[Compared]) -> None:
    """Draw one bar for each planner and source."""
    sources = list(dict.fromkeys(each.setting.source for each in settings))
    rows = np.arange(len(settings))[::-1]
    values = [_finite(each.figures.mean_jct_h) for each in settings]
    axes.barh(
        rows,
        values,
        height=0.66,
        xerr=_error(settings),
        color=[_COLOURS[sources.index(each.setting.source) % len(_COLOURS)] for each in settings],
        error_kw={"ecolor": INK, "capsize": 3, "elinewidth": 1.2},
    )
    tops = [
        value if each.mean_jct_h is None else _finite(each.mean_jct_h.high)
        for value, each in zip(values, settings, strict=True)
    ]
    for row, top, each in zip(rows, tops, settings, strict=True):
        words = f"{each.figures.mean_jct_h:.2f} h"
        if math.isnan(each.figures.mean_jct_h):
            words = "no job finished" if each.seeds == 1 else "no job finished with some seed"
        elif each.reduction is not None and math.isfinite(each.reduction):
            words += f" ({-each.reduction:+.0%})"
        axes.annotate(
            words, (top, row), xytext=(6, 0), textcoords="offset points", va="center", color=INK
        )
    axes.set_yticks(
        rows, [plain(f"{each.setting.planner}, {each.setting.source}") for each in settings]
    )
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.22 * (max(tops) or 1.0))
    axes.set_xlabel("Mean completion time (hours, 95% intervals; change against the top row)")
    axes.spines["left"].set_color(PALE)


def _error(settings: Sequence[Compared]) -> list[list[float]] | None:
    """Return the distances from the mean to both ends of the intervals; None without intervals."""
    found: list[list[float]] = [[], []]
    for each in settings:
        if each.mean_jct_h is None:
            return None
        found[0].append(_finite(max(0.0, each.figures.mean_jct_h - each.mean_jct_h.low)))
        found[1].append(_finite(max(0.0, each.mean_jct_h.high - each.figures.mean_jct_h)))
    return found


def _finite(hours: float) -> float:
    """Return the hours, or 0 where no job finished."""
    return hours if math.isfinite(hours) else 0.0

"""A real run over time: the nodes it had, the market, and how far training was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.events import Ended, Observed, Reported
from duetune.core.fleet import NodeKind, NodeState
from duetune.plots.style import (
    GREEN,
    GREY,
    INK,
    ON_DEMAND,
    RED,
    SPOT,
    house_style,
    legend_beside,
    new_figure,
    plain,
    styled_axes,
)
from duetune.simulate.journal_replay import job_lived, market_lived, state_of
from duetune.simulate.summary import dollars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from duetune.core.events import Recorded
    from duetune.engine.state import JobState

_SAMPLES = 1200


@house_style()
def timeline_figure(name: str, story: Sequence[Recorded]) -> Figure:
    """Time is in the market's hours since the job's first slot."""
    state = state_of(story)
    job, slot_h = job_lived(story), state.submitted.slot_s / 3600
    ended = next((each.event for each in story if isinstance(each.event, Ended)), None)
    last = _hours(state, max(each.event.at for each in story))
    end = max(last, job.deadline * slot_h) * 1.02
    figure = new_figure(12, 8.4)
    held, prices, progress = styled_axes(figure, 3, heights=(1.3, 0.8, 1.0), share_x=True)
    market = market_lived(story, slots=int(np.ceil(end / slot_h)))
    edges = np.arange(market.slots + 1) * slot_h
    seen = max(each.event.slot for each in story if isinstance(each.event, Observed))
    _draw_nodes(held, state, end)
    held.stairs(
        market.available[0, :seen],
        edges[: seen + 1],
        baseline=None,
        color=INK,
        linewidth=1.6,
        label="spot available",
    )
    most = max(job.max_gpus, int(market.available[0, :seen].max()))
    held.set_ylim(0, most + 0.6)
    held.set_ylabel("GPUs")
    for series, colour, label in (
        (market.on_demand_price[0], ON_DEMAND, "on-demand"),
        (market.spot_price[0], SPOT, "spot"),
    ):
        prices.stairs(
            series[:seen] / slot_h, edges[: seen + 1], baseline=None, color=colour, label=label
        )
    prices.set_ylim(bottom=0)
    prices.set_ylabel("Price ($/GPU-h)".replace("$", r"\$"))
    _draw_progress(progress, state, story, job.deadline * slot_h)
    for axes in (held, prices, progress):
        axes.axvline(job.deadline * slot_h, color=RED, linewidth=1.4, linestyle=(0, (4, 2)))
        legend_beside(axes)
    progress.set_xlim(0, end)
    progress.set_xlabel("Market time since the job began (hours)")
    held.set_title(plain(_title(name, state, ended)))
    figure.align_ylabels([held, prices, progress])
    return figure


def _hours(state: JobState, moment: float) -> float:
    return (moment - state.submitted.origin) / 3600


def _draw_nodes(axes: Axes, state: JobState, end: float) -> None:
    """How many nodes ran at every moment, spot below on-demand, and where one was lost."""
    times = np.linspace(0, end, _SAMPLES)
    counts = {kind: np.zeros(_SAMPLES) for kind in NodeKind}
    lost = []
    for node in state.nodes.values():
        if node.started_at is None:
            continue
        begin = _hours(state, node.started_at)
        stop = end if node.ended_at is None else _hours(state, node.ended_at)
        counts[node.kind] += (times >= begin) & (times < stop)
        if node.state is NodeState.LOST:
            lost.append(stop)
    spot, on_demand = counts[NodeKind.SPOT], counts[NodeKind.ON_DEMAND]
    axes.fill_between(times, 0, spot, step="post", color=SPOT, linewidth=0, label="spot held")
    axes.fill_between(
        times,
        spot,
        spot + on_demand,
        step="post",
        color=ON_DEMAND,
        linewidth=0,
        label="on-demand held",
    )
    if lost:
        axes.plot(
            lost,
            np.full(len(lost), 0.12),
            "x",
            color=RED,
            markersize=8,
            markeredgewidth=2,
            label="preempted",
        )


def _draw_progress(axes: Axes, state: JobState, story: Sequence[Recorded], deadline: float) -> None:
    points = [(0.0, 0.0)]
    total = max(1, state.progress.total_steps)
    for recorded in story:
        event = recorded.event
        if isinstance(event, Reported) and event.progress is not None:
            at = event.at if event.progress_at is None else event.progress_at
            points.append((_hours(state, at), 100 * event.progress.step / total))
    axes.plot([0, deadline], [0, 100], color=GREY, linestyle="--", label="uniform pace")
    axes.plot(*zip(*points, strict=True), color=GREEN, label="steps done")
    axes.plot(*points[-1], "o", color=GREEN, markersize=7, clip_on=False)
    axes.set_ylim(0, 108)
    axes.set_ylabel("Steps done (%)")
    axes.annotate(
        "deadline",
        (deadline, 0.06),
        xycoords=("data", "axes fraction"),
        xytext=(-5, 0),
        textcoords="offset points",
        ha="right",
        color=RED,
    )


def _title(name: str, state: JobState, ended: Ended | None) -> str:
    if ended is None:
        return f"{name} — {state.status}, {dollars(state.spent)} so far"
    words = f"{name} — {ended.status}, {dollars(ended.cost)}, {state.preemptions} preemptions"
    if ended.finished_at is not None:
        spare = (state.deadline_at - ended.finished_at) / 3600
        words += f", {abs(spare):.1f} h {'before' if spare >= 0 else 'after'} the deadline"
    return words

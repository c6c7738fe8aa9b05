"""One job over time: the GPUs it held, the market, and its progress.

``allocation_figure`` draws a simulated run from its outcome; ``timeline_figure`` draws a live job
from its journal. Both have the same three panels; a live job has a fourth one for its losses.
"""

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
    whole_numbers,
)
from duetune.plots.training_figures import draw_evaluations
from duetune.simulate.journal_replay import job_lived, market_lived, state_of
from duetune.simulate.summary import dollars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from duetune.core.events import Recorded
    from duetune.core.job import Job
    from duetune.core.ledger import Outcome
    from duetune.core.market import MarketTrace, MarketWindow
    from duetune.engine.state import JobState

_SAMPLES = 1200


@house_style()
def allocation_figure(outcome: Outcome, job: Job, trace: MarketTrace, *, start: int = 0) -> Figure:
    """Return the figure of a simulated run that began in slot ``start`` of the trace.

    Its panels are GPUs held and available, prices, and progress against the uniform pace. Time is
    in slots.
    """
    figure = new_figure(12, 8.4)
    held, prices, progress = styled_axes(figure, 3, heights=(1.3, 0.8, 1.0), share_x=True)
    shown = min(max(len(outcome.entries), job.deadline) + 1, job.hard_deadline)
    window = trace.window(start, shown)
    edges = np.arange(shown + 1.0)
    _draw_allocation(held, outcome)
    _draw_market(held, prices, window, edges, trace.slot_hours)
    held.set_ylim(0, max(job.max_gpus, int(window.available.max())) * 1.05)
    done = [0.0, *(entry.progress for entry in outcome.entries)]
    share = 100 * np.array(done) / job.work
    _draw_progress(progress, np.arange(share.size), share, job.deadline, "Work done (%)")
    if outcome.finished is not None:
        progress.plot(outcome.finished, share[-1], "o", color=GREEN, markersize=7, clip_on=False)
    progress.set_ylim(0, max(108.0, float(share.max()) * 1.04))
    progress.set_xlim(0, shown)
    whole_numbers(progress.xaxis)
    hours = trace.slot_hours
    length = f"{hours:g} h" if hours >= 1 else f"{hours * 60:g} min"
    progress.set_xlabel(f"Time since the job began (slots of {length})")
    _finish(figure, _outcome_title(outcome, job), job.deadline)
    return figure


@house_style()
def timeline_figure(name: str, story: Sequence[Recorded]) -> Figure:
    """Return the figure of a live job, running or ended, from its journal.

    Time is in hours of the market since the job's first slot.
    """
    state = state_of(story)
    job, slot_h = job_lived(story), state.submitted.slot_s / 3600
    deadline = job.deadline * slot_h
    last = _hours(state, max(each.event.at for each in story))
    end = max(last, deadline) * 1.02
    losses = _losses(state, story)
    heights = (1.3, 0.8, 1.0, 0.9) if losses else (1.3, 0.8, 1.0)
    figure = new_figure(12, 8.4 if not losses else 10.6)
    held, prices, progress, *more = styled_axes(figure, len(heights), heights=heights, share_x=True)
    seen = max(each.event.slot for each in story if isinstance(each.event, Observed))
    window = market_lived(story).window(0, seen)
    _draw_nodes(held, state, end)
    _draw_market(held, prices, window, np.arange(seen + 1) * slot_h, slot_h)
    held.set_ylim(0, max(job.max_gpus, int(window.available.max())) + 0.6)
    points = np.array(_steps(state, story))
    _draw_progress(progress, points[:, 0], points[:, 1], deadline, "Steps done (%)")
    progress.plot(*points[-1], "o", color=GREEN, markersize=7, clip_on=False)
    progress.set_ylim(0, 108)
    progress.set_xlim(0, end)
    for axes in more:
        _draw_losses(axes, losses)
    figure.axes[-1].set_xlabel("Market time since the job began (hours)")
    ended = next((each.event for each in story if isinstance(each.event, Ended)), None)
    _finish(figure, _story_title(name, state, ended), deadline)
    return figure


def _draw_allocation(axes: Axes, outcome: Outcome) -> None:
    """Draw the GPUs held in each slot, spot below on-demand."""
    spot = np.array([entry.allocation.spot for entry in outcome.entries])
    on_demand = np.array([entry.allocation.on_demand for entry in outcome.entries])
    for gpus, below, colour, label in (
        (spot, np.zeros_like(spot), SPOT, "spot held"),
        (on_demand, spot, ON_DEMAND, "on-demand held"),
    ):
        axes.bar(
            np.arange(spot.size),
            gpus,
            width=1.0,
            bottom=below,
            align="edge",
            color=colour,
            edgecolor="white",
            linewidth=0.6,
            label=label,
        )


def _draw_nodes(axes: Axes, state: JobState, end: float) -> None:
    """Draw how many nodes ran at every moment, spot below on-demand, and mark preemptions."""
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
    spot = counts[NodeKind.SPOT]
    total = spot + counts[NodeKind.ON_DEMAND]
    for low, high, colour, label in (
        (np.zeros(_SAMPLES), spot, SPOT, "spot held"),
        (spot, total, ON_DEMAND, "on-demand held"),
    ):
        axes.fill_between(times, low, high, step="post", color=colour, linewidth=0, label=label)
    if lost:
        heights = np.full(len(lost), 0.12)
        axes.plot(lost, heights, "x", color=RED, markersize=8, markeredgewidth=2, label="preempted")


def _draw_market(
    held: Axes, prices: Axes, window: MarketWindow, edges: NDArray[np.floating], slot_hours: float
) -> None:
    """Draw availability over the GPUs held, and prices below."""
    held.stairs(
        window.available, edges, baseline=None, color=INK, linewidth=1.6, label="spot available"
    )
    held.set_ylabel("GPUs")
    whole_numbers(held.yaxis)
    on_demand, spot = window.on_demand_price / slot_hours, window.spot_price / slot_hours
    for series, colour, label in ((on_demand, ON_DEMAND, "on-demand"), (spot, SPOT, "spot")):
        prices.stairs(series, edges, baseline=None, color=colour, linewidth=1.8, label=label)
    prices.set_ylim(0, max(float(on_demand.max()), float(spot.max())) * 1.12)
    prices.set_ylabel(plain("Price ($/GPU-h)"))


def _draw_progress(
    axes: Axes, times: NDArray[np.number], share: NDArray[np.float64], deadline: float, label: str
) -> None:
    """Draw the progress in percent against the uniform pace to the deadline."""
    axes.plot([0, deadline], [0, 100], color=GREY, linestyle="--", label="uniform pace")
    axes.plot(times, share, color=GREEN, label=label.removesuffix(" (%)").lower())
    axes.set_ylabel(label)
    axes.annotate(
        "deadline",
        (deadline, 0.06),
        xycoords=("data", "axes fraction"),
        xytext=(-5, 0),
        textcoords="offset points",
        ha="right",
        color=RED,
    )


def _finish(figure: Figure, title: str, deadline: float) -> None:
    """Add the title, the legends, and a line at the deadline in every panel."""
    figure.axes[0].set_title(plain(title))
    for axes in figure.axes:
        axes.axvline(deadline, color=RED, linewidth=1.4, linestyle=(0, (4, 2)))
        axes.grid(visible=False, axis="x")
        legend_beside(axes)
    figure.align_ylabels(figure.axes)


def _hours(state: JobState, moment: float) -> float:
    """Return the moment in hours since the job's first slot."""
    return (moment - state.submitted.origin) / 3600


def _steps(state: JobState, story: Sequence[Recorded]) -> list[tuple[float, float]]:
    """Return the reported progress: hours since the first slot, and percent of all steps."""
    points = [(0.0, 0.0)]
    total = max(1, state.progress.total_steps)
    for recorded in story:
        event = recorded.event
        if isinstance(event, Reported) and event.progress is not None:
            at = event.at if event.progress_at is None else event.progress_at
            points.append((_hours(state, at), 100 * event.progress.step / total))
    return points


def _losses(
    state: JobState, story: Sequence[Recorded]
) -> list[tuple[float, float | None, float | None]]:
    """Return the reported losses: hours since the first slot, loss and evaluation loss."""
    found = []
    for recorded in story:
        event = recorded.event
        if isinstance(event, Reported) and event.progress is not None:
            at = event.at if event.progress_at is None else event.progress_at
            loss, measured = event.progress.loss, event.progress.eval_loss
            if loss is not None or measured is not None:
                found.append((_hours(state, at), loss, measured))
    return found


def _draw_losses(axes: Axes, losses: list[tuple[float, float | None, float | None]]) -> None:
    """Draw the reported losses; an evaluation loss counts from when it was first reported."""
    points = [(at, loss) for at, loss, _ in losses if loss is not None]
    if points:
        axes.plot(*zip(*points, strict=True), color=SPOT, label="loss")
    evaluated: dict[float, float] = {}
    for at, _, measured in losses:
        if measured is not None and measured not in evaluated:
            evaluated[measured] = at
    if evaluated:
        draw_evaluations(axes, list(evaluated.values()), list(evaluated))
    axes.set_ylabel("Loss")


def _outcome_title(outcome: Outcome, job: Job) -> str:
    """Return policy, money and end of a simulated run."""
    if outcome.finished is None:
        when = f"not finished by the hard deadline, slot {job.hard_deadline}"
    elif outcome.on_time:
        when = f"on time: slot {outcome.finished} of {job.deadline}"
    else:
        when = f"late: slot {outcome.finished}, due in {job.deadline}"
    money = f"cost {dollars(outcome.cost)}, utility {dollars(outcome.utility)}"
    return f"{outcome.policy} — {money}, {when}"


def _story_title(name: str, state: JobState, ended: Ended | None) -> str:
    """Return name, status, cost and preemptions of a live job."""
    if ended is None:
        return f"{name} — {state.status}, {dollars(state.spent)} so far"
    lost = "1 preemption" if state.preemptions == 1 else f"{state.preemptions} preemptions"
    words = f"{name} — {ended.status}, {dollars(ended.cost)}, {lost}"
    if ended.finished_at is not None:
        spare = (state.deadline_at - ended.finished_at) / 3600
        words += f", {abs(spare):.1f} h {'before' if spare >= 0 else 'after'} the deadline"
    return words

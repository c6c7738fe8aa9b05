"""One run over time: what was held, what it cost per GPU, how far the work was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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
from duetune.simulate.summary import dollars

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
    from numpy.typing import NDArray

    from duetune.core.job import Job
    from duetune.core.ledger import Outcome
    from duetune.core.market import MarketTrace, MarketWindow


@house_style()
def allocation_figure(outcome: Outcome, job: Job, trace: MarketTrace, *, start: int = 0) -> Figure:
    """GPUs held against those available; prices; progress against the uniform pace."""
    figure = new_figure(12, 8.4)
    held, prices, progress = styled_axes(figure, 3, heights=(1.3, 0.8, 1.0), share_x=True)
    shown = min(max(len(outcome.entries), job.deadline) + 1, job.hard_deadline)
    window = trace.window(start, shown)
    edges = np.arange(shown + 1)
    _draw_held(held, outcome, job, window, edges)
    _draw_prices(prices, window, trace.slot_hours, edges)
    _draw_progress(progress, outcome, job)
    for axes in (held, prices, progress):
        axes.axvline(job.deadline, color=RED, linewidth=1.4, linestyle=(0, (4, 2)))
        axes.grid(visible=False, axis="x")
    progress.set_xlabel(f"Time since the job began (slots of {_length(trace.slot_hours)})")
    progress.set_xlim(0, shown)
    progress.xaxis.set_major_locator(_whole_numbers())
    held.set_title(plain(_title(outcome, job)))
    figure.align_ylabels([held, prices, progress])
    return figure


def _draw_held(
    axes: Axes, outcome: Outcome, job: Job, window: MarketWindow, edges: NDArray[np.int64]
) -> None:
    spot = np.array([entry.allocation.spot for entry in outcome.entries])
    on_demand = np.array([entry.allocation.on_demand for entry in outcome.entries])
    left = np.arange(spot.size)
    nothing = np.zeros_like(spot)
    for gpus, below, colour, label in (
        (spot, nothing, SPOT, "spot held"),
        (on_demand, spot, ON_DEMAND, "on-demand held"),
    ):
        axes.bar(
            left,
            gpus,
            width=1.0,
            bottom=below,
            align="edge",
            color=colour,
            edgecolor="white",
            linewidth=0.6,
            label=label,
        )
    axes.stairs(
        window.available, edges, baseline=None, color=INK, linewidth=1.6, label="spot available"
    )
    most = max(job.max_gpus, int(window.available.max()))
    axes.set_ylim(0, most * 1.05)
    axes.yaxis.set_major_locator(_whole_numbers())
    axes.set_ylabel("GPUs")
    legend_beside(axes)


def _draw_prices(
    axes: Axes, window: MarketWindow, slot_hours: float, edges: NDArray[np.int64]
) -> None:
    on_demand, spot = window.on_demand_price / slot_hours, window.spot_price / slot_hours
    for prices, colour, label in ((on_demand, ON_DEMAND, "on-demand"), (spot, SPOT, "spot")):
        axes.stairs(prices, edges, baseline=None, color=colour, linewidth=1.8, label=label)
    highest = max(float(on_demand.max()), float(spot.max()))
    axes.set_ylim(0, highest * 1.12)
    axes.set_ylabel("Price ($/GPU-h)")
    legend_beside(axes)


def _draw_progress(axes: Axes, outcome: Outcome, job: Job) -> None:
    done = [0.0, *(entry.progress for entry in outcome.entries)]
    share = 100 * np.array(done) / job.work
    axes.plot([0, job.deadline], [0, 100], color=GREY, linestyle="--", label="uniform pace")
    axes.plot(np.arange(share.size), share, color=GREEN, label="work done")
    if outcome.finished is not None:
        axes.plot(outcome.finished, share[-1], "o", color=GREEN, markersize=7, clip_on=False)
    axes.set_ylim(0, max(108.0, float(share.max()) * 1.04))
    axes.set_ylabel("Work done (%)")
    axes.annotate(
        "deadline",
        (job.deadline, 0.06),
        xycoords=("data", "axes fraction"),
        xytext=(-5, 0),
        textcoords="offset points",
        ha="right",
        color=RED,
    )
    legend_beside(axes)


def _title(outcome: Outcome, job: Job) -> str:
    if outcome.finished is None:
        when = f"not finished by the hard deadline, slot {job.hard_deadline}"
    elif outcome.on_time:
        when = f"on time: slot {outcome.finished} of {job.deadline}"
    else:
        when = f"late: slot {outcome.finished}, due in {job.deadline}"
    money = f"cost {dollars(outcome.cost)}, utility {dollars(outcome.utility)}"
    return f"{outcome.policy} — {money}, {when}"


def _whole_numbers() -> MaxNLocator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True)


def _length(hours: float) -> str:
    return f"{hours:g} h" if hours >= 1 else f"{hours * 60:g} min"

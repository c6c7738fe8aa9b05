"""The figure of a training run: its losses and its speed, from the metrics of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    house_style,
    new_figure,
    note,
    plain,
    styled_axes,
    whole_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from duetune.training.metrics import MetricRow

_WINDOWS = 40


@house_style()
def loss_figure(name: str, rows: Sequence[MetricRow]) -> Figure:
    """Return the figure of a job's losses and speed over its steps; ``rows`` may be empty."""
    figure = new_figure(12, 6.8)
    losses, speed = styled_axes(figure, 2, heights=(1.6, 0.8), share_x=True)
    _draw_losses(losses, rows)
    _draw_speed(speed, rows)
    losses.set_title(plain(_title(name, rows)))
    losses.set_ylabel("Loss per token")
    speed.set_ylabel("Tokens per second")
    speed.set_xlabel("Optimiser steps")
    whole_numbers(speed.xaxis)
    if rows:
        speed.set_xlim(0, max(1, rows[-1].step))
    figure.align_ylabels([losses, speed])
    return figure


def draw_evaluations(axes: Axes, places: Sequence[float], losses: Sequence[float]) -> None:
    """Draw evaluation losses, with a mark at the lowest one."""
    axes.plot(
        places, losses, "o-", color=ORANGE, markersize=4.5, label="evaluation loss", clip_on=False
    )
    best = int(np.argmin(losses))
    axes.plot(
        places[best],
        losses[best],
        "o",
        color=GREEN,
        markersize=9,
        markerfacecolor="none",
        markeredgewidth=2,
        label=f"best: {losses[best]:.3f}",
        clip_on=False,
    )


def _draw_losses(axes: Axes, rows: Sequence[MetricRow]) -> None:
    steps, losses = _series(rows, "loss")
    evaluated, measured = _series(rows, "eval_loss")
    if not steps.size and not evaluated.size:
        note(axes, "no loss reported yet")
        return
    if steps.size:
        smooth = _smoothed(losses)
        axes.plot(steps, losses, color=BLUE, alpha=0.3, linewidth=1.0, label="loss of the step")
        axes.plot(steps, smooth, color=BLUE, label="loss, smoothed")
        if steps.size >= _WINDOWS:
            # A few wild steps at the start must not flatten the rest of the curve.
            shown = np.concatenate([np.quantile(losses, [0.005, 0.995]), smooth, measured])
            margin = 0.05 * (float(shown.max()) - float(shown.min()) or 1.0)
            axes.set_ylim(float(shown.min()) - margin, float(shown.max()) + margin)
    if evaluated.size:
        draw_evaluations(axes, evaluated.tolist(), measured.tolist())
    _legend(axes)


def _draw_speed(axes: Axes, rows: Sequence[MetricRow]) -> None:
    steps, pace = _series(rows, "tokens_per_s")
    if not steps.size:
        note(axes, "no speed measured")
        return
    axes.plot(steps, pace, color=GREY, alpha=0.5, linewidth=0.8)
    axes.plot(steps, _smoothed(pace), color=GREEN, label="tokens per second")
    axes.set_ylim(0, float(np.quantile(pace, 0.98)) * 1.15)
    at, members = _series(rows, "members")
    if members.size:
        counts = axes.twinx()
        counts.step(at, members, where="post", color=GREY, linestyle="--", linewidth=1.4)
        counts.set_ylim(0, float(members.max()) + 0.6)
        counts.set_ylabel("Members", color=GREY)
        counts.grid(visible=False)
        whole_numbers(counts.yaxis)
        axes.plot([], [], color=GREY, linestyle="--", linewidth=1.4, label="members")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    _legend(axes)


def _legend(axes: Axes) -> None:
    """Draw the legend beside the axes, with room for the second axis of the lower panel."""
    axes.legend(loc="center left", bbox_to_anchor=(1.05, 0.5), handlelength=1.6)


def _series(
    rows: Sequence[MetricRow], name: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the steps at which a value is known, and the values."""
    found = [(row.step, row.values[name]) for row in rows if name in row.values]
    pairs = np.array(found, dtype=float).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running median over a fortieth of the run, which follows steps of the curve."""
    half = max(1, values.size // _WINDOWS) // 2
    if not half:
        return values
    padded = np.pad(values, half, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    return np.median(windows, axis=1)


def _title(name: str, rows: Sequence[MetricRow]) -> str:
    if not rows:
        return name
    known = [row.values for row in rows]
    losses = [values["loss"] for values in known if "loss" in values]
    measured = [values["eval_loss"] for values in known if "eval_loss" in values]
    words = [f"{name} — step {rows[-1].step:,}"]
    words += [f"loss {losses[-1]:.3f}"] if losses else []
    words += [f"evaluation loss {measured[-1]:.3f}"] if measured else []
    return ", ".join(words)

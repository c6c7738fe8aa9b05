"""The figures of the forecast benchmark."""

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
    legend_beside,
    new_figure,
    styled_axes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from forecast_data import Family
    from forecast_scores import Scores

COLOURS = (BLUE, ORANGE, GREEN, RED, PINK, SKY, INK)
PARTS, WINDOW = 20, 5


@house_style()
def coverage_figure(found: list[Family], scores: dict[str, Scores]) -> Figure:
    """What 90% intervals covered, in a window that moves along the scored time."""
    figure = new_figure(9.5, 4.2)
    (axes,) = styled_axes(figure)
    axes.axhspan(88, 92, color=PALE, alpha=0.6, lw=0)
    axes.axhline(90, color=GREY, lw=1)
    for colour, family in zip(COLOURS, found, strict=False):
        parts = covered_by_part(scores[family.name], PARTS)
        moving = np.convolve(parts, np.full(WINDOW, 1 / WINDOW), mode="valid")
        centre = (np.arange(moving.size) + WINDOW / 2) / PARTS
        axes.plot(100 * centre, 100 * moving, color=colour, label=family.name)
    axes.set_xlim(0, 100)
    axes.set_title("Coverage of 90% intervals, in a moving quarter of the scored time")
    axes.set_xlabel("time (% of the scored part)")
    axes.set_ylabel("covered (%)")
    legend_beside(axes)
    return figure


@house_style()
def skill_figure(found: list[Family], skill: dict[str, dict[str, float]]) -> Figure:
    """Pinball loss saved against persistence with the same calibration."""
    figure = new_figure(9.5, 4.2)
    (axes,) = styled_axes(figure)
    axes.axhline(0, color=GREY, lw=1)
    for colour, family in zip(COLOURS, found, strict=False):
        hours = [ahead * family.slot_hours for ahead in family.horizons]
        saved = [100 * value for value in skill[family.name].values()]
        axes.plot(hours, saved, "o-", color=colour, label=family.name)
    axes.set_xscale("log")
    axes.set_xticks([1, 3, 6, 12, 24], labels=["1", "3", "6", "12", "24"])
    axes.minorticks_off()
    axes.set_title("Pinball loss saved against calibrated persistence")
    axes.set_xlabel("hours ahead")
    axes.set_ylabel("saved (%)")
    legend_beside(axes)
    return figure


def covered_by_part(scores: Scores, parts: int) -> list[float]:
    """What is covered in each part of the scored time, averaged over the horizons."""
    return [
        float(
            np.mean(
                [
                    covered[(when * parts).astype(np.int64) == part].mean()
                    for covered, when in zip(scores.covered, scores.when, strict=True)
                ]
            )
        )
        for part in range(parts)
    ]

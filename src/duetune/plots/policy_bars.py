"""Utility by policy against the optimum."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from duetune.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    house_style,
    new_figure,
    plain,
    styled_axes,
)
from duetune.simulate.summary import BASELINES, Standing, dollars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure


MOST_BARS = 16
_COLOURS = {"ahap": BLUE, "ahanp": GREEN, "selected": ORANGE}


class Bar(msgspec.Struct, frozen=True):
    """A policy as it is shown."""

    label: str
    standing: Standing


@house_style()
def policies_figure(
    standings: Sequence[Standing], *, optimum: float | None = None, jobs: int | None = None
) -> Figure:
    """Mean utility per job with 95% intervals, best on top; the optimum is a line."""
    bars = chosen_bars(standings)
    figure = new_figure(12, 1.7 + 0.42 * len(bars))
    (axes,) = styled_axes(figure)
    for place, bar in enumerate(bars):
        row = bar.standing
        axes.barh(place, row.mean_utility, height=0.68, color=_colour(row.policy))
        axes.errorbar(
            row.mean_utility,
            place,
            xerr=[[row.mean_utility - row.low], [row.high - row.mean_utility]],
            color=INK,
            linewidth=1.2,
            capsize=3,
        )
    largest = max([0.0, optimum or 0.0, *(bar.standing.high for bar in bars)])
    smallest = min([0.0, *(bar.standing.low for bar in bars)])
    span = (largest - smallest) or 1.0
    for place, bar in enumerate(bars):
        row = bar.standing
        share = row.fraction_of_optimum
        words = dollars(row.mean_utility) + ("" if share is None else f"  ({share:.1%})")
        axes.text(largest + 0.02 * span, place, plain(words), va="center", fontsize=10)
    if optimum is not None:
        axes.axvline(optimum, color=PINK, linewidth=2.2)
        axes.text(
            optimum - 0.008 * span,
            -0.72,
            plain(f"offline optimum {dollars(optimum)}"),
            color=PINK,
            ha="right",
            va="bottom",
            fontweight="bold",
        )
    axes.set_yticks(range(len(bars)), [plain(bar.label) for bar in bars])
    axes.set_ylim(len(bars) - 0.4, -1.3)
    axes.set_xlim(smallest - (0.02 * span if smallest < 0 else 0), largest + 0.2 * span)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    paired = "" if optimum is None else " of the distance to the optimum"
    axes.set_xlabel(f"Mean utility per job ($), with 95% intervals{paired}")
    over = "" if jobs is None else f" over {jobs:,} jobs"
    axes.set_title(f"Utility by policy{over}")
    return figure


def chosen_bars(standings: Sequence[Standing], *, most: int = MOST_BARS) -> tuple[Bar, ...]:
    """All policies where they fit; otherwise best, median and worst of each large family."""
    ranked = sorted(standings, key=lambda row: -row.mean_utility)
    if len(ranked) <= most:
        return tuple(Bar(row.policy, row) for row in ranked)
    families: dict[str, list[Standing]] = {}
    for row in ranked:
        families.setdefault(family(row.policy), []).append(row)
    bars: list[Bar] = []
    for name, members in families.items():
        if len(members) <= 3:
            bars += [Bar(row.policy, row) for row in members]
            continue
        places = {"best": 0, "median": len(members) // 2, "worst": len(members) - 1}
        bars += [
            Bar(f"{members[place].policy}\n{rank} of {len(members)} {name}", members[place])
            for rank, place in places.items()
        ]
    return tuple(sorted(bars, key=lambda bar: -bar.standing.mean_utility))


def family(policy: str) -> str:
    """``guarded:ahap:5:1:0.3:0.5`` belongs to ``guarded:ahap``."""
    return re.sub(r"(:[\d.e+-]+|:refuse|:virtual|:gang|:eager)+$", "", policy)


def _colour(policy: str) -> str:
    if policy in BASELINES:
        return GREY
    return _COLOURS.get(family(policy).removeprefix("guarded:"), ORANGE)

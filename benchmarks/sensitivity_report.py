"""The pages of the sensitivity study: main table, findings and details."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reporting import bullets, low_to_high, markdown_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sensitivity import Point
    from sensitivity_bound import BoundPoint

Crossovers = dict[str, dict[str, dict[str, dict[str, float | None]]]]
SIMPLE = "maximal_spot:thrifty"
FAR = "ahap:24:1:0:0:0"
NAMES = {
    "ahap_24": "AHAP, 24 slots",
    "ahap_5": "AHAP, 5 slots",
    "ahap_5_as_specified": "as specified",
    "selected": "selected online",
    "selected_with_rubato": "with rubato",
}


QUESTION = "How much does a forecast error cost, and from which error on is no forecast better?"
REGIME_NOTE = (
    "Errors are added to the truth. They are *proportional* to the true value or *fixed*: "
    "proportional to the mean of the trace. They are *uniform* within plus or minus the level, "
    "*heavy* (Student's t with two degrees of freedom), *correlated* (the same wrong path in all "
    "forecasts, fading by 10% per slot) or *biased* (uniform, but in one direction for a day at a "
    "time). All have the same mean size, half the level. Prices are clipped to the lowest seen and "
    "1.5 times on-demand, counts to what was seen."
)
POLICY_NOTE = (
    "`ahap:24:1:0:0:0` plans 24 slots (12 h) on the forecast alone. `ahap:5:1:0.5:0.5:0.3` is "
    "AHAP as duetune runs it: five slots and an outlook beyond them; `...:lavish` is AHAP as "
    "specified. `selected` is AdaHedge over the default pool without rubato plus eight planners of "
    "12 and 24 slots; the last row adds rubato."
)
CROSSOVER_NOTE = (
    "The error level from which a policy without a forecast earns as much, interpolated between "
    "the levels played. The three figures are against the best of AHANP, uniform progress and "
    "maximal spot / thrifty maximal spot as well / rubato as well. *None*: not up to 200%. 0%: the "
    "policy does not beat that rival even with a perfect forecast. The selection ends up with the "
    "best of its rivals, so it crosses by cents."
)
DIRECTION_NOTE = (
    "What AHAP with 24 slots earns less than the optimum ($ per job) when the forecasts at the "
    "start of the job make the market look better or worse than it is."
)
BOUND_NOTE = (
    "The plan for the whole job is made on one forecast and never revised. Its totals are held and "
    "split by what is really there. It earns at least the optimum less 2E, where E is the sum over "
    "the slots to the hard deadline of N_max |price error| + on-demand price x |count error|. "
    "*Tighter* counts only GPUs that the job could hold, at the saving that was believed in: "
    "min(a, N_max) |price error| + (on-demand - believed price) x |error of min(a, N_max)|, by the "
    "same proof. Losses and bounds are means in $ per job; *worst* is the largest loss."
)


def page(
    points: Sequence[Point],
    bounds: Sequence[BoundPoint],
    free: dict[str, dict[str, float]],
    optimum: dict[str, float],
    figures: dict[str, object],
    counts: tuple[int, int, int],
) -> list[str]:
    """Return the main table, the pictures and the findings."""
    history, measured, bounded = counts
    method = (
        f"Each policy, regime and level plays the same {measured} jobs in the last 60% of each set "
        f"of markets; the selection first learns on {history} jobs in the first 40%. The synthetic "
        "set has two markets each of `diurnal` and `regime_switching`; the H100 set has nine "
        "zones, two weeks, half-hour slots and list prices. The guarantee is checked on "
        f"{bounded} of those jobs per regime and level."
    )
    return [
        _shares(points, free, optimum),
        "Share of the optimum, from the worst to the best of the error regimes. " + POLICY_NOTE,
        "![Utility as the error grows](sensitivity.png)",
        bullets(_findings(points, bounds, free, figures["crossover_level"])),
        "![Loss and bound of the guarantee](sensitivity-bound.png)",
        REGIME_NOTE,
        method,
    ]


def details(
    points: Sequence[Point],
    bounds: Sequence[BoundPoint],
    free: dict[str, dict[str, float]],
    optimum: dict[str, float],
    directions: dict[str, dict[float, dict[str, float]]],
    figures: dict[str, object],
) -> list[str]:
    """Return utilities of every regime and level, crossovers, directions and bounds."""
    return [
        *_tables(points, free, optimum),
        "## Where the forecast stops paying",
        CROSSOVER_NOTE,
        _crossovers(figures["crossover_level"]),
        _widths(points, free),
        "## When the error has a direction",
        DIRECTION_NOTE,
        _directions(directions),
        "## The guarantee",
        BOUND_NOTE,
        _bounds(bounds),
    ]


def _shares(
    points: Sequence[Point], free: dict[str, dict[str, float]], optimum: dict[str, float]
) -> str:
    """One row per set of markets and policy; policies without a forecast have one figure."""
    shown = (0.0, 0.5, 1.0, 2.0)
    levels = [level for level in shown if any(each.level == level for each in points)]
    policies = dict.fromkeys(each.policy for each in points)
    rows = []
    for label, without in free.items():
        for policy in policies:
            mine = [each for each in points if (each.markets, each.policy) == (label, policy)]
            rows.append([label, policy, *(_span(mine, level) for level in levels)])
        for policy in (SIMPLE, "rubato"):
            share = f"{without[policy] / optimum[label]:.1%}"
            rows.append([label, f"{policy}, no forecast", *(share for _ in levels)])
    header = ("markets", "policy", *(f"error {level:.0%}" for level in levels))
    return markdown_table(header, rows)


def _findings(
    points: Sequence[Point],
    bounds: Sequence[BoundPoint],
    free: dict[str, dict[str, float]],
    crossovers: Crossovers,
) -> list[str]:
    late = sum(each.late_jobs or 0 for each in points)
    behind = ", ".join(
        f"{_worst(_selected(points, label), SIMPLE, without):.2%} ({label})"
        for label, without in free.items()
    )
    violated, cases = (
        sum(getattr(each, field) for each in bounds) for field in ("violated", "cases")
    )
    low, high = min(each.level for each in bounds), max(each.level for each in bounds)
    return [
        (
            "The planner that looks 24 slots ahead loses to the best simple policy without a "
            f"forecast from {_levels(crossovers, 'uniform', 'heavy')} error on if errors are "
            f"independent, {_levels(crossovers, 'correlated')} if they are correlated and "
            f"{_levels(crossovers, 'biased')} if they are all in one direction; to rubato from "
            f"{_levels(crossovers, rival='also rubato')} on. A forecast that makes the market look "
            "too good costs most."
        ),
        (
            f"The online selection is never more than {behind} below {SIMPLE}, whatever the error. "
            "[Availability half a day ahead is hardly known](predictability.md), so a planner "
            "should look far ahead only if the selection finds that it pays."
        ),
        (
            f"The planners have {late} late jobs at all levels: the guard keeps the deadline "
            "whatever the forecast."
        ),
        (
            f"The guarantee U >= optimum - 2E is violated in {violated} of {cases:,} plans, "
            f"counting the tighter one as well. It is ${_gap(bounds, high):,.0f} above the loss at "
            f"{high:.0%} error and ${_gap(bounds, low):,.2f} at {low:.0%}, but it is loose: 2E is "
            f"{_ratio(bounds, high):,.0f} times the loss at {high:.0%} and "
            f"{_ratio(bounds, 0.1):,.0f} times at 10%, because most errors change no decision."
        ),
    ]


def _selected(points: Sequence[Point], label: str) -> list[Point]:
    return [each for each in points if each.markets == label and each.policy == "selected"]


def _span(points: Sequence[Point], level: float) -> str:
    shares = [each.fraction_of_optimum for each in points if each.level == level]
    return low_to_high(shares, ".1%")


def _levels(crossovers: Crossovers, *shapes: str, rival: str = "also thrifty maximal_spot") -> str:
    """Return the range of crossover levels over all markets and the regimes of these shapes."""
    found = [
        by_rivals[rival]
        for by_policy in crossovers.values()
        for regime, by_rivals in by_policy["ahap_24"].items()
        if not shapes or regime.split("-")[1] in shapes
    ]
    known = [level for level in found if level is not None]
    high = "more than 200%" if len(known) < len(found) else f"{max(known):.0%}"
    return f"{min(known, default=2.0):.0%} to {high}"


def _worst(points: Sequence[Point], best: str, free: dict[str, float]) -> float:
    return max(0.0, *(-each.above[best] for each in points)) / free[best]


def _gap(bounds: Sequence[BoundPoint], level: float) -> float:
    those = [each for each in bounds if each.level == level]
    return sum(each.bound - each.loss for each in those) / len(those)


def _ratio(bounds: Sequence[BoundPoint], level: float) -> float:
    those = [each for each in bounds if each.level == level]
    return sum(each.bound for each in those) / sum(each.loss for each in those)


def _widths(points: Sequence[Point], free: dict[str, dict[str, float]]) -> str:
    parts = []
    for label in free:
        widths = [each.width for each in points if each.markets == label and each.policy == FAR]
        parts.append(f"{label} {min(widths):.2f} to {max(widths):.2f}")
    return (
        "Half widths of the 95% intervals of the difference between AHAP with 24 slots and thrifty "
        f"maximal spot, $ per job: {', '.join(parts)}. Smaller differences are chance."
    )


def _tables(
    points: Sequence[Point], free: dict[str, dict[str, float]], optimum: dict[str, float]
) -> list[str]:
    parts = []
    levels = sorted({each.level for each in points})
    for label, without in free.items():
        rows = []
        for (regime, policy), line in _lines(points, label).items():
            cells = [f"{line[level].utility:.2f}" for level in levels]
            rows.append([regime, policy, *cells])
        plain = ", ".join(f"{name} {value:.2f}" for name, value in without.items())
        parts += [
            f"## Utility: {label}",
            f"Dollars per job. The optimum is {optimum[label]:.2f}. Without a forecast: {plain}.",
            markdown_table(("error", "policy", *(f"{level:.0%}" for level in levels)), rows),
        ]
    return parts


def _lines(points: Sequence[Point], label: str) -> dict[tuple[str, str], dict[float, Point]]:
    lines: dict[tuple[str, str], dict[float, Point]] = {}
    for each in points:
        if each.markets == label:
            lines.setdefault((each.regime, each.policy), {})[each.level] = each
    return lines


def _crossovers(crossovers: Crossovers) -> str:
    rows = []
    for label, by_policy in crossovers.items():
        for regime in by_policy["selected"]:
            cells = [
                " / ".join(_level(level) for level in by_policy[policy][regime].values())
                for policy in NAMES
            ]
            rows.append([label, regime, *cells])
    return markdown_table(("markets", "error", *NAMES.values()), rows)


def _level(level: float | None) -> str:
    return "none" if level is None else f"{level:.0%}"


def _directions(directions: dict[str, dict[float, dict[str, float]]]) -> str:
    rows = [
        [name, word, *(f"{by_level[level][word]:+.2f}" for level in by_level)]
        for name, by_level in directions.items()
        for word in ("too good", "too bad")
    ]
    levels = next(iter(directions.values()))
    return markdown_table(("error", "the market looks", *(f"{x:.0%}" for x in levels)), rows)


def _bounds(bounds: Sequence[BoundPoint]) -> str:
    rows = [
        [
            each.markets,
            each.regime,
            f"{each.level:.0%}",
            f"{each.loss:.2f}",
            f"{each.worst_loss:.2f}",
            f"{each.bound:.2f}",
            f"{each.tight_bound:.2f}",
            f"{each.bound / each.loss:,.0f}" if each.loss > 0.005 else "-",
            each.violated,
        ]
        for each in bounds
    ]
    header = "markets | error | level | loss | worst | bound 2E | tighter | ratio | violated"
    return markdown_table(header, rows)

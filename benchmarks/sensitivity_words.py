"""The page of the sensitivity study."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reporting import markdown_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sensitivity import Point
    from sensitivity_bound import BoundPoint

Crossovers = dict[str, dict[str, dict[str, dict[str, float | None]]]]
SIMPLE = "maximal_spot:thrifty"
FAR, NEAR = "ahap:24:1:0:0:0", "ahap:5:1:0.5:0.5:0.3"
NAMES = {
    "ahap_24": "AHAP, 24 slots",
    "ahap_5": "AHAP, 5 slots",
    "ahap_5_as_specified": "as specified",
    "selected": "selected online",
    "selected_with_rubato": "with rubato",
}


REGIME_NOTE = (
    "Errors are added to the truth: *proportional* to the true value or to the trace's mean "
    "(*fixed*); *uniform* within plus or minus the level, *heavy* (Student's t with two degrees of "
    "freedom), *correlated* (the same wrong path in all forecasts, fading by 10% a slot) or "
    "*biased* "
    "(uniform, but for a day at a time all in one direction). All have the same mean size: half "
    "the "
    "level. Prices are clipped to the lowest seen and 1.5 times on-demand, counts to what was "
    "seen, "
    "so that errors cannot grow without end."
)
POLICY_NOTE = (
    "`ahap:24:1:0:0:0` plans 24 slots (12 h) on the forecast alone, `ahap:5:1:0.5:0.5:0.3` is "
    "AHAP as duetune runs it (five slots, an outlook beyond them), `...:lavish` as specified. "
    "`selected` is AdaHedge over the default pool without rubato and eight planners of 12 and 24 "
    "slots; then with rubato, which forecasts for itself."
)
CROSSOVER_NOTE = (
    "The level from which a policy without a forecast earns as much, on a straight line between "
    "the "
    "levels played: against the best of AHANP, uniform progress and maximal spot / thrifty maximal "
    "spot as well / rubato as well. *None*: not up to 200%. 0%: not even a perfect forecast helps "
    "that "
    "policy past its rival. The selection ends up with the best of its rivals, so it crosses by "
    "cents. Differences of less than the half widths below are chance."
)
DIRECTION_NOTE = (
    "What AHAP with 24 slots earns less than the optimum ($ per job) when the forecasts at the "
    "start "
    "of the job make the market look better or worse than it is:"
)
BOUND_NOTE = (
    "The offline plan for the whole job, made on one forecast and never revised: its totals are "
    "held and split by what is really there. It earns at least the optimum less 2E, E the sum over "
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
    directions: dict[str, dict[float, dict[str, float]]],
    figures: dict[str, object],
    counts: tuple[int, int, int],
) -> list[str]:
    history, measured, bounded = counts
    method = (
        f"{measured} jobs in the last 60% of each set of markets, the same for every policy, "
        "regime "
        f"and level; the selection first learns on {history} jobs in the first 40%. Synthetic: two "
        "markets each of `diurnal` and `regime_switching`; H100: nine zones, two weeks, half-hour "
        f"slots, list prices. The guarantee is checked on {bounded} of those jobs per regime and "
        "level."
    )
    return [
        _summary(points, bounds, free, optimum, figures["crossover_level"]),
        "## Utility as the error grows",
        REGIME_NOTE,
        POLICY_NOTE,
        "![Utility as the error grows](sensitivity.png)",
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
        "![Loss and bound](sensitivity-bound.png)",
        _bounds(bounds),
        "## How it was measured",
        method,
    ]


def _summary(
    points: Sequence[Point],
    bounds: Sequence[BoundPoint],
    free: dict[str, dict[str, float]],
    optimum: dict[str, float],
    crossovers: Crossovers,
) -> str:
    late = sum(each.late_jobs or 0 for each in points)
    items = []
    for label, without in free.items():
        best = SIMPLE
        far = [each for each in points if each.markets == label and each.policy == FAR]
        near = [each for each in points if each.markets == label and each.policy == NEAR]
        chosen = [each for each in points if each.markets == label and each.policy == "selected"]
        whole = [each for each in points if each.markets == label and "with" in each.policy]
        perfect = next(each.fraction_of_optimum for each in far if each.level == 0)
        items.append(
            f"**{label}.** With a perfect forecast, planning 24 slots ahead earns {perfect:.1%} of "
            f"the optimum; the best simple policy without one ({best}) "
            f"{without[best] / optimum[label]:.1%}, rubato "
            f"{without['rubato'] / optimum[label]:.1%}. At 50% error the planner is at "
            f"{_span(far, 0.5)}, at 100% {_span(far, 1.0)} and at 200% {_span(far, 2.0)}, by "
            "regime. "
            f"Five slots ahead, errors hardly matter ({_span(near, 0.0)} at 0%, {_span(near, 2.0)} "
            "at 200%), nor do good forecasts. The online selection earns "
            f"{_span(chosen, 0.0)} at 0% and {_span(chosen, 2.0)} at 200%: at worst "
            f"{_worst(chosen, best, without):.2%} below {best}, whatever the error. With rubato in "
            f"the pool: {_span(whole, 0.0)} and "
            f"{_span(whole, 2.0)}."
        )
    violated, cases = (
        sum(getattr(each, field) for each in bounds) for field in ("violated", "cases")
    )
    low, high = min(each.level for each in bounds), max(each.level for each in bounds)
    items.append(
        f"**The guarantee** U >= optimum - 2E is violated in {violated} of {cases:,} plans, "
        "counting "
        "the tighter one as well. It tightens as the error falls: it is "
        f"${_gap(bounds, high):,.0f} above the loss at {high:.0%} error and "
        f"${_gap(bounds, low):,.2f} at {low:.0%}. It stays loose in proportion (2E is "
        f"{_ratio(bounds, high):,.0f} times the loss at {high:.0%}, and {_ratio(bounds, 0.1):,.0f} "
        "times at 10%), since it lets every slot's error count in full while most errors change no "
        "decision, and the loss vanishes before the error does."
    )
    items.append(
        "**Where forecast-free wins**: planning 24 slots ahead is overtaken by the best simple "
        "policy "
        f"without a forecast at {_levels(crossovers, 'uniform', 'heavy')} error if errors are "
        f"independent, {_levels(crossovers, 'correlated')} if they are correlated and "
        f"{_levels(crossovers, 'biased')} if they are all in one direction (by "
        f"rubato at {_levels(crossovers, rival='also rubato')}); a forecast that makes "
        f"the market look too good costs most. Late jobs of the planners, at all levels: {late}; "
        "the "
        "deadline is kept by their safety filter, whatever is forecast."
    )
    items.append(
        "**For planning**: [what can be known of availability](predictability.md) half a day ahead "
        "is little more than its mean, so a planner should look far only with a forecast that says "
        "how sure it is, and a selection that learns whether it pays should stand behind it: it is "
        "with the far planner while errors are small and with the best of the others when not."
    )
    return "\n".join(f"- {item}" for item in items)


def _span(points: Sequence[Point], level: float) -> str:
    shares = [each.fraction_of_optimum for each in points if each.level == level]
    low, high = (f"{share:.1%}" for share in (min(shares), max(shares)))
    return low if low == high else f"{low} to {high}"


def _levels(crossovers: Crossovers, *shapes: str, rival: str = "also thrifty maximal_spot") -> str:
    """Over all markets and the regimes of those shapes, by default all."""
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
        "Half widths of 95% intervals of the difference between AHAP with 24 slots and thrifty "
        f"maximal spot, $ per job: {', '.join(parts)}."
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
            f"### {label}",
            f"Dollars per job. The optimum: {optimum[label]:.2f}. Without a forecast: {plain}.",
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
    header = (
        "markets",
        "error",
        "level",
        "loss",
        "worst",
        "bound 2E",
        "tighter",
        "ratio",
        "violated",
    )
    return markdown_table(header, rows)

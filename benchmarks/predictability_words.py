"""The page of the predictability study: what it says, with the figures it says it by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictability_figures import AGES, pooled_hazard
from reporting import markdown_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from predictability import Family


SHORT = (
    "In short: **prices are predictable for days, because they hardly move; availability is "
    "predictable for hours, and beyond that only its mean, in some places by the hour of the day.**"
)
REACH_NOTE = (
    "The share of the squared error of *the mean so far* that is removed by knowing the last value "
    "as well (damped to the mean by a coefficient fitted to the past of the series): 100% is a "
    "market that stands still, 0 one that has forgotten. Medians over the series."
)
SKILL_NOTE = (
    "What the last value's squared error is reduced by, median over the series; below 0 is worse. "
    "*Damped* draws the last value to the mean so far, *damped to the hour* to the mean of that "
    "hour "
    "of the day, *trend* adds as much of the last step again as the past suggests. The last table "
    "is "
    "of absolute errors, where a count is guessed as a whole number."
)
MAE_NOTE = (
    "Mean absolute error of the last value itself, as a share of the mean price or of the most "
    "GPUs "
    "seen:"
)
PATTERN_NOTE = (
    "Correlation with the value so long ago, medians. *Daily* and *weekly*: in how many series the "
    "clock explains more than chance does (by chance it would be 5%), and the median share of "
    "variance it explains beyond chance. Chance is what is left when every day is turned by a "
    "random "
    "number of slots, and for the week every week by whole days: spells, level and drift stay, the "
    "clock goes. A weekly pattern is what the day adds to the hour, and needs four weeks."
)
SPELL_NOTE = (
    "Up: at least one GPU, or listed. Median length by Kaplan and Meier (spells cut off by the end "
    "of a trace are censored). *Old end less*: series in which old spells end clearly less often "
    "than young ones (z below -2). Bits a slot to tell up from down: knowing nothing, the last "
    "slot, "
    "and the age of its spell as well; slots are half an hour in traces and six hours in listings."
)
MIXTURE_NOTE = (
    "Part of the fall is a mixture: quiet times have long spells and busy times short ones. For a "
    "decision that does not matter: an old spell is the sign of a quiet time."
)
CORRELATION_NOTE = (
    "V100, 45 days, the AWS price of the time: correlation of price over on-demand with "
    "availability, of slots and of daily means."
)


def page(
    families: Sequence[Family],
    correlations: Sequence[Sequence[object]],
    bits: dict[str, list[float | None]],
) -> list[str]:
    counts = [each for each in families if not each.price]
    return [
        *_summary(families, correlations, bits),
        "## How far the past reaches",
        REACH_NOTE,
        "![How far the past reaches](predictability-reach.png)",
        _by_hour(families, "explained"),
        "## Skill over the last value",
        SKILL_NOTE,
        *(
            f"### {title}\n\n" + _by_hour(families, "skill", predictor)
            for predictor, title in (
                ("damped", "Damped"),
                ("damped_hourly", "Damped to the hour"),
                ("trend", "Trend"),
                ("seasonal", "The value a day before"),
            )
        ),
        "### Damped, absolute error",
        _by_hour(families, "mae_skill"),
        MAE_NOTE,
        _by_hour(families, "relative_mae"),
        "## Memory and patterns",
        PATTERN_NOTE,
        "![Daily and weekly patterns](predictability-patterns.png)",
        _patterns(families),
        "## Spells and what is unknown of them",
        SPELL_NOTE,
        _spells(counts, bits),
        "Ends per hour by the age of the spell, all series of a family together:",
        "![Hazard by age](predictability-hazard.png)",
        _hazards(counts),
        MIXTURE_NOTE,
        "## Price and availability",
        CORRELATION_NOTE,
        markdown_table(("zone", "slots", "days"), correlations),
        "## Two markets in pictures",
        "![V100](predictability-v100.png)",
        "![H100](predictability-h100.png)",
        "## How it was measured",
        _method(families),
    ]


def _summary(
    families: Sequence[Family],
    correlations: Sequence[Sequence[object]],
    bits: dict[str, list[float | None]],
) -> list[str]:
    """The findings in words; every figure in them is measured in this run."""
    aws = [each for each in families if each.name.startswith("AWS")]
    traces = [each for each in families if not each.price and 1.0 in each.explained]
    listed = [each for each in families if not each.price and 1.0 not in each.explained]
    known, aged = (
        [1 - bits[each.name][place] / bits[each.name][place - 1] for each in traces]
        for place in (1, 2)
    )
    of_days = [float(row[2]) for row in correlations]
    series = sum(each.series for each in families)
    return [
        f"{series:,} measured series. {SHORT}",
        "## Where the market is predictable",
        _bullets(
            f"**AWS spot prices** stand nearly still. The price now explains {_span(aws, 24)} of "
            "the "
            f"variance about the mean so far a day ahead, and {_span(aws, 168)} a week ahead; the "
            "last "
            f"value is off by {_span(aws, 24, 'relative_mae', 1)} of the price after a day and by "
            f"{_span(aws, 168, 'relative_mae')} after a week. Drawing it to the mean does not "
            "help. "
            "Its steps have momentum: adding part of the last step saves "
            f"{_span(aws, 6, 'trend')} of the squared error at 6 h and {_span(aws, 24, 'trend')} a "
            "day "
            "ahead (small in dollars, since the errors are).",
            "**Availability, one to six hours ahead.** Knowing whether GPUs are there now removes "
            f"{_span(traces, 1)} of the mean's squared error an hour ahead, {_span(traces, 3)} at "
            "3 h "
            f"and {_span(traces, 6)} at 6 h. As a forecast of the mean the last value is too sure "
            "of "
            f"itself: damping it saves {_span(traces, 1, 'damped')} of its squared error at 1 h "
            "and "
            f"{_span(traces, 6, 'damped')} at 6 h. As a best single guess it is hard to beat: "
            f"damped and rounded, it is up to {_percent(-min(_values(traces, 1, 'mae_skill')))} "
            "worse by "
            "absolute error at 1 h, and in no family better.",
            "**Spells age.** Up spells end about five times as often in their first hour as after "
            "half "
            "a day, in nearly every trace, and most down spells age as well. But the last slot "
            "says "
            f"most of it: it removes {_range(known)} of the bits in the traces, and the age "
            f"{_range(aged)} of what then remains (below 0: the ages cost more to learn than they "
            "tell).",
            "**The hour of the day** is real where there is enough data to see it: in "
            f"{_of(families, 'V100 45 days, us-east-1', 'daily_real')} of the 45-day zones of "
            "us-east-1 "
            f"({_of(families, 'V100 45 days, us-east-1', 'daily_share')} of the variance), "
            f"{_of(families, 'V100 45 days, us-west-2', 'daily_real')} of us-west-2 "
            f"({_of(families, 'V100 45 days, us-west-2', 'daily_share', 1)}) and "
            f"{_of(families, 'H100 counts', 'daily_real')} of the H100 zones "
            f"({_of(families, 'H100 counts', 'daily_share', 1)}). It improves a forecast in "
            "us-east-1 "
            "(3 to 12 h) and, at 12 h, on the H100 counts; elsewhere learning it costs as much as "
            "it "
            "brings, or more. In listings it is often beyond chance but below 1% of the variance.",
            f"**Listings** seen every six hours: {_listed(listed)}.",
        ),
        "## Where it is not",
        _bullets(
            f"**Availability half a day ahead**: {_span(traces, 12)} of the mean's squared error "
            "is "
            "removed, nothing in most families (the exceptions are the 4- and 16-node sets, two "
            "zones "
            "each, whose level moved in steps of days). At 24 h a little comes back with the daily "
            f"pattern: {_span(traces, 24)}.",
            "**The value a day before** is a bad forecast: worse than the last value up to 3 h in "
            "every family and at 6 h in nearly all, and worse than the mean at 24 h in most.",
            "**Prices at Vast.ai** move: of the lowest asking price the last value explains "
            f"{_at(families, 'Vast, lowest asking price', 6)} at 6 h and "
            f"{_at(families, 'Vast, lowest asking price', 24)} at 24 h, of the lowest bid (two GPU "
            f"types, 55 days) {_at(families, 'Vast, lowest bid', 6)} and "
            f"{_at(families, 'Vast, lowest bid', 24)}; both are the extremes of a digest.",
            "**Price patterns**: no daily or weekly pattern in AWS prices beyond what chance shows "
            f"(daily in {_average(aws, 'daily_real')} of the series, weekly in "
            f"{_average(aws, 'weekly_real')}; 5% expected), and none that explains any variance.",
            "**Price does not tell availability**: within a zone their daily means correlate by "
            f"{min(of_days):+.2f} to {max(of_days):+.2f}, with mixed sign.",
            "**A week's rhythm** shows in three of four zones of us-east-1, in six weeks of data, "
            "and "
            "weakly in a quarter of Verda's listings (1% of the variance); most traces are too "
            "short "
            "to say.",
        ),
        "## What follows for planning",
        _bullets(
            "Take the price as it is now. A price forecaster can take a tenth to a third off an "
            "error "
            "that is itself about a percent of the price; no plan turns on it.",
            "Plan availability as a distribution, not as a path: an hour or two of persistence, "
            "then "
            "a drift to the mean of that zone. A point forecast of half a day is worth little, and "
            "the last value held for half a day is worse than the mean.",
            "Learn each zone's mean and persistence online, with forgetting: zones of one type "
            "differ "
            "more than hours of one zone, and levels move within weeks.",
            "Use the age of the spell: a young spot spell is several times more likely to end in "
            "the next hour than an old one.",
            "Let the clock in only where it has earned it (weeks of data, and a test such as "
            "this); "
            "`duetune market stats` runs it on any trace.",
        ),
    ]


def _bullets(*items: str) -> str:
    return "\n".join(f"- {item}" for item in items)


def _values(families: Sequence[Family], hours: float, field: str = "explained") -> list[float]:
    found = []
    for each in families:
        by_hour = each.skill[field] if field in each.skill else getattr(each, field)
        value = by_hour.get(float(hours))
        if value is not None:
            found.append(value)
    return found


def _span(
    families: Sequence[Family], hours: float, field: str = "explained", digits: int = 0
) -> str:
    return _range(_values(families, hours, field), digits)


def _range(values: Sequence[float], digits: int = 0) -> str:
    low, high = (_percent(value, digits) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _of(families: Sequence[Family], name: str, field: str, digits: int = 0) -> str:
    return _percent(next(getattr(each, field) for each in families if each.name == name), digits)


def _at(families: Sequence[Family], name: str, hours: float) -> str:
    return _percent(next(each.explained[hours] for each in families if each.name == name))


def _average(families: Sequence[Family], field: str) -> str:
    tested = [each for each in families if getattr(each, field) is not None]
    total = sum(each.series for each in tested)
    return _percent(sum(getattr(each, field) * each.series for each in tested) / total, 1)


def _listed(families: Sequence[Family]) -> str:
    return "; ".join(
        f"{each.name} explains {_percent(each.explained[6.0])} at 6 h, "
        f"{_percent(each.explained[24.0])} at 24 h and {_percent(each.explained[168.0])} a week on"
        for each in families
    )


def _by_hour(families: Sequence[Family], field: str, predictor: str | None = None) -> str:
    hours = sorted({hour for family in families for hour in family.explained})
    rows = []
    for family in families:
        found = getattr(family, field)
        shares = found if predictor is None else found[predictor]
        cells = [_percent(shares.get(hour), 1 if field == "relative_mae" else 0) for hour in hours]
        rows.append([family.name, family.series, *cells])
    header = [f"{hour / 24:g} d" if hour > 24 else f"{hour:g} h" for hour in hours]
    return markdown_table(("family", "series", *header), rows)


def _patterns(families: Sequence[Family]) -> str:
    lags = (1.0, 6.0, 24.0, 168.0)
    rows = [
        [
            each.name,
            each.series,
            f"{each.days:,.0f}",
            *(_number(each.acf[lag]) for lag in lags),
            _percent(each.daily_real),
            _percent(each.daily_share, 1),
            _percent(each.weekly_real),
            _percent(each.weekly_share, 1),
        ]
        for each in families
    ]
    header = ("family", "series", "days", "1 h", "6 h", "24 h", "7 d")
    tested = ("daily", "its share", "weekly", "its share")
    return markdown_table((*header, *tested), rows)


def _spells(families: Sequence[Family], bits: dict[str, list[float | None]]) -> str:
    rows = []
    for family in families:
        cells = []
        for which in ("up", "down"):
            spells = [found for each in family.members if (found := getattr(each, which))]
            medians = sorted(each.median_hours or float("inf") for each in spells)
            middle = medians[len(medians) // 2] if medians else float("nan")
            trends = [each.age_trend for each in spells if each.age_trend is not None]
            less = sum(trend < -2 for trend in trends)
            cells += [f"{middle:g}", f"{less} of {len(trends)}"]
        known = bits[family.name]
        rows.append([family.name, *cells, *(_number(each) for each in known)])
    header = ("family", "up (h)", "old end less", "down (h)", "old end less ")
    return markdown_table((*header, "bits", "last known", "and age"), rows)


def _hazards(families: Sequence[Family]) -> str:
    rows = []
    for family in families:
        for which in ("up", "down"):
            found = dict(pooled_hazard(family, which))
            cells = [_number(found.get(place)) for place in range(len(AGES))]
            if found:
                rows.append([family.name, which, *cells])
    return markdown_table(("family", "spells", *(f"{age} h" for age in AGES)), rows)


def _method(families: Sequence[Family]) -> str:
    series = sum(each.series for each in families)
    return (
        f"{series:,} series: every AWS spot price in six-hour slots, each unbroken stretch of 60 "
        "days or more a series of its own (cut where nothing was seen for a day, such as the 103 "
        "days of 2026, or no spot price was published); every availability trace in half-hour "
        "slots, a GPU being there if it was during the whole slot; Verda and Shadeform listings "
        "that were there 2 to 98% of the time, and Vast.ai by GPU type, in six-hour slots. What is "
        "seen every six or seven hours is up to six hours old at the start of a slot, so a daily "
        "pattern is seen at four hours only. The GCP and r5 (CPU) traces are left out. Every "
        "prediction uses the slots up to its origin only; origins are all slots after the first "
        "quarter of a series and its first day. Zones of a family share a market, so medians say "
        "more than tests over series do; trace sets have 2 to 9 series and one to six weeks."
    )


def _percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{round(value, 2 + digits) + 0.0:.{digits}%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"

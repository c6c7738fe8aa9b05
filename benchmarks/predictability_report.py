"""The pages of the predictability study: main table, findings and details."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictability_figures import AGES, pooled_hazard
from reporting import bullets, markdown_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from predictability import Family


QUESTION = "How far ahead can prices and availability be predicted from their own past?"
REACH_NOTE = (
    "The share of the squared error of *the mean so far* that is removed by also knowing the last "
    "value, damped to the mean by a coefficient fitted to the past of the series. 100% is a market "
    "that stands still, 0% one that has forgotten. Medians over the series."
)
SKILL_NOTE = (
    "By how much the squared error of the last value falls, median over the series; below 0 is "
    "worse. *Damped* pulls the last value to the mean so far, *damped to the hour* to the mean of "
    "that hour of the day. *Trend* adds as much of the last step again as the past suggests. The "
    "table of absolute errors guesses a count as a whole number."
)
MAE_NOTE = "As a share of the mean price, or of the most GPUs seen."
PATTERN_NOTE = (
    "Correlation with the value that long ago, medians. *Daily* and *weekly*: the share of series "
    "in which the clock explains more than chance (5% expected), and the median share of variance "
    "it explains beyond chance. Chance is measured by turning every day by a random number of "
    "slots, and every week by whole days. A weekly pattern is what the day adds to the hour, and "
    "needs four weeks."
)
SPELL_NOTE = (
    "Up: at least one GPU, or listed. Median lengths are by Kaplan and Meier, with spells that the "
    "end of a trace cuts off as censored. *Old end less*: series in which old spells end clearly "
    "less often than young ones (z below -2). Bits per slot to tell up from down: knowing nothing, "
    "knowing the last slot, and knowing the age of its spell as well. Slots are half an hour in "
    "traces and six hours in listings."
)
HAZARD_NOTE = (
    "All series of a family together. Part of the fall is a mixture: quiet times have long spells "
    "and busy times short ones."
)
CORRELATION_NOTE = (
    "V100, 45 days, AWS prices of the same time: correlation of the price over on-demand with "
    "availability, by slots and by daily means."
)


def page(
    families: Sequence[Family],
    correlations: Sequence[Sequence[object]],
    bits: dict[str, list[float | None]],
) -> list[str]:
    """Return the main table, the pictures and the findings."""
    return [
        _by_hour(families, "explained"),
        REACH_NOTE,
        "![How far the past reaches](predictability-reach.png)",
        bullets(_findings(families, correlations, bits)),
        "![Daily and weekly patterns](predictability-patterns.png)",
        "![Hazard by age](predictability-hazard.png)",
        _method(families),
    ]


def details(
    families: Sequence[Family],
    correlations: Sequence[Sequence[object]],
    bits: dict[str, list[float | None]],
) -> list[str]:
    """Return skill by predictor, patterns, spells, hazards and the two example markets."""
    counts = [each for each in families if not each.price]
    predictors = (
        ("damped", "damped"),
        ("damped_hourly", "damped to the hour"),
        ("trend", "trend"),
        ("seasonal", "the value a day before"),
    )
    parts = ["## Skill over the last value", SKILL_NOTE]
    for predictor, title in predictors:
        parts += [f"### Skill: {title}", _by_hour(families, "skill", predictor)]
    return [
        *parts,
        "### Skill: damped, absolute error",
        _by_hour(families, "mae_skill"),
        "## Mean absolute error of the last value",
        MAE_NOTE,
        _by_hour(families, "relative_mae"),
        "## Memory and patterns",
        PATTERN_NOTE,
        _patterns(families),
        "## Spells",
        SPELL_NOTE,
        _spells(counts, bits),
        "## Ends per hour by the age of the spell",
        HAZARD_NOTE,
        _hazards(counts),
        "## Price and availability",
        CORRELATION_NOTE,
        markdown_table(("zone", "slots", "days"), correlations),
        "## Two markets in pictures",
        "![V100](predictability-v100.png)",
        "![H100](predictability-h100.png)",
    ]


def _findings(
    families: Sequence[Family],
    correlations: Sequence[Sequence[object]],
    bits: dict[str, list[float | None]],
) -> list[str]:
    """Return the findings in words; every figure in them is measured in this run."""
    aws = [each for each in families if each.name.startswith("AWS")]
    traces = [each for each in families if not each.price and 1.0 in each.explained]
    known, aged = (
        [1 - bits[each.name][place] / bits[each.name][place - 1] for each in traces]
        for place in (1, 2)
    )
    of_days = [float(row[2]) for row in correlations]
    east, west, h100 = "V100 45 days, us-east-1", "V100 45 days, us-west-2", "H100 counts"
    return [
        (
            "**Prices are predictable for days, because they hardly move.** The last AWS price is "
            f"off by {_span(aws, 24, 'relative_mae', 1)} after a day and by "
            f"{_span(aws, 168, 'relative_mae')} after a week. Adding part of the last step saves "
            f"{_span(aws, 24, 'trend')} of the squared error a day ahead. Prices at Vast.ai do "
            "move: the last value explains "
            f"{_at(families, 'Vast, lowest asking price', 24)} of the lowest asking price at 24 h."
        ),
        (
            "**Availability is predictable for hours.** Knowing it now removes "
            f"{_span(traces, 1)} of the mean's squared error an hour ahead, {_span(traces, 6)} at "
            f"6 h and {_span(traces, 12)} at 12 h, where most families have nothing left. As a "
            "best single guess the last value is hard to beat: damped and rounded it is up to "
            f"{_percent(-min(_values(traces, 1, 'mae_skill')))} worse by absolute error at 1 h."
        ),
        (
            "**Old spells end less often than young ones.** Up spells of nearly every trace end "
            "about a fifth as often after half a day as in their first hour. "
            f"But the last slot alone removes {_range(known)} of the bits; the age removes "
            f"{_range(aged)} of the rest (below 0: learning it costs more than it tells)."
        ),
        (
            "**The hour of the day** matters in some places: beyond chance in "
            f"{_of(families, east, 'daily_real')} of the us-east-1 zones "
            f"({_of(families, east, 'daily_share')} of the variance), "
            f"{_of(families, west, 'daily_real')} of us-west-2 "
            f"({_of(families, west, 'daily_share', 1)}) and {_of(families, h100, 'daily_real')} of "
            f"the H100 zones ({_of(families, h100, 'daily_share', 1)}). Elsewhere learning it "
            "costs as much as it brings, or more. The value a day before is a bad forecast."
        ),
        (
            "**No pattern in AWS prices** beyond chance (daily in "
            f"{_average(aws, 'daily_real')} of the series, weekly in "
            f"{_average(aws, 'weekly_real')}; 5% expected), and price does not tell availability: "
            f"daily means correlate by {min(of_days):+.2f} to {max(of_days):+.2f}."
        ),
        (
            "**For planning**: take the price as it is; plan availability as a distribution that "
            "drifts from the present to the mean of the zone within hours; learn mean and "
            "persistence of each zone online, with forgetting."
        ),
    ]


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
            *(number(each.acf[lag]) for lag in lags),
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
        rows.append([family.name, *cells, *(number(each) for each in known)])
    header = ("family", "up (h)", "old end less", "down (h)", "old end less ")
    return markdown_table((*header, "bits", "last known", "and age"), rows)


def _hazards(families: Sequence[Family]) -> str:
    rows = []
    for family in families:
        for which in ("up", "down"):
            found = dict(pooled_hazard(family, which))
            cells = [number(found.get(place)) for place in range(len(AGES))]
            if found:
                rows.append([family.name, which, *cells])
    return markdown_table(("family", "spells", *(f"{age} h" for age in AGES)), rows)


def _method(families: Sequence[Family]) -> str:
    series = sum(each.series for each in families)
    return (
        f"{series:,} series. AWS spot prices in six-hour slots, each unbroken stretch of 60 days "
        "or more a series of its own (cut where nothing was seen for a day, such as the 103 days "
        "of 2026, or where no spot price was published). Availability traces in half-hour slots: a "
        "GPU counts if it was there during the whole slot. Verda and Shadeform listings that were "
        "there 2 to 98% of the time, and Vast.ai by GPU type, in six-hour slots; these values are "
        "up to six hours old. The GCP and r5 (CPU) traces are left out. Every prediction uses only "
        "earlier slots; predictions start after the first quarter of a series and its first day. "
        "Zones of a family share a market, so medians say more than tests over series. Trace sets "
        "have only 2 to 9 series and one to six weeks: too short for weekly patterns."
    )


def _percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{round(value, 2 + digits) + 0.0:.{digits}%}"


def number(value: float | None) -> str:
    """Return a number with two digits, or a dash if it is not known."""
    return "-" if value is None else f"{value:.2f}"

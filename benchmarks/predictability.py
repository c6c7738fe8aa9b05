"""Where the market is predictable: memory, patterns, spells and skill of every measured series.

The series are AWS prices (six-hour slots, cut at gaps), availability traces (half-hour slots), the
listings of Verda and Shadeform, and the digest of Vast.ai, by family. No forecaster is tuned here:
predictors are running means, the last value and combinations of the two.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress

from duetune.market.datasets import data_folder
from duetune.market.predictability_skill import HORIZON_HOURS, Predictor
from duetune.market.predictability_spells import Entropy, Survival, entropy, survival
from duetune.market.statistics import SeriesPredictability, market_statistics, series_predictability
from duetune.plots.market_figures import predictability_figure
from predictability_data import Series, all_series, paired_traces
from predictability_figures import hazard_figure, pattern_figure, reach_figure
from predictability_report import QUESTION, details, number, page
from reporting import arguments, finish, publish, rounded, save_pictures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from duetune.core.market import MarketTrace
    from duetune.market.predictability_pattern import Pattern

HORIZONS = (*HORIZON_HOURS, 72.0, 168.0)
REACH = 0.05
"""The past helps as far as it removes at least this share of the mean's squared error."""


class Studied(msgspec.Struct, frozen=True, eq=False):
    """The statistics of one series."""

    series: Series
    found: SeriesPredictability
    entropy: Entropy | None
    up: Survival | None
    down: Survival | None


class Family(msgspec.Struct, frozen=True, eq=False):
    """Medians over the series of a family; shares are of the series that could be tested."""

    name: str
    price: bool
    series: int
    days: float
    acf: dict[float, float | None]
    daily_real: float | None
    daily_share: float | None
    weekly_real: float | None
    weekly_share: float | None
    explained: dict[float, float | None]
    skill: dict[str, dict[float, float | None]]
    mae_skill: dict[float, float | None]
    relative_mae: dict[float, float | None]
    members: tuple[Studied, ...]

    @property
    def reach_hours(self) -> float:
        """Return the longest horizon up to which the past helps, 0 if it never does."""
        reach = 0.0
        for hours, share in self.explained.items():
            if share is not None and share < REACH:
                break
            if share is not None:
                reach = hours
        return reach


def study(series: Series, seed: int) -> Studied:
    """Return the statistics of one series."""
    up = None if series.price else series.values > 0
    return Studied(
        series=series,
        found=series_predictability(series.values, series.slot_hours, seed=seed, horizons=HORIZONS),
        entropy=None if up is None else entropy(up),
        up=None if up is None else survival(up, series.slot_hours),
        down=None if up is None else survival(~up, series.slot_hours),
    )


def family_of(name: str, members: Sequence[Studied]) -> Family:
    """Return the medians of a family."""

    def tested(pick: Callable[[SeriesPredictability], Pattern | None]) -> list[Pattern]:
        return [found for each in members if (found := pick(each.found)) is not None]

    daily, weekly = tested(lambda found: found.daily), tested(lambda found: found.weekly)
    by_hour = {
        hours: [
            (each, horizon)
            for each in members
            for horizon in each.found.horizons
            if horizon.hours == hours
        ]
        for hours in HORIZONS
    }
    by_hour = {hours: pairs for hours, pairs in by_hour.items() if pairs}
    return Family(
        name=name,
        price=members[0].series.price,
        series=len(members),
        days=float(np.median([each.series.days for each in members])),
        acf={
            lag.hours: median(each.found.acf[place].correlation for each in members)
            for place, lag in enumerate(members[0].found.acf)
        },
        daily_real=mean(each.real for each in daily),
        daily_share=median(each.beyond_chance for each in daily),
        weekly_real=mean(each.real for each in weekly),
        weekly_share=median(each.beyond_chance for each in weekly),
        explained={
            hours: median(horizon.explained for _, horizon in pairs)
            for hours, pairs in by_hour.items()
        },
        skill={
            predictor.value: {
                hours: median(horizon.squared(predictor) for _, horizon in pairs)
                for hours, pairs in by_hour.items()
            }
            for predictor in Predictor
        },
        mae_skill={
            hours: median(horizon.absolute(Predictor.DAMPED) for _, horizon in pairs)
            for hours, pairs in by_hour.items()
        },
        relative_mae={
            hours: median(
                horizon.last_value_mae
                / (each.series.values.mean() if each.series.price else each.series.values.max())
                for each, horizon in pairs
            )
            for hours, pairs in by_hour.items()
        },
        members=tuple(members),
    )


def median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return float(np.mean(known)) if known else None


def main() -> None:
    options = arguments("Where the market is predictable.").parse_args()
    if not (data_folder() / "README.md").is_file():
        print("the data folder (shared/data beside the repository) is not here", file=sys.stderr)
        finish({"skipped": "no data folder"})
        return
    with Progress(console=Console(stderr=True)) as progress:
        studied = [
            study(series, options.seed)
            for series in progress.track(all_series(quick=options.quick), description="series")
        ]
    names = dict.fromkeys(each.series.family for each in studied)
    families = [
        family_of(name, [each for each in studied if each.series.family == name]) for name in names
    ]
    paired = paired_traces()
    write = not (options.quick or options.no_write)
    if write:
        _draw(families, paired, options.seed)
    figures = _figures(families, paired[0])
    correlations = _correlations(paired[0])
    bits = {each.name: _bits(each) for each in families if not each.price}
    publish(
        "predictability",
        "Where the market is predictable",
        QUESTION,
        page(families, correlations, bits),
        write=write,
        details=details(families, correlations, bits),
    )
    finish(figures)


def _draw(families: Sequence[Family], paired: Sequence[MarketTrace], seed: int) -> None:
    drawn = {
        "predictability-reach.png": reach_figure(families),
        "predictability-patterns.png": pattern_figure(families),
        "predictability-hazard.png": hazard_figure(families),
    }
    titles = {
        "v100": "V100 at AWS, 45 days of 2023",
        "h100": "H100 counts at GCP, two weeks of 2025",
    }
    for trace, (name, title) in zip(paired, titles.items(), strict=True):
        views = [trace.pool(pool.name) for pool in trace.pools]
        rows = [(view, market_statistics(view, predictable=True, seed=seed)) for view in views]
        drawn[f"predictability-{name}.png"] = predictability_figure(rows, title=title)
    save_pictures(drawn)


def _correlations(trace: MarketTrace) -> list[list[object]]:
    rows = []
    for pool in trace.pools:
        found = market_statistics(trace, pool=pool.name, predictable=True).predictability
        rows.append([pool.name, number(found.correlation), number(found.correlation_of_days)])
    return rows


def _figures(families: Sequence[Family], paired: MarketTrace) -> dict[str, object]:
    of_days = [float(row[2]) for row in _correlations(paired)]
    return {
        "series": sum(family.series for family in families),
        "families": {
            family.name: {
                "series": family.series,
                "acf_24h": rounded(family.acf.get(24.0)),
                "daily_real": rounded(family.daily_real),
                "daily_share": rounded(family.daily_share),
                "weekly_real": rounded(family.weekly_real),
                "reach_hours": family.reach_hours,
                "explained": {f"{hours:g}": rounded(x) for hours, x in family.explained.items()},
                "skill_over_last_value": {
                    f"{hours:g}": rounded(x)
                    for hours, x in family.skill[Predictor.DAMPED.value].items()
                },
                "bits": None if family.price else [rounded(x) for x in _bits(family)],
            }
            for family in families
        },
        "price_availability_correlation_of_days": [min(of_days), max(of_days)],
    }


def _bits(family: Family) -> list[float | None]:
    known = [each.entropy for each in family.members if each.entropy is not None]
    return [
        median(getattr(each, field) for each in known)
        for field in ("marginal", "given_last", "given_age")
    ]


if __name__ == "__main__":
    main()

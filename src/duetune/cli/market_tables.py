"""The tables of ``duetune market stats``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from duetune.cli import tables
from duetune.market.predictability_skill import Predictor

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from duetune.cli.market import MarketFigures, Series
    from duetune.market.predictability_pattern import Pattern
    from duetune.market.predictability_spells import Survival
    from duetune.market.statistics import MarketStatistics, Predictability

    Known = tuple[str, MarketStatistics, Predictability]


def show_statistics(document: MarketFigures, *written: Path | None) -> None:
    """Print all tables, what their columns mean, and the files that were written."""
    screen = tables.console()
    known = [
        (escape(_label(document, each)), each.statistics, each.statistics.predictability)
        for each in document.series
        if each.statistics.predictability is not None
    ]
    for each in document.series:
        note = each.market
        days = note.slots * note.slot_hours / 24
        length = f"{note.slots:,} slots of {note.slot_hours * 60:g} min, {days:,.1f} days"
        screen.print(escape(f"{_label(document, each)}: {length}"))
    for title, table in (
        ("Summary", _summary(known)),
        ("Availability", _memory(known)),
        ("Spells", _spells(known)),
        ("Price", _prices(known)),
        ("Squared error avoided", _skill(known)),
    ):
        if table.row_count:
            screen.print()
            screen.print(title)
            screen.print(table)
    screen.print()
    up = "at least one GPU" if document.gpus == 1 else f"at least {document.gpus} GPUs"
    screen.print(
        "$: spot price per GPU-hour that 10%, 50% and 90% of the slots do not exceed; on demand: "
        f"o.d. Up: {up}. GPUs: mean number. Stays, away: mean length of spells up and down. "
        "Lost/d: losses a day. Hours: correlation with the "
        "value that many hours ago. Daily, weekly: share of the variance that the time of day or "
        "week explains, above chance; * if p < 0.05. Ageing: "
        "whether spells that have lasted longer end less often, more often or equally often. Bits: "
        "uncertainty about up or down per slot, and what remains if the last slot, or also the "
        "age of the spell, is known. Avoided: by the last value damped towards the mean, compared "
        "with the last value and with the mean."
    )
    tables.print_written(*written)


def _summary(known: list[Known]) -> Table:
    """Return the table of prices, availability and the lengths of spells."""
    columns = ("$ p10", "p50", "p90", "o.d.", "up", "GPUs", "stays", "away", "lost/d")
    table = tables.new_table("pool", *columns, left=("pool",))
    for name, found, _ in known:
        table.add_row(
            name,
            *(f"{price:.2f}" for price in (*found.spot_usd_gpu_h, found.on_demand_usd_gpu_h)),
            tables.percent(found.share_available, 0),
            f"{found.mean_available:.1f}",
            *(
                "-" if hours is None else f"{hours:.1f} h"
                for hours in (found.mean_up_hours, found.mean_down_hours)
            ),
            f"{found.losses_per_day:.1f}",
        )
    return table


def _memory(known: list[Known]) -> Table:
    hours = [each.hours for each in known[0][2].available.acf] if known else []
    table = tables.new_table(
        *("pool", "up", *(f"{each:g} h" for each in hours), "daily", "weekly"), left=("pool",)
    )
    for name, found, deep in known:
        table.add_row(
            name,
            tables.percent(found.share_available, 0),
            *(_number(each.correlation) for each in deep.available.acf),
            _pattern(deep.available.daily),
            _pattern(deep.available.weekly),
        )
    return table


def _spells(known: list[Known]) -> Table:
    columns = (
        "median up",
        "down",
        "ageing up",
        "down ",
        "bits",
        "last",
        "age",
    )
    table = tables.new_table("pool", *columns, left=("pool",))
    for name, _, deep in known:
        bits = deep.entropy
        table.add_row(
            name,
            *(_median(each) for each in (deep.up, deep.down)),
            *(_aging(each) for each in (deep.up, deep.down)),
            *(f"{each:.2f}" for each in (bits.marginal, bits.given_last, bits.given_age)),
        )
    return table


def _prices(known: list[Known]) -> Table:
    """Return the table of prices, with the pools in which the price changes."""
    columns = ("% of on dem.", "24 h", "168 h", "daily", "weekly", "corr. GPUs", "days")
    table = tables.new_table("pool", *columns, left=("pool",))
    for name, found, deep in known:
        memory = {each.hours: each.correlation for each in deep.price.acf}
        if deep.price.horizons:
            table.add_row(
                name,
                tables.percent(found.ratio_p50, 0),
                *(_number(memory.get(hours)) for hours in (24.0, 168.0)),
                _pattern(deep.price.daily),
                _pattern(deep.price.weekly),
                _number(deep.correlation),
                _number(deep.correlation_of_days),
            )
    return table


def _skill(known: list[Known]) -> Table:
    every = [each for _, _, deep in known for each in (deep.available, deep.price)]
    hours = sorted({horizon.hours for each in every for horizon in each.horizons})
    labels = ("pool", "series", "compared with")
    table = tables.new_table(*labels, *(f"{each:g} h" for each in hours), left=labels)
    for name, _, deep in known:
        for what, series in (("GPUs", deep.available), ("price", deep.price)):
            over_last = {each.hours: each.squared(Predictor.DAMPED) for each in series.horizons}
            over_mean = {each.hours: each.explained for each in series.horizons}
            for label, skills in (("last value", over_last), ("mean", over_mean)):
                if skills:
                    cells = (_share(skills.get(each)) for each in hours)
                    table.add_row(name, what, label, *cells)
    return table


def _label(document: MarketFigures, series: Series) -> str:
    """Return the pool's name, with the market's name if there are several or the pool has none."""
    note = series.market
    several = len({each.market.name for each in document.series}) > 1
    if note.pool == "default":
        return note.name
    return f"{note.name} {note.pool}" if several else note.pool


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    # Rounding first avoids -0%.
    return "-" if value is None else f"{round(value, 2) + 0.0:.0%}"


def _pattern(pattern: Pattern | None) -> str:
    if pattern is None:
        return "-"
    return f"{pattern.beyond_chance:.0%}{'*' if pattern.real else ' '}"


def _median(spells: Survival | None) -> str:
    if spells is None:
        return "-"
    return "longer" if spells.median_hours is None else f"{spells.median_hours:g} h"


def _aging(spells: Survival | None) -> str:
    if spells is None or spells.age_trend is None:
        return "-"
    return "less" if spells.age_trend < -2 else "more" if spells.age_trend > 2 else "equal"

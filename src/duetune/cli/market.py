"""``duetune market``: the group, and ``market stats``. ``market_tables`` prints its result.

``market_show`` has ``show``; ``market_recordings`` has ``feeds``, ``record`` and ``import``.
"""

from __future__ import annotations

from csv import writer
from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.context import print_answer
from duetune.cli.json_output import JsonDocument, MarketNote
from duetune.cli.market_recordings import feeds, import_, record
from duetune.cli.market_show import show
from duetune.cli.options import market_options, run_options
from duetune.market.statistics import MarketStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from duetune.cli.options import MarketOptions

SYNTHETIC_HOURS = 8 * 7 * 24.0


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of one pool of one market."""

    market: MarketNote
    statistics: MarketStatistics


class MarketFigures(JsonDocument, frozen=True, kw_only=True):
    """The answer of ``--json``, with one entry per pool."""

    gpus: int
    series: tuple[Series, ...]


class OrderedGroup(click.Group):
    """A group whose help page lists the commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands)


@click.group(cls=OrderedGroup)
def market() -> None:
    """Show, record and import spot markets, and measure how predictable they are."""


for _command in (feeds, show, record, import_):
    market.add_command(_command)


@market.command()
@click.option(
    "--gpus",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="A slot is up when at least this many spot GPUs are available.",
)
@click.option(
    "--csv",
    metavar="FILE",
    help="Write one row for each pool and figure: market, pool, figure, value.",
)
@market_options
@run_options
def stats(
    gpus: int,
    csv: str | None,
    market: MarketOptions,
    seed: int,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """Show the prices and availability of a market, and how well its past predicts its future.

    The tables show the price per GPU-hour, how long spot stays available and away, correlation over
    time, daily and weekly patterns, and the errors of simple predictors. All pools of a trace are
    shown unless --pool names one. A synthetic market has eight weeks.
    """
    from duetune import plots
    from duetune.cli.market_tables import show_statistics
    from duetune.files import checked_target, whole_file
    from duetune.market.statistics import market_statistics
    from duetune.plots.market_figures import predictability_figure

    target = None if plot is None else plots.checked_plot(plot, "--plot")
    rows = None if csv is None else checked_target(csv, "--csv", (".csv",))
    views = market.pools(seed, slots=round(SYNTHETIC_HOURS / (market.slot_hours or 0.5)))
    figures = [market_statistics(view, gpus=gpus, predictable=True, seed=seed) for view in views]
    document = MarketFigures(
        command="market stats",
        seed=seed,
        gpus=gpus,
        series=tuple(
            Series(market=MarketNote.of(view), statistics=found)
            for view, found in zip(views, figures, strict=True)
        ),
    )
    if rows is not None:
        with whole_file(rows, "--csv") as part, part.open("w", encoding="utf-8", newline="") as out:
            _write_rows(document, out)
    if target is not None:
        names = ", ".join(dict.fromkeys(view.name for view in views))
        figure = predictability_figure(list(zip(views, figures, strict=True)), title=names)
        plots.save_figure(figure, target)
    if as_json:
        print_answer(document)
    else:
        show_statistics(document, rows, target)


def _write_rows(document: MarketFigures, file: TextIO) -> None:
    """Write one row for each pool and figure: its path in the JSON document, and its value."""
    rows = writer(file)
    rows.writerow(("market", "pool", "figure", "value"))
    for each in document.series:
        values = msgspec.to_builtins(each.statistics)
        rows.writerows((each.market.name, each.market.pool, *row) for row in _flat(values, ""))


def _flat(value: object, place: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{place}.{number}")
    else:
        yield place, value

"""``duetune forecast``: a look ahead, and ``duetune forecast backtest``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.forecast_backtest import backtest
from duetune.cli.forecast_names import NamingForecasters, usual_forecaster
from duetune.cli.json_output import JsonDocument, MarketNote, print_document
from duetune.cli.options import market_options, run_options
from duetune.errors import InvalidInput
from duetune.registry.forecasters import forecast_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.cli.options import MarketOptions
    from duetune.core.market import MarketTrace
    from duetune.simulate.backtest.past_forecasts import Expected, Fan, FanSlot

USUAL_HOURS = 12.0
MOST_SLOTS = 2000
MOST_ROWS = 12


class FanDocument(JsonDocument, frozen=True, kw_only=True):
    """``at`` is the slot in which the forecast was made, ``slots`` what it says of those after."""

    forecaster: str
    market: MarketNote
    at: int
    slots: tuple[FanSlot, ...]


class DefaultGroup(click.Group):
    """A group in which what names no command is meant for ``show``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=DefaultGroup, options_metavar="", subcommand_metavar="[TRACE | COMMAND] [OPTIONS]..."
)
def forecast() -> None:
    """What a market is expected to do next, and which forecaster to believe.

    \b
    duetune forecast prices.csv --plot fan.png    what comes after a recorded market
    duetune forecast --market diurnal --at 300    as seen in slot 300 of a synthetic one
    duetune forecast backtest --trace prices.csv  how well forecasters would have done

    The first two are `duetune forecast show`, which may be left out: its --help and that of
    `backtest` have the options.
    """


@forecast.command(cls=NamingForecasters)
@click.argument("trace_file", metavar="[TRACE]", required=False)
@click.option(
    "--forecaster",
    metavar="NAME",
    help="Who forecasts; see below.  [default: combined]",
)
@click.option(
    "--at",
    type=int,
    metavar="SLOT",
    help="Forecast in this slot of the trace, counted from 0.  [default: the last]",
)
@click.option(
    "--hours", type=float, metavar="HOURS", help=f"How far ahead.  [default: {USUAL_HOURS:g}]"
)
@market_options
@run_options
def show(
    trace_file: str | None,
    forecaster: str | None,
    at: int | None,
    hours: float | None,
    market: MarketOptions,
    seed: int,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """The next hours of a market as forecast, and as they came.

    TRACE is a recorded market, the same as --trace FILE.
    """
    from duetune import plots
    from duetune.plots.forecast_figures import fan_figure
    from duetune.simulate.backtest.past_forecasts import fan

    target = None if plot is None else plots.checked_plot(plot, "--plot")
    if trace_file is not None:
        if market.trace or market.market:
            raise click.UsageError("one market: TRACE, --trace or --market")
        market = msgspec.structs.replace(market, trace=(trace_file,))
    source = forecast_named(forecaster or usual_forecaster(), seed=seed)
    trace = market.one(seed)
    if at is not None and not 0 <= at < trace.slots:
        raise InvalidInput("--at", at, f"a slot of {trace.name!r}, 0 to {trace.slots - 1}")
    seen = fan(source, trace, at=at, slots=_slots(hours, trace))
    if target is not None:
        plots.save_figure(fan_figure(seen, trace), target)
    if as_json:
        print_document(
            FanDocument(
                command="forecast",
                seed=seed,
                forecaster=seen.forecaster,
                market=MarketNote.of(trace),
                at=seen.at,
                slots=seen.slots,
            )
        )
        return
    _show(seen, trace)
    if target is not None:
        click.echo(f"Plot: {target}")


forecast.add_command(backtest)


def _slots(hours: float | None, trace: MarketTrace) -> int:
    if hours is None:
        return max(1, round(USUAL_HOURS / trace.slot_hours))
    slots = hours / trace.slot_hours
    if not (1 - 1e-6 <= slots <= MOST_SLOTS and abs(slots - round(slots)) < 1e-6):
        minutes = trace.slot_hours * 60
        allowed = f"whole slots of {minutes:g} min, 1 to {MOST_SLOTS:,} of them"
        raise InvalidInput("--hours", hours, allowed)
    return round(slots)


def _show(seen: Fan, trace: MarketTrace) -> None:
    from rich.markup import escape

    from duetune.cli import tables

    screen = tables.console()
    screen.print(tables.market_words(trace))
    last = "" if seen.at < trace.slots - 1 else ", the last"
    screen.print(escape(f"forecast by {seen.forecaster} in slot {seen.at}{last}"))
    screen.print()
    came = seen.slots[0].available.came is not None
    columns = ["hours", "$/GPU-h", "50%", "90%", "avail", "50% ", "90% "]
    table = tables.new_table(*columns, *(("came: $", "avail ") if came else ()))
    for slot in _some(seen.slots):
        cells = [
            f"{slot.hours:g}",
            f"{slot.spot_price.value:.2f}",
            *_ranges(slot.spot_price, digits=2),
            f"{slot.available.value:.0f}",
            *_ranges(slot.available, digits=0),
        ]
        if came:
            cells += [_came(slot.spot_price, digits=2), _came(slot.available, digits=0)]
        table.add_row(*cells)
    screen.print(table)
    if seen.slots[0].available.ninety is None:
        screen.print()
        screen.print(escape(f"{seen.forecaster} does not say how sure it is."))


def _some(slots: Sequence[FanSlot]) -> list[FanSlot]:
    """Evenly spread where there are many; the last one always."""
    every = -(-len(slots) // MOST_ROWS)
    return [slot for place, slot in enumerate(slots, start=1 - len(slots)) if place % every == 0]


def _ranges(expected: Expected, *, digits: int) -> tuple[str, str]:
    half, ninety = (
        "-" if ends is None else f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"
        for ends in (expected.half, expected.ninety)
    )
    return half, ninety


def _came(expected: Expected, *, digits: int) -> str:
    return "" if expected.came is None else f"{expected.came:.{digits}f}"

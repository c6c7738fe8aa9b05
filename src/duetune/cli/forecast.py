"""``duetune forecast``: the group, and ``forecast show``. ``forecast_backtest`` has the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.context import print_answer
from duetune.cli.forecast_backtest import backtest
from duetune.cli.json_output import JsonDocument, MarketNote
from duetune.cli.options import ForecasterCommand, market_options, run_options
from duetune.errors import InvalidInput
from duetune.registry.markets import forecast_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.cli.options import MarketOptions
    from duetune.core.market import MarketTrace
    from duetune.simulate.backtest.past_forecasts import Expected, Fan, FanSlot

DEFAULT_HOURS = 12.0
MAX_SLOTS = 2000
MAX_ROWS = 12


class FanDocument(JsonDocument, frozen=True, kw_only=True):
    """The answer of ``--json``: the forecast made in slot ``at`` for each slot after it."""

    forecaster: str
    market: MarketNote
    at: int
    slots: tuple[FanSlot, ...]


class DefaultGroup(click.Group):
    """A group whose command ``show`` may be left out."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which they were added."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert ``show`` if the first argument is no command and does not ask for help."""
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=DefaultGroup, options_metavar="", subcommand_metavar="[TRACE | COMMAND] [OPTIONS]..."
)
def forecast() -> None:
    """Forecast a market, and compare forecasters on it.

    \b
    duetune forecast prices.csv --plot fan.png    forecast the hours after a recorded market
    duetune forecast --market diurnal --at 300    forecast in slot 300 of a synthetic market
    duetune forecast backtest --trace prices.csv  score forecasters on a recorded market

    The first two lines are short for `duetune forecast show`. `show --help` and `backtest --help`
    list the options.
    """


@forecast.command(cls=ForecasterCommand)
@click.argument("trace_file", metavar="[TRACE]", required=False)
@click.option(
    "--forecaster",
    default="combined",
    metavar="NAME",
    help="The forecaster; 'duetune markets' lists them.",
)
@click.option(
    "--at",
    type=int,
    metavar="SLOT",
    help="Forecast in this slot, counted from 0, from the slots up to it.  [default: the last]",
)
@click.option(
    "--hours", type=float, metavar="HOURS", help=f"How far ahead.  [default: {DEFAULT_HOURS:g}]"
)
@market_options
@run_options
def show(
    trace_file: str | None,
    forecaster: str,
    at: int | None,
    hours: float | None,
    market: MarketOptions,
    seed: int,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """Forecast the next hours of a market: the price and the number of spot GPUs.

    Each comes with the ranges that hold 50% and 90% of the cases. With --at, the table also has
    what really happened. TRACE is a recorded market, the same as --trace FILE.
    """
    from duetune import plots
    from duetune.cli import tables
    from duetune.plots.forecast_figures import fan_figure
    from duetune.simulate.backtest.past_forecasts import fan

    target = None if plot is None else plots.checked_plot(plot, "--plot")
    if trace_file is not None:
        if market.trace or market.market:
            raise click.UsageError("give one market: TRACE, --trace or --market")
        market = msgspec.structs.replace(market, trace=(trace_file,))
    source = forecast_named(forecaster, seed=seed)
    trace = market.one(seed)
    if at is not None and not 0 <= at < trace.slots:
        raise InvalidInput("--at", at, f"a slot of {trace.name!r}, 0 to {trace.slots - 1}")
    seen = fan(source, trace, at=at, slots=_slots(hours, trace))
    if target is not None:
        plots.save_figure(fan_figure(seen, trace), target)
    if as_json:
        print_answer(
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
    tables.print_written(target)


forecast.add_command(backtest)


def _slots(hours: float | None, trace: MarketTrace) -> int:
    if hours is None:
        return max(1, round(DEFAULT_HOURS / trace.slot_hours))
    slots = hours / trace.slot_hours
    if not (1 - 1e-6 <= slots <= MAX_SLOTS and abs(slots - round(slots)) < 1e-6):
        minutes = trace.slot_hours * 60
        allowed = f"1 to {MAX_SLOTS:,} whole slots of {minutes:g} min"
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
    table = tables.new_table(*columns, *(("actual: $", "avail ") if came else ()))
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
        screen.print(escape(f"{seen.forecaster} gives no ranges."))


def _some(slots: Sequence[FanSlot]) -> list[FanSlot]:
    """Return at most ``MAX_ROWS`` slots, evenly spread, with the last one among them."""
    every = -(-len(slots) // MAX_ROWS)
    return [slot for place, slot in enumerate(slots, start=1 - len(slots)) if place % every == 0]


def _ranges(expected: Expected, *, digits: int) -> tuple[str, str]:
    half, ninety = (
        "-" if ends is None else f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"
        for ends in (expected.half, expected.ninety)
    )
    return half, ninety


def _came(expected: Expected, *, digits: int) -> str:
    return "" if expected.came is None else f"{expected.came:.{digits}f}"

"""Options that several commands share, each bundle of them handed over as one value."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import click
import msgspec

from duetune.errors import InvalidInput
from duetune.registry.markets import market_named, markets_from_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.market import MarketTrace

    Body = Callable[..., None]
    Decorator = Callable[[Body], Body]

DEFAULT_MARKET = "diurnal"
# What the loader calls its parameters, and what they are called here.
_FLAGS = {
    "on_demand_usd_gpu_h": "--on-demand-price",
    "spot_usd_gpu_h": "--spot-price",
    "available": "--available",
    "slot_hours": "--slot-hours",
    "gaps": "--gaps",
}


def _slot_hours(
    context: click.Context,
    parameter: click.Parameter,
    hours: float | None,
) -> float | None:
    if hours is not None and not 1 / 60 <= hours <= 24 * 7:
        raise InvalidInput("slot_hours", hours, "hours, from a minute (1/60) to a week (168)")
    return hours


class CommandOptions:
    """What holds for one call of the program."""

    def __init__(self, *, debug: bool) -> None:
        self.debug = debug


class MarketOptions(msgspec.Struct, frozen=True):
    """Which market, or markets."""

    trace: tuple[str, ...] = ()
    market: tuple[str, ...] = ()
    pool_name: str | None = None
    slot_hours: float | None = None
    gaps: str | None = None
    spot_price: float | None = None
    on_demand_price: float | None = None
    available: int | None = None

    def one(self, seed: int, *, slots: int = 0) -> MarketTrace:
        """The one market that was named; a synthetic one has at least so many slots."""
        if max(len(self.trace), len(self.market)) > 1:
            raise click.UsageError("this command takes one market: one --trace or one --market")
        return self.several(seed, slots=slots)[0]

    def several(self, seed: int, *, count: int = 1, slots: int = 0) -> tuple[MarketTrace, ...]:
        """All that were named; of each synthetic kind ``count``, with seeds from ``seed`` on."""
        if self.trace and self.market:
            raise click.UsageError("--trace and --market exclude each other")
        if self.trace:
            return tuple(self._from_file(path)[0] for path in self.trace)
        for flag, given in (
            ("--pool", self.pool_name),
            ("--gaps", self.gaps),
            ("--spot-price", self.spot_price),
            ("--on-demand-price", self.on_demand_price),
            ("--available", self.available),
        ):
            if given is not None:
                raise click.UsageError(
                    f"{flag} goes with --trace; synthetic markets have their own"
                )
        return tuple(
            market_named(kind, seed=number, slot_hours=self.slot_hours, slots=slots)
            for kind in self.market or (DEFAULT_MARKET,)
            for number in range(seed, seed + count)
        )

    def pools(self, seed: int, *, slots: int = 0) -> tuple[MarketTrace, ...]:
        """As ``several``, with every pool of a trace, or the one that was named, by itself."""
        if self.trace and not self.market:
            return tuple(pool for path in self.trace for pool in self._from_file(path))
        return self.several(seed, slots=slots)

    def _from_file(self, path: str) -> tuple[MarketTrace, ...]:
        try:
            return markets_from_file(
                path,
                pool=self.pool_name,
                slot_hours=self.slot_hours,
                gaps=self.gaps or "error",
                spot_price=self.spot_price,
                on_demand_price=self.on_demand_price,
                available=self.available,
            )
        except InvalidInput as error:
            if error.field in _FLAGS:
                raise InvalidInput(_FLAGS[error.field], error.value, error.allowed) from error
            raise


def bundle(kind: type[msgspec.Struct], argument: str, *options: Decorator) -> Decorator:
    """Adds ``options`` to a command, which receives them together as ``argument``."""

    def decorate(body: Body) -> Body:
        @functools.wraps(body)
        def receive(**values: object) -> None:
            chosen = {field: values.pop(field) for field in kind.__struct_fields__}
            body(**values, **{argument: kind(**chosen)})

        result: Body = receive
        for option in reversed(options):
            result = option(result)
        return result

    return decorate


market_options = bundle(
    MarketOptions,
    "market",
    click.option(
        "--trace",
        metavar="FILE",
        multiple=True,
        help="A recorded market: CSV, Parquet or JSON (see 'duetune markets').",
    ),
    click.option(
        "--market",
        metavar="KIND",
        multiple=True,
        help=f"A synthetic market (see 'duetune markets').  [default: {DEFAULT_MARKET}]",
    ),
    click.option(
        "--pool", "pool_name", metavar="NAME", help="The pool of the trace: first if none."
    ),
    click.option(
        "--slot-hours",
        type=float,
        callback=_slot_hours,
        metavar="HOURS",
        help="Length of a slot, a minute to a week; resamples a trace.",
    ),
    click.option(
        "--gaps",
        type=click.Choice(["error", "hold", "longest"]),
        help="Gaps in a trace: refuse, hold the last value, or take the longest piece without.",
    ),
    click.option(
        "--spot-price", type=float, metavar="USD", help="Per GPU and hour, for traces without."
    ),
    click.option(
        "--on-demand-price", type=float, metavar="USD", help="Per GPU and hour, for traces without."
    ),
    click.option(
        "--available", type=int, metavar="GPUS", help="Spot GPUs, for traces of prices alone."
    ),
)


def _show_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    session = context.find_root().obj
    if value and isinstance(session, CommandOptions):
        session.debug = True


def run_options(body: Body) -> Body:
    """What every command that computes takes."""
    for option in (
        click.option(
            "--debug",
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_show_debug,
            help="Show the trace of an error.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead."),
        click.option("--plot", metavar="FILE", help="Draw a picture: .png, .svg or .pdf."),
        click.option(
            "--seed",
            type=int,
            default=0,
            show_default=True,
            help="For all that is drawn by chance.",
        ),
    ):
        body = option(body)
    return body


def forecast_option(body: Body) -> Body:
    return click.option(
        "--forecast",
        default="last",
        show_default=True,
        metavar="SOURCE",
        help="last, seasonal:SLOTS, markov, combined, ets, arima, boosted, or, with the future "
        "known, perfect or noisy:REGIME:LEVEL (see docs/reference/cli.md for the regimes).",
    )(body)

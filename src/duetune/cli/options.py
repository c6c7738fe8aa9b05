"""Options that several commands share. A command receives each group of them as one value.

Options of the job are in ``job_options``, of many drawn jobs in ``case_options``, of a cluster in
``cluster_options``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.context import CommandOptions
from duetune.errors import InvalidInput
from duetune.registry.markets import market_named, markets_from_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.market import MarketTrace

    Body = Callable[..., None]
    Decorator = Callable[[Body], Body]

DEFAULT_MARKET = "diurnal"
# The trace loader's parameter names, and the options that set them.
_FLAGS = {
    "on_demand_usd_gpu_h": "--on-demand-price",
    "spot_usd_gpu_h": "--spot-price",
    "available": "--available",
    "gpus_per_instance": "--gpus-per-instance",
    "slot_hours": "--slot-hours",
    "gaps": "--gaps",
}


def _slot_hours(
    context: click.Context,
    parameter: click.Parameter,
    hours: float | None,
) -> float | None:
    if hours is not None and not 1 / 60 <= hours <= 24 * 7:
        raise InvalidInput("slot_hours", hours, "hours, from 1/60 (a minute) to 168 (a week)")
    return hours


class MarketOptions(msgspec.Struct, frozen=True):
    """The options that choose one or several markets."""

    trace: tuple[str, ...] = ()
    market: tuple[str, ...] = ()
    pool_name: str | None = None
    slot_hours: float | None = None
    gaps: str | None = None
    spot_price: float | None = None
    on_demand_price: float | None = None
    available: int | None = None
    gpus_per_instance: int | None = None

    def one(self, seed: int, *, slots: int = 0) -> MarketTrace:
        """Return the one chosen market; a synthetic one has at least ``slots`` slots."""
        if max(len(self.trace), len(self.market)) > 1:
            raise click.UsageError(
                "this command takes one market: give one --trace or one --market"
            )
        return self.several(seed, slots=slots)[0]

    def several(self, seed: int, *, count: int = 1, slots: int = 0) -> tuple[MarketTrace, ...]:
        """Return all chosen markets.

        Each synthetic kind gives ``count`` markets, with the seeds ``seed``, ``seed + 1``, ...
        """
        if self.trace and self.market:
            raise click.UsageError("--trace and --market cannot be used together")
        if self.trace:
            return tuple(self._from_file(path)[0] for path in self.trace)
        for flag, given in (
            ("--pool", self.pool_name),
            ("--gaps", self.gaps),
            ("--spot-price", self.spot_price),
            ("--on-demand-price", self.on_demand_price),
            ("--available", self.available),
            ("--gpus-per-instance", self.gpus_per_instance),
        ):
            if given is not None:
                raise click.UsageError(
                    f"{flag} needs --trace: a synthetic market has its own values"
                )
        return tuple(
            market_named(kind, seed=number, slot_hours=self.slot_hours, slots=slots)
            for kind in self.market or (DEFAULT_MARKET,)
            for number in range(seed, seed + count)
        )

    def pools(self, seed: int, *, slots: int = 0) -> tuple[MarketTrace, ...]:
        """Return the chosen markets with each pool of a trace, or the one of --pool, as its own."""
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
                gpus_per_instance=self.gpus_per_instance,
            )
        except InvalidInput as error:
            if error.field in _FLAGS:
                raise InvalidInput(_FLAGS[error.field], error.value, error.allowed) from error
            raise


def bundle(kind: type[msgspec.Struct], argument: str, *options: Decorator) -> Decorator:
    """Return a decorator that adds ``options`` to a command, which gets them as ``argument``."""

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
        "--pool", "pool_name", metavar="NAME", help="The pool of the trace.  [default: the first]"
    ),
    click.option(
        "--slot-hours",
        type=float,
        callback=_slot_hours,
        metavar="HOURS",
        help="Length of a slot, from a minute to a week. A trace is resampled to it.",
    ),
    click.option(
        "--gaps",
        type=click.Choice(["error", "hold", "longest"]),
        help="Gaps in a trace: refuse them, hold the last value, or use the longest part without "
        "gaps.  [default: error]",
    ),
    click.option(
        "--spot-price",
        type=float,
        metavar="USD",
        help="Spot price per GPU-hour, for traces without prices.",
    ),
    click.option(
        "--on-demand-price",
        type=float,
        metavar="USD",
        help="On-demand price per GPU-hour, for traces without prices.",
    ),
    click.option(
        "--available",
        type=int,
        metavar="GPUS",
        help="Number of spot GPUs, for traces without counts.",
    ),
    click.option(
        "--gpus-per-instance",
        type=int,
        metavar="GPUS",
        help="GPUs of one instance, for JSON traces, which count and price instances.  [default: "
        "from the AWS instance type; 1 in spot-traces]",
    ),
)


def _show_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    session = context.find_root().obj
    if value and isinstance(session, CommandOptions):
        session.debug = True


def run_options(body: Body) -> Body:
    """Add --seed, --plot, --json and --debug to a command that computes."""
    for option in (
        click.option(
            "--debug",
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_show_debug,
            help="Show the traceback of an error.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead."),
        click.option(
            "--plot", metavar="FILE", help="Write a plot to this .png, .svg or .pdf file."
        ),
        click.option(
            "--seed",
            type=int,
            default=0,
            metavar="N",
            help="Seed of the random numbers. The same seed prints the same output.",
        ),
    ):
        body = option(body)
    return body


def forecast_option(body: Body) -> Body:
    """Add --forecast, the forecaster that policies plan with."""
    return click.option(
        "--forecast",
        default="last",
        metavar="SOURCE",
        help="The forecaster that policies plan with: last, seasonal:SLOTS, markov, combined, ets, "
        "arima, boosted; or one that knows the future: perfect, noisy:REGIME:LEVEL.",
    )(body)


class ForecasterCommand(click.Command):
    """A command whose help page ends with the list of forecasters."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names of the forecasters, those of plug-ins included."""
        from duetune.market.forecast.forecast_source import ALLOWED
        from duetune.registry.markets import FORECASTERS, forecasters_listed

        others = ", ".join(each.name for each in forecasters_listed()[len(FORECASTERS) :])
        registered = f" From plug-ins: {others}." if others else ""
        with formatter.section("Forecasters"):
            formatter.write_text(f"{ALLOWED}. perfect and noisy know the future.{registered}")

"""``duetune market show``: prices and availability over time, on the terminal and as a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec
import numpy as np

from duetune.cli.context import duration_words, fleet_option, print_answer
from duetune.cli.json_output import JsonDocument
from duetune.cli.options import market_options, run_options
from duetune.home import Home

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.cli.options import MarketOptions
    from duetune.core.fleet import MarketReport
    from duetune.market.slot_grid import Grid
    from duetune.settings import Settings

WIDTH = 66
HEIGHT = 5
BLOCKS = " ▁▂▃▄▅▆▇█"
DAYS = 7.0


class MarketSlotNote(msgspec.Struct, frozen=True):
    """One slot in the JSON document; prices are dollars per GPU-hour, None if unknown."""

    time: str
    spot_price: float | None
    on_demand_price: float | None
    available: int | None
    at_least: bool


class MarketPicture(JsonDocument, frozen=True, kw_only=True):
    """The answer of ``--json``. ``age_s``: how old the last answer of the feed is."""

    pool: str
    slot_hours: float
    slots: tuple[MarketSlotNote, ...]
    counted: bool = True
    age_s: float = 0.0


@click.command()
@click.argument("trace_file", metavar="[TRACE]", required=False)
@click.option("--feed", metavar="NAME", help="A live feed instead of the one in config.toml.")
@fleet_option("that of config.toml")
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    default=DAYS,
    metavar="N",
    help="How much to show: the last days.",
)
@market_options
@run_options
def show(
    trace_file: str | None,
    feed: str | None,
    fleet: str | None,
    days: float,
    market: MarketOptions,
    seed: int,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """Draw the price and the availability of a market over time.

    TRACE is a recorded market; its gaps are shown as gaps. Without one, the feed of config.toml is
    asked, and its recording is shown with it.
    """
    from duetune import plots
    from duetune.plots.market_figures import market_figure

    target = None if plot is None else plots.checked_plot(plot, "--plot")
    recorded = (trace_file is not None) + bool(market.trace or market.market)
    if recorded + bool(feed or fleet) > 1:
        raise click.UsageError("give one market: TRACE, --trace, --market, --feed or --fleet")
    if trace_file is not None:
        market = msgspec.structs.replace(market, trace=(trace_file,))
    report = None
    if market.trace or market.market:
        grid = _recorded(market, seed)
    else:
        grid, report = _live(Home().on(fleet or ""), feed, days)
    grid = _last_days(grid, days)
    if target is not None:
        plots.save_figure(market_figure(grid), target)
    if as_json:
        print_answer(_document(grid, report, seed))
    else:
        _print(grid, report)
        if target is not None:
            click.echo(f"Plot: {target}")


def _recorded(market: MarketOptions, seed: int) -> Grid:
    """Return the chosen market; a plain table keeps its gaps."""
    from duetune.errors import InvalidInput
    from duetune.market.slot_grid import grid_of, grid_of_pool
    from duetune.market.traces import load_grid

    plain = market == type(market)(trace=market.trace, pool_name=market.pool_name)
    if plain and len(market.trace) == 1:
        try:
            whole = load_grid(market.trace[0])
        except InvalidInput as error:
            if error.field != "format":
                raise
        else:
            name = market.pool_name or whole.pools[0].name
            return grid_of_pool(whole, name)
    return grid_of(market.one(seed).pool())


def _live(settings: Settings, name: str | None, days: float) -> tuple[Grid, MarketReport]:
    """Return the history of a feed with its present slot, and the report of that."""
    from duetune.core.market import MarketTrace
    from duetune.market.slot_grid import grid_of, moment_at
    from duetune.registry.feeds import pool_of
    from duetune.wiring import market_feed, with_feed_named

    settings = with_feed_named(settings, name)
    feed = market_feed(settings)
    report = feed.now()
    past = feed.history(max(1, round(days * 86400 / report.slot_s)))
    now = MarketTrace.single(
        np.array([report.slot.spot_price]),
        np.array([report.slot.available]),
        report.slot.on_demand_price,
        slot_hours=report.slot_s / 3600,
        pool=pool_of(settings, feed),
        start=moment_at(report.slot_began * 1e6),
    )
    if past is None:
        return grid_of(now), report
    joined = {
        field: np.concatenate((getattr(past, field), getattr(now, field)), axis=1)
        for field in ("spot_price", "available", "on_demand_price")
    }
    start = moment_at((report.slot_began - past.slots * report.slot_s) * 1e6)
    return grid_of(msgspec.structs.replace(now, start=start, **joined)), report


def _last_days(grid: Grid, days: float) -> Grid:
    from duetune.market.slot_grid import each_array

    slots = grid.present.shape[1]
    first = max(0, slots - max(1, round(days * 24 / grid.slot_hours)))
    start = round(grid.time(first))
    return each_array(grid, lambda cells: cells[:, first:], start=start)


def _document(grid: Grid, report: MarketReport | None, seed: int) -> MarketPicture:
    from duetune.market.feeds.recording import recorded_slots
    from duetune.market.slot_grid import written

    known = recorded_slots(grid)
    slots = []
    for number in range(grid.present.shape[1]):
        slot = known.get(number)
        slots.append(
            MarketSlotNote(written(grid.time(number)), None, None, None, at_least=False)
            if slot is None
            else MarketSlotNote(written(grid.time(number)), *slot)
        )
    return MarketPicture(
        command="market show",
        seed=seed,
        pool=grid.pools[0].name,
        slot_hours=grid.slot_hours,
        slots=tuple(slots),
        counted=report is None or report.counted,
        age_s=0.0 if report is None else report.age_s,
    )


def _print(grid: Grid, report: MarketReport | None) -> None:
    from duetune.market.slot_grid import dated, written

    slots = grid.present.shape[1]
    spot = np.where(grid.present[0], grid.spot_usd_gpu_h[0], np.nan)
    counts = np.where(grid.counted[0], grid.available[0], np.nan)
    length = f"{slots:,} slots of {grid.slot_hours * 60:g} min"
    click.echo(f"{grid.pools[0].name}: {length}, {slots * grid.slot_hours / 24:,.1f} days")
    if dated(grid):
        click.echo(f"from {written(grid.time(0))[:16]}Z to {written(grid.time(slots))[:16]}Z")
    missing = int((~grid.present[0]).sum())
    uncounted = int((grid.present[0] & ~grid.counted[0]).sum())
    bounds = int((grid.counted[0] & grid.at_least[0]).sum())
    for number, words in (
        (missing, "without a row"),
        (uncounted, "whose GPUs nobody counted"),
        (bounds, "whose count is a lower bound"),
    ):
        if number:
            click.echo(f"{number:,} slots {words}")
    on_demand = grid.on_demand_usd_gpu_h[0][grid.present[0]]
    price = f" (on demand {on_demand[-1]:.2f})" if on_demand.size else ""
    _draw(f"Spot price, $ per GPU-hour{price}", spot, digits=2)
    _draw("Spot GPUs available", counts, digits=0)
    if report is not None:
        hours = report.slot_s / 3600
        how = "" if report.counted else ", only believed"
        age = f"; the answer is {duration_words(report.age_s)} old" if report.age_s else ""
        click.echo(
            f"\nNow: spot ${report.slot.spot_price / hours:.2f}, on demand "
            f"${report.slot.on_demand_price / hours:.2f} per GPU-hour, "
            f"{report.slot.available} GPUs available{how}{age}."
        )


def _draw(title: str, values: NDArray[np.float64], digits: int) -> None:
    """Print a chart of blocks; a stretch without values stays empty, and has a dot below."""
    click.echo(f"\n{title}")
    columns = _columns(values)
    known = columns[~np.isnan(columns)]
    if not known.size:
        click.echo("unknown")
        return
    top = float(known.max()) or 1.0
    digits = digits if top >= 0.1 else 2 * digits
    labels = {HEIGHT - 1: f"{top:.{digits}f}", 0: f"{0:.{digits}f}"}
    width = max(len(text) for text in labels.values())
    eighths = np.where(np.isnan(columns), 0, np.ceil(columns / top * HEIGHT * 8 - 1e-9))
    for row in reversed(range(HEIGHT)):
        filled = np.clip(eighths - row * 8, 0, 8).astype(np.int64)
        text = "".join(
            "·" if row == 0 and np.isnan(value) else BLOCKS[part]
            for part, value in zip(filled, columns, strict=True)
        )
        click.echo(f"{labels.get(row, ''):>{width}} │{text}".rstrip())


def _columns(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return at most ``WIDTH`` means of neighbouring slots; NaN where none is known."""
    parts = np.array_split(values, min(WIDTH, values.size))
    return np.array([np.nan if np.isnan(each).all() else np.nanmean(each) for each in parts])

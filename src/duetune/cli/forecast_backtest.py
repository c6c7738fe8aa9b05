"""``duetune forecast backtest``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from duetune.cli.forecast_names import NamingForecasters, usual_forecasters
from duetune.cli.json_output import JsonDocument, MarketNote, print_document, read_document
from duetune.cli.options import market_options, run_options
from duetune.errors import InvalidInput
from duetune.registry.forecasters import forecast_named

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from duetune.cli.options import MarketOptions
    from duetune.core.market import MarketTrace
    from duetune.market.forecast.forecast_source import ForecastSource
    from duetune.simulate.backtest.forecast_backtest import Backtest
    from duetune.simulate.backtest.standings import ForecasterStanding, Score
    from duetune.simulate.cases import JobMix

MOST_JOBS = 100_000


class Leaderboard(JsonDocument, frozen=True, kw_only=True):
    """``standings`` has the forecaster of most skill first, ``scores`` each at each horizon."""

    markets: tuple[MarketNote, ...]
    horizons: tuple[float, ...]
    levels: tuple[float, ...]
    warm_up: float
    policy: str
    jobs: int
    perfect_utility: float | None
    standings: tuple[ForecasterStanding, ...]
    scores: tuple[Score, ...]


@click.command(cls=NamingForecasters)
@click.option(
    "--forecasters",
    metavar="NAMES",
    help="Separated by commas; see below.  [default: last,seasonal:a day,combined,markov]",
)
@click.option(
    "--horizons",
    metavar="HOURS",
    help="How far ahead, separated by commas.  [default: of 1,3,6,12 the whole slots]",
)
@click.option(
    "--warm-up",
    type=float,
    default=0.3,
    show_default=True,
    metavar="SHARE",
    help="Of each market, to learn from before anything is scored.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=0, max=MOST_JOBS),
    default=100,
    show_default=True,
    help="Jobs that show what errors cost; 0 leaves it out.",
)
@click.option(
    "--mix", metavar="FILE", help="What jobs are drawn from, as for 'duetune tournament'."
)
@click.option(
    "--markets-count",
    type=click.IntRange(min=1, max=1000),
    default=1,
    show_default=True,
    help="Markets of each synthetic kind, with seeds from --seed on.",
)
@click.option("--csv", metavar="FILE", help="Write every forecaster at every horizon as rows.")
@market_options
@run_options
def backtest(
    forecasters: str | None,
    horizons: str | None,
    warm_up: float,
    jobs: int,
    mix: str | None,
    markets_count: int,
    csv: str | None,
    market: MarketOptions,
    seed: int,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """How well forecasters would have done on recorded markets.

    Each forecasts in every slot after the warm-up, from what it had seen by then. Skill is the part
    of persistence's pinball loss that it saves; persistence (`last`) always takes part. Regret is
    what AHAP earns less by its forecasts than by perfect ones.
    """
    from duetune import plots
    from duetune.files import checked_target, whole_file
    from duetune.plots.forecast_figures import backtest_figure
    from duetune.simulate.backtest.forecast_backtest import checked_horizons, write_scores
    from duetune.simulate.cases import JobMix

    target = None if plot is None else plots.checked_plot(plot, "--plot")
    rows = None if csv is None else checked_target(csv, "--csv", (".csv",))
    drawn_from = None if mix is None else read_document(mix, JobMix, "mix")
    named = None if forecasters is None else _sources(forecasters, seed)
    hours = _hours(horizons)
    slots = 0 if drawn_from is None else 2 * drawn_from.longest()
    traces = market.several(seed, count=markets_count, slots=slots)
    sources = named or _sources(usual_forecasters(traces[0].slot_hours), seed)
    hours = checked_horizons(hours, traces, warm_up)
    result = _play(sources, traces, hours, warm_up=warm_up, jobs=jobs, mix=drawn_from, seed=seed)
    if rows is not None:
        with whole_file(rows, "--csv") as part, part.open("w", encoding="utf-8") as file:
            write_scores(result, file)
    if target is not None:
        plots.save_figure(backtest_figure(result), target)
    if as_json:
        print_document(_document(result, traces, seed))
    else:
        _show(result, traces, [path for path in (rows, target) if path is not None])


def _sources(names: str, seed: int) -> list[ForecastSource]:
    found = {}
    for name in names.split(","):
        source = forecast_named(name, seed=seed)
        found[str(source)] = source
    return list(found.values())


def _hours(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput("horizons", text, "hours, separated by commas: 1,3,6,12") from None


def _play(
    sources: Sequence[ForecastSource],
    traces: Sequence[MarketTrace],
    hours: tuple[float, ...],
    *,
    warm_up: float,
    jobs: int,
    mix: JobMix | None,
    seed: int,
) -> Backtest:
    """With a bar on the terminal."""
    from duetune.cli.tables import counting_bar
    from duetune.simulate.backtest.forecast_backtest import backtest as run_backtest

    began = time.perf_counter()
    with counting_bar() as progress:
        task = progress.add_task("forecasting", total=(len(sources) + 1) * len(traces))

        def advance(forecaster: str, trace: str) -> None:
            progress.update(task, advance=1, description=f"{forecaster} on {trace}")

        result = run_backtest(
            sources,
            traces,
            hours,
            warm_up=warm_up,
            jobs=jobs,
            mix=mix,
            seed=seed,
            advance=advance,
        )
    made = sum(score.forecasts for score in result.scores)
    click.echo(f"{made:,} forecasts scored in {time.perf_counter() - began:.1f} s", err=True)
    return result


def _document(result: Backtest, traces: Sequence[MarketTrace], seed: int) -> Leaderboard:
    return Leaderboard(
        command="forecast backtest",
        seed=seed,
        markets=tuple(MarketNote.of(trace) for trace in traces),
        horizons=result.horizons,
        levels=result.levels,
        warm_up=result.warm_up,
        policy=result.policy,
        jobs=result.jobs,
        perfect_utility=result.perfect_utility,
        standings=result.standings,
        scores=result.scores,
    )


def _show(result: Backtest, traces: Sequence[MarketTrace], written: list[Path]) -> None:
    from rich.markup import escape

    from duetune.cli import tables
    from duetune.simulate.backtest.standings import Quantity
    from duetune.simulate.summary import dollars

    screen = tables.console()
    names = ", ".join(trace.name for trace in traces[:3])
    more = f" and {len(traces) - 3} more" if len(traces) > 3 else ""
    scored = sum(trace.slots - round(result.warm_up * trace.slots) for trace in traces)
    screen.print(f"{escape(names)}{more}: {scored:,} slots after a warm-up of {result.warm_up:.0%}")
    screen.print()
    board = tables.new_table(
        *("forecaster", "skill", "of avail", "of price", "90% covers: avail", "price"),
        *("regret", "of utility"),
        left=("forecaster",),
    )
    for row in result.standings:
        lost = row.regret
        board.add_row(
            escape(row.forecaster),
            tables.percent(row.skill),
            tables.percent(row.skill_available),
            tables.percent(row.skill_price),
            tables.percent(row.coverage_available),
            tables.percent(row.coverage_price),
            "-" if lost is None else dollars(lost.dollars),
            "-" if lost is None else tables.percent(lost.share, 2),
        )
    screen.print(board)
    for quantity, title, digits in (
        (Quantity.AVAILABLE, "GPUs available", 2),
        (Quantity.SPOT_PRICE, "$ per GPU and hour", 3),
    ):
        screen.print()
        screen.print(title)
        screen.print()
        table = tables.new_table(
            *("forecaster", "hours", "MAE", "pinball", "90% covers", "skill", "p"),
            left=("forecaster",),
        )
        for row in result.standings:
            for hours in result.horizons:
                score = result.score(row.forecaster, hours, quantity)
                table.add_row(
                    escape(row.forecaster) if hours == result.horizons[0] else "",
                    f"{hours:g}",
                    f"{score.mae:.{digits}f}",
                    f"{score.pinball:.{digits + 1}f}",
                    tables.percent(score.coverage),
                    tables.percent(score.skill),
                    _chance(score.p_value),
                )
        screen.print(table)
    screen.print()
    screen.print(_sentence(result))
    for path in written:
        click.echo(f"{'Plot' if path.suffix != '.csv' else 'Rows'}: {path}")


def _sentence(result: Backtest) -> str:
    words = "Skill: the part of persistence's pinball loss that is saved. p: of no difference."
    if result.perfect_utility is None:
        return words
    return (
        f"{words} Regret: what {result.policy} earns less per job than by the perfect forecast, "
        f"over {result.jobs:,} jobs."
    )


def _chance(p_value: float | None) -> str:
    if p_value is None:
        return "-"
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"

"""``duetune forecast backtest``: score forecasters on recorded or synthetic markets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from duetune.cli.context import print_answer
from duetune.cli.json_output import JsonDocument, MarketNote, read_document
from duetune.cli.options import ForecasterCommand, market_options, run_options
from duetune.errors import InvalidInput
from duetune.registry.markets import forecast_named

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from duetune.cli.options import MarketOptions
    from duetune.core.market import MarketTrace
    from duetune.market.forecast.forecast_source import ForecastSource
    from duetune.simulate.backtest.forecast_backtest import Backtest
    from duetune.simulate.backtest.standings import ForecasterStanding, Score
    from duetune.simulate.cases import JobMix

MAX_JOBS = 100_000


class Leaderboard(JsonDocument, frozen=True, kw_only=True):
    """The answer of ``--json``.

    ``standings`` has the forecaster with the highest skill first. ``scores`` has one entry for each
    forecaster, horizon and quantity.
    """

    markets: tuple[MarketNote, ...]
    horizons: tuple[float, ...]
    levels: tuple[float, ...]
    warm_up: float
    policy: str
    jobs: int
    perfect_utility: float | None
    standings: tuple[ForecasterStanding, ...]
    scores: tuple[Score, ...]


@click.command(cls=ForecasterCommand)
@click.option(
    "--forecasters",
    metavar="NAMES",
    help="Forecasters, separated by commas; 'duetune markets' lists them. last always takes part.  "
    "[default: last,seasonal:DAY,combined,markov]",
)
@click.option(
    "--horizons",
    metavar="HOURS",
    help="Hours ahead, separated by commas.  [default: those of 1,3,6,12 that are whole slots]",
)
@click.option(
    "--warm-up",
    type=float,
    default=0.3,
    metavar="SHARE",
    help="Share of each market that forecasters learn from before scoring starts.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=0, max=MAX_JOBS),
    default=100,
    metavar="N",
    help="Number of jobs that the regret is measured with; 0: no regret.",
)
@click.option("--mix", metavar="FILE", help="JSON file with the ranges that jobs are drawn from.")
@click.option(
    "--markets-count",
    type=click.IntRange(min=1, max=1000),
    default=1,
    metavar="N",
    help="Markets of each synthetic kind, with the seeds --seed, --seed + 1, ...",
)
@click.option("--csv", metavar="FILE", help="Write one row for each forecaster and horizon.")
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
    """Score forecasters on recorded or synthetic markets.

    Each forecaster forecasts in every slot after the warm-up, from the slots before it. Skill is
    the share of persistence's pinball loss that it avoids. Regret is how much less AHAP earns with
    its forecasts than with perfect ones.
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
    day = max(1, round(24 / traces[0].slot_hours))
    sources = named or _sources(f"last,seasonal:{day},combined,markov", seed)
    hours = checked_horizons(hours, traces, warm_up)
    result = _play(sources, traces, hours, warm_up=warm_up, jobs=jobs, mix=drawn_from, seed=seed)
    if rows is not None:
        with whole_file(rows, "--csv") as part, part.open("w", encoding="utf-8") as file:
            write_scores(result, file)
    if target is not None:
        plots.save_figure(backtest_figure(result), target)
    if as_json:
        print_answer(_document(result, traces, seed))
    else:
        _show(result, traces, rows, target)


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
    """Run the backtest with a progress bar, and print its duration on standard error."""
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


def _show(result: Backtest, traces: Sequence[MarketTrace], *written: Path | None) -> None:
    from rich.markup import escape

    from duetune.cli import tables
    from duetune.simulate.backtest.standings import Quantity
    from duetune.simulate.summary import dollars

    screen = tables.console()
    scored = sum(trace.slots - round(result.warm_up * trace.slots) for trace in traces)
    screen.print(
        f"{tables.names_words([trace.name for trace in traces])}: {scored:,} slots "
        f"after a warm-up of {result.warm_up:.0%}"
    )
    screen.print()
    board = tables.new_table(
        *("forecaster", "skill", "avail", "price", "90% range holds: avail", "price "),
        *("regret", "% of utility"),
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
        (Quantity.SPOT_PRICE, "Spot price, $ per GPU-hour", 3),
    ):
        screen.print()
        screen.print(title)
        screen.print()
        table = tables.new_table(
            *("forecaster", "hours", "MAE", "pinball", "90% range holds", "skill", "p"),
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
    tables.print_written(*written)


def _sentence(result: Backtest) -> str:
    words = (
        "Skill: share of persistence's pinball loss that is avoided. 90% range holds: share of "
        "values inside the range. p: p-value of no difference from persistence."
    )
    if result.perfect_utility is None:
        return words
    return (
        f"{words} Regret: how much less {result.policy} earns per job than with a perfect "
        f"forecast, mean of {result.jobs:,} jobs."
    )


def _chance(p_value: float | None) -> str:
    if p_value is None:
        return "-"
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"

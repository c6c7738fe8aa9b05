"""``duetune tournament``: many policies on many jobs, ranked by mean utility."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetune.cli.case_options import case_options
from duetune.cli.context import print_answer
from duetune.cli.json_output import JsonDocument, MarketNote
from duetune.cli.options import forecast_option, market_options, run_options
from duetune.registry.markets import forecast_named
from duetune.registry.policies import policies_named

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.cli.case_options import CaseOptions
    from duetune.cli.options import MarketOptions
    from duetune.simulate.summary import Standing


class PolicyRanking(JsonDocument, frozen=True, kw_only=True):
    """The answer of ``--json``.

    ``standings`` has the best policy first. ``mean_optimum`` is null with --no-optimum.
    """

    forecast: str
    markets: tuple[MarketNote, ...]
    jobs: int
    policy_slots: int
    mean_optimum: float | None
    standings: tuple[Standing, ...]


@click.command()
@click.option(
    "--policies",
    default="baselines,ahanp,ahap",
    metavar="NAMES",
    help="Policies and groups, separated by commas; 'duetune policies' lists them.",
)
@forecast_option
@case_options(jobs=200)
@click.option(
    "--optimum/--no-optimum", default=True, help="Whether to compute the optimum of every job."
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=15,
    metavar="N",
    help="Show the best N policies and the baselines; 0: all.",
)
@click.option("--csv", metavar="FILE", help="Write one row for each policy and job.")
@market_options
@run_options
def tournament(
    policies: str,
    forecast: str,
    drawn: CaseOptions,
    top: int,
    csv: str | None,
    market: MarketOptions,
    seed: int,
    plot: str | None,
    *,
    optimum: bool,
    as_json: bool,
) -> None:
    """Simulate many policies on many jobs, and rank them by mean utility per job."""
    from duetune import plots
    from duetune.files import checked_target, whole_file
    from duetune.simulate.summary import standings, write_rows

    target = None if plot is None else plots.checked_plot(plot, "--plot")
    rows = None if csv is None else checked_target(csv, "--csv", (".csv",))
    chosen = policies_named(policies)
    source = forecast_named(forecast, seed=seed)
    cases, markets = drawn.draw(market, seed)
    result = drawn.play(chosen, cases, markets, source, optimum=optimum)
    document = PolicyRanking(
        command="tournament",
        seed=seed,
        forecast=str(source),
        markets=tuple(MarketNote.of(trace) for trace in markets),
        jobs=len(cases),
        policy_slots=result.policy_slots,
        mean_optimum=None if result.upper_bound is None else float(result.upper_bound.mean()),
        standings=standings(result),
    )
    if rows is not None:
        with whole_file(rows, "--csv") as part, part.open("w", encoding="utf-8") as file:
            write_rows(result, cases, file)
    if target is not None:
        figure = plots.policies_figure(
            document.standings, optimum=document.mean_optimum, jobs=document.jobs
        )
        plots.save_figure(figure, target)
    if as_json:
        print_answer(document)
    else:
        _show(document, top, rows, target)


def _show(document: PolicyRanking, top: int, *written: Path | None) -> None:
    from rich.markup import escape

    from duetune.cli import tables
    from duetune.simulate.summary import BASELINES, dollars

    screen = tables.console()
    names = tables.names_words([market.name for market in document.markets])
    screen.print(f"{document.jobs:,} jobs on {names}; forecast {document.forecast}")
    table = tables.new_table(
        *(
            "policy",
            "mean utility",
            "% of optimum",
            "gap closed",
            "mean cost",
            "on time",
            "on spot",
        ),
        left=("policy",),
    )
    if document.mean_optimum is not None:
        best = dollars(document.mean_optimum)
        table.add_row("offline optimum", best, "100.0%", "100.0%", "", "", "", style="dim")
    shown = [
        row
        for place, row in enumerate(document.standings)
        if not top or place < top or row.policy in BASELINES
    ]
    for row in shown:
        table.add_row(
            escape(row.policy),
            dollars(row.mean_utility),
            tables.percent(row.fraction_of_optimum),
            tables.percent(row.gap_closed),
            dollars(row.mean_cost),
            tables.percent(row.on_time),
            tables.percent(row.spot_share),
        )
    screen.print()
    screen.print(table)
    screen.print()
    screen.print(
        "Means per job. Gap closed: share of the distance from the best baseline to the optimum. "
        "On spot: share of the GPU-slots that were spot."
    )
    hidden = len(document.standings) - len(shown)
    if hidden:
        screen.print(f"{hidden} policies are not shown: --top 0 shows all, --csv writes every job.")
    tables.print_written(*written)

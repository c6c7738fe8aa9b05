"""``duetune select``: learn over many jobs which policy of a pool to choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetune.cli.case_options import case_options
from duetune.cli.context import print_answer
from duetune.cli.json_output import JsonDocument, MarketNote
from duetune.cli.options import forecast_option, market_options, run_options
from duetune.registry.markets import forecast_named
from duetune.registry.policies import policies_named, selector_named

if TYPE_CHECKING:
    from duetune.cli.case_options import CaseOptions
    from duetune.cli.options import MarketOptions
    from duetune.simulate.summary import SelectionSummary

DOLLARS = "$"
SHARES = "share of a job's range"


class Selection(JsonDocument, frozen=True, kw_only=True):
    """The answer of ``--json``. ``unit`` is that of ``summary.regret`` and ``summary.bound``."""

    forecast: str
    markets: tuple[MarketNote, ...]
    jobs: int
    selector: str
    policies: int
    unit: str
    summary: SelectionSummary


@click.command()
@click.option(
    "--selector",
    default="adahedge",
    metavar="NAME",
    help="The learning method: hedge, adahedge or fixed_share[:MEMORY].",
)
@click.option(
    "--policies",
    "names",
    default="pool",
    metavar="NAMES",
    help="Policies and groups to choose from, separated by commas.",
)
@forecast_option
@case_options(jobs=1000)
@market_options
@run_options
def select(
    selector: str,
    names: str,
    forecast: str,
    drawn: CaseOptions,
    market: MarketOptions,
    seed: int,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """Learn over many jobs which policy of a pool to choose for the next job.

    After each job, every policy of the pool is simulated on the market as it really was.
    """
    import numpy as np

    from duetune import plots
    from duetune.cli import tables
    from duetune.policies.select import Hedge, run_selection
    from duetune.simulate.summary import case_ranges, selection_summary

    target = None if plot is None else plots.checked_plot(plot, "--plot")
    pool = policies_named(names)
    learner = selector_named(selector, len(pool), jobs=drawn.jobs)
    source = forecast_named(forecast, seed=seed)
    cases, markets = drawn.draw(market, seed)
    known = {policy.name for policy in pool}
    rivals = [each for each in policies_named("baselines") if each.name not in known]
    result = drawn.play([*pool, *rivals], cases, markets, source, optimum=False)
    # Hedge learns from utilities scaled to each job's range, the other selectors from dollars.
    ranges = case_ranges(cases, markets) if isinstance(learner, Hedge) else None
    choices = np.random.default_rng((seed, 1))  # independent of the draws of the jobs
    run = run_selection(result.utility[:, : len(pool)], learner, choices, ranges=ranges)
    document = Selection(
        command="select",
        seed=seed,
        forecast=str(source),
        markets=tuple(MarketNote.of(trace) for trace in markets),
        jobs=len(cases),
        selector=selector,
        policies=len(pool),
        unit=DOLLARS if ranges is None else SHARES,
        summary=selection_summary(run, result),
    )
    if target is not None:
        title = f"{selector} over {len(pool)} policies: weights over jobs"
        names_of_pool = result.policies[: len(pool)]
        figure = plots.selection_figure(run, names_of_pool, unit=document.unit, title=title)
        plots.save_figure(figure, target)
    if as_json:
        print_answer(document)
        return
    _show(document)
    tables.print_written(target)


def _show(document: Selection) -> None:
    from rich.markup import escape

    from duetune.cli import tables
    from duetune.simulate.summary import dollars, fraction

    screen, summary = tables.console(), document.summary
    screen.print(
        f"{document.selector} chose from {document.policies} policies for {document.jobs:,} jobs "
        f"on {len(document.markets)} markets; forecast {document.forecast}"
    )
    best = summary.best_fixed
    table = tables.new_table(
        *("", "mean utility", "% of best fixed", "last fifth", "mean cost", "on time"), left=("",)
    )
    rows = [("selected", summary.selected), (f"best fixed: {best.name}", best)]
    rows += [(f"baseline: {row.name}", row) for row in summary.baselines]
    for name, row in rows:
        table.add_row(
            escape(name),
            dollars(row.mean_utility),
            tables.percent(fraction(row.mean_utility, best.mean_utility)),
            dollars(row.late_utility),
            dollars(row.mean_cost),
            tables.percent(row.on_time),
        )
    screen.print()
    screen.print(table)
    screen.print()
    slope = "" if summary.slope is None else f", slope {summary.slope:.2f} on log-log axes"
    if document.unit == DOLLARS:
        regret = f"{dollars(summary.regret)}; bound {dollars(summary.bound)}"
    else:
        regret = f"{summary.regret:.2f}; bound {summary.bound:.2f} ({document.unit})"
    screen.print(f"Regret against the best fixed policy: {regret}{slope}.")
    weights = ", ".join(
        f"{each.policy} {each.weight:.1%}" for each in summary.weights if each.weight >= 0.0005
    )
    screen.print(f"Weights now: {escape(weights)}.")

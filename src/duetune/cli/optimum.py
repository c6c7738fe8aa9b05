"""``duetune optimum``: the best plan for a market that is known in advance."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from duetune.cli.context import print_answer
from duetune.cli.job_options import job_options
from duetune.cli.json_output import JsonDocument, MarketNote
from duetune.cli.options import market_options, run_options

if TYPE_CHECKING:
    from duetune.cli.job_options import JobOptions
    from duetune.cli.options import MarketOptions
    from duetune.core.job import Job
    from duetune.core.market import MarketTrace
    from duetune.policies.solve.optimum import Optimum


class Optima(JsonDocument, frozen=True, kw_only=True):
    """The answer of ``--json``, with one entry per method.

    ``gaps`` are upper bounds on the distance to the true optimum, in dollars.
    """

    market: MarketNote
    start: int
    job: Job
    optima: tuple[Optimum, ...]
    gaps: tuple[float, ...]


@click.command()
@click.option(
    "--method",
    type=click.Choice(["dynamic", "milp", "both"]),
    default="dynamic",
    help="Dynamic program, mixed-integer program (HiGHS), or both.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    metavar="SECONDS",
    help="Time limit of the mixed-integer program.",
)
@market_options
@job_options
@run_options
def optimum(
    method: str,
    time_limit: float,
    market: MarketOptions,
    wanted: JobOptions,
    seed: int,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """Compute the plan with the highest utility for a market that is known in advance.

    Also prints an upper bound that no plan can exceed. The dynamic program is exact if a progress
    grid of at most 20,000 steps divides all amounts of work; otherwise the gap is shown.
    """
    from duetune import plots
    from duetune.cli import tables
    from duetune.policies.solve.dynamic import offline_optimum
    from duetune.policies.solve.milp import milp_optimum
    from duetune.simulate.summary import replay

    target = None if plot is None else plots.checked_plot(plot, "--plot")
    job, trace, start = wanted.on(market, seed)
    window = trace.window(start, job.hard_deadline)
    optima = []
    for name in ("dynamic", "milp"):
        if method in {name, "both"}:
            began = time.perf_counter()
            optima.append(
                offline_optimum(job, window)
                if name == "dynamic"
                else milp_optimum(job, window, time_limit_s=time_limit)
            )
            click.echo(f"{name}: {time.perf_counter() - began:.3f} s", err=True)
    document = Optima(
        command="optimum",
        seed=seed,
        market=MarketNote.of(trace),
        start=start,
        job=job,
        optima=tuple(optima),
        gaps=tuple(found.gap for found in optima),
    )
    if target is not None:
        outcome = replay(optima[0], job, trace, start=start)
        plots.save_figure(plots.allocation_figure(outcome, job, trace, start=start), target)
    if as_json:
        print_answer(document)
        return
    _show(document, trace)
    tables.print_written(target)


def _show(document: Optima, trace: MarketTrace) -> None:
    from duetune.cli import tables
    from duetune.simulate.summary import dollars, replay

    screen, job = tables.console(), document.job
    screen.print(tables.job_words(job))
    screen.print(tables.market_words(trace, document.start))
    plan = replay(document.optima[0], job, trace, start=document.start)
    screen.print()
    screen.print(tables.slot_table(plan, job, trace, width=screen.width))
    screen.print()
    table = tables.new_table(
        *("method", "finished", "cost", "utility", "upper bound", "gap"),
        left=("method", "finished"),
    )
    for found in document.optima:
        table.add_row(
            found.method,
            tables.finished_words(found.finished, job),
            dollars(found.cost),
            dollars(found.utility),
            dollars(found.upper_bound),
            _small(found.gap),
        )
    screen.print(table)
    screen.print()
    if len(document.optima) == 2:
        apart = abs(document.optima[0].utility - document.optima[1].utility)
        screen.print(f"The two utilities differ by {_small(apart)}.")


def _small(amount: float) -> str:
    """Return dollars that may be far below a cent; rounding errors count as zero."""
    if amount >= 0.01:
        return f"${amount:,.2f}"
    return f"${amount:.2g}" if amount >= 1e-6 else "$0"

"""``duetune simulate``: one job, slot by slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetune.cli.context import print_answer
from duetune.cli.job_options import job_options
from duetune.cli.json_output import JsonDocument, MarketNote
from duetune.cli.options import forecast_option, market_options, run_options
from duetune.registry.markets import forecast_named
from duetune.registry.policies import policy_named

if TYPE_CHECKING:
    from duetune.cli.job_options import JobOptions
    from duetune.cli.options import MarketOptions
    from duetune.core.job import Job
    from duetune.core.ledger import Outcome
    from duetune.core.market import MarketTrace


class SimulationAnswer(JsonDocument, frozen=True, kw_only=True):
    """The answer of ``--json``.

    ``optimum`` and ``on_demand`` are runs of the same job. No run has a utility above
    ``upper_bound``.
    """

    forecast: str
    market: MarketNote
    start: int
    job: Job
    outcome: Outcome
    fraction_of_optimum: float | None
    upper_bound: float
    optimum: Outcome
    on_demand: Outcome


@click.command()
@click.option(
    "--policy",
    default="ahap",
    metavar="NAME",
    help="The policy; 'duetune policies' lists them.",
)
@forecast_option
@market_options
@job_options
@run_options
def simulate(
    policy: str,
    forecast: str,
    market: MarketOptions,
    wanted: JobOptions,
    seed: int,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """Simulate one job slot by slot, with the reason for each decision.

    The last table compares the run with the optimum, which knows the market, and with on-demand
    GPUs only.
    """
    from duetune import plots
    from duetune.cli import tables
    from duetune.policies.solve.dynamic import offline_optimum
    from duetune.simulate.episode import simulate as run
    from duetune.simulate.summary import fraction, replay

    target = None if plot is None else plots.checked_plot(plot, "--plot")
    chosen = policy_named(policy)
    source = forecast_named(forecast, seed=seed)
    job, trace, start = wanted.on(market, seed)
    best = offline_optimum(job, trace.window(start, job.hard_deadline))
    document = SimulationAnswer(
        command="simulate",
        seed=seed,
        forecast=str(source),
        market=MarketNote.of(trace),
        start=start,
        job=job,
        outcome=(outcome := run(job, trace, chosen, source, start=start)),
        fraction_of_optimum=fraction(outcome.utility, best.upper_bound),
        upper_bound=best.upper_bound,
        optimum=replay(best, job, trace, start=start),
        on_demand=run(job, trace, policy_named("on_demand"), source, start=start),
    )
    if target is not None:
        plots.save_figure(plots.allocation_figure(outcome, job, trace, start=start), target)
    if as_json:
        print_answer(document)
        return
    _show(document, trace)
    tables.print_written(target)


def _show(document: SimulationAnswer, trace: MarketTrace) -> None:
    from duetune.cli import tables
    from duetune.simulate.summary import dollars

    screen, job, outcome = tables.console(), document.job, document.outcome
    screen.print(tables.job_words(job))
    screen.print(tables.market_words(trace, document.start) + f", forecast {document.forecast}")
    screen.print()
    screen.print(tables.slot_table(outcome, job, trace, width=screen.width))
    screen.print()
    runs = (outcome, document.optimum, document.on_demand)
    screen.print(tables.outcome_table(runs, job, document.upper_bound))
    if document.upper_bound > document.optimum.utility + 0.005:
        bound = dollars(document.upper_bound)
        screen.print(f"The optimum is not exact here; no plan can exceed {bound}.")
    screen.print()
    dearer = document.on_demand.cost
    if outcome.on_time and document.on_demand.on_time and outcome.cost != dearer:
        saved = dearer - outcome.cost
        words = "less" if saved >= 0 else "more"
        amount = f"{dollars(abs(saved))} ({abs(saved) / dearer:.0%}) {words}"
        screen.print(f"{outcome.policy} costs {amount} than on-demand only.")

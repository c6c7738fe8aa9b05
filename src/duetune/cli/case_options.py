"""Options for drawing many jobs on several markets, for ``tournament`` and ``select``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.json_output import read_document
from duetune.cli.options import bundle
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.cli.options import Decorator, MarketOptions
    from duetune.core.market import MarketTrace
    from duetune.core.ports import Policy
    from duetune.market.forecast.forecast_source import ForecastSource
    from duetune.simulate.cases import Case
    from duetune.simulate.tournament import Tournament

MAX_MARKETS = 1000


class CaseOptions(msgspec.Struct, frozen=True):
    """The number of jobs, what they are drawn from, and the number of markets and threads."""

    jobs: int
    mix: str | None
    markets_count: int
    workers: int | None

    def draw(
        self, market: MarketOptions, seed: int
    ) -> tuple[tuple[Case, ...], tuple[MarketTrace, ...]]:
        """Draw the jobs, and return them with the markets they run on."""
        import numpy as np

        from duetune.simulate.cases import JobMix, draw_cases

        if self.jobs < 1:
            raise InvalidInput("jobs", self.jobs, "1 or more")
        if not 1 <= self.markets_count <= MAX_MARKETS:
            raise InvalidInput("markets_count", self.markets_count, f"1 to {MAX_MARKETS:,}")
        mix = JobMix() if self.mix is None else read_document(self.mix, JobMix, "mix")
        markets = market.several(seed, count=self.markets_count, slots=mix.longest())
        return draw_cases(mix, markets, self.jobs, np.random.default_rng(seed)), markets

    def play(
        self,
        policies: Sequence[Policy],
        cases: Sequence[Case],
        markets: Sequence[MarketTrace],
        source: ForecastSource,
        *,
        optimum: bool,
    ) -> Tournament:
        """Simulate all policies on all jobs with a progress bar; print the speed."""
        from duetune.cli.tables import counting_bar
        from duetune.simulate.tournament import run_tournament

        with counting_bar() as progress:
            task = progress.add_task("compiling", total=len(cases))
            # Compile on one case first: the printed speed is that of the tournament alone.
            run_tournament(policies, cases[:1], markets, source, optimum=optimum, workers=1)
            progress.update(task, description=f"{len(policies)} policies")
            began = time.perf_counter()
            result = run_tournament(
                policies,
                cases,
                markets,
                source,
                optimum=optimum,
                workers=self.workers,
                advance=lambda done: progress.advance(task, done),
            )
            seconds = time.perf_counter() - began
        rate = result.policy_slots / seconds
        extra = ", including the optimum of every job" if optimum else ""
        count = f"{result.policy_slots:,} policy-slots in {seconds:.2f} s"
        click.echo(f"{count}: {rate:,.0f} per second{extra}", err=True)
        return result


def case_options(jobs: int) -> Decorator:
    """Return the decorator that adds these options, with ``jobs`` as the default number of jobs."""
    return bundle(
        CaseOptions,
        "drawn",
        click.option(
            "--jobs",
            type=int,
            default=jobs,
            metavar="N",
            help="Number of jobs to draw.",
        ),
        click.option(
            "--mix",
            metavar="FILE",
            help="JSON file with the ranges that jobs are drawn from: deadline, max_gpus, ...",
        ),
        click.option(
            "--markets-count",
            type=int,
            default=8,
            metavar="N",
            help="Markets of each synthetic kind, with the seeds --seed, --seed + 1, ...",
        ),
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            metavar="N",
            help="Number of threads.  [default: one per core]",
        ),
    )

"""Many jobs on several markets: what ``tournament`` and ``select`` have in common."""

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
    """How many jobs, drawn how, on how many markets, on how many cores."""

    jobs: int
    mix: str | None
    markets_count: int
    workers: int | None

    def draw(
        self, market: MarketOptions, seed: int
    ) -> tuple[tuple[Case, ...], tuple[MarketTrace, ...]]:
        """The jobs and the markets they run on."""
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
        """Run them with a bar on the terminal, and say on standard error how fast it went."""
        from duetune.cli.tables import counting_bar
        from duetune.simulate.tournament import run_tournament

        with counting_bar() as progress:
            task = progress.add_task("compiling", total=len(cases))
            # One case beforehand, so that what is timed is the tournament and not the compiler.
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
        extra = ", the optima of all jobs included" if optimum else ""
        count = f"{result.policy_slots:,} policy-slots in {seconds:.2f} s"
        click.echo(f"{count}: {rate:,.0f} per second{extra}", err=True)
        return result


def case_options(jobs: int) -> Decorator:
    """The options, with the default number of jobs."""
    return bundle(
        CaseOptions,
        "drawn",
        click.option(
            "--jobs", type=int, default=jobs, show_default=True, help="How many jobs to draw."
        ),
        click.option(
            "--mix",
            metavar="FILE",
            help="What jobs are drawn from, as JSON: ranges of deadline, tightness, max_gpus, ...",
        ),
        click.option(
            "--markets-count",
            type=int,
            default=8,
            show_default=True,
            help="Markets of each synthetic kind, with seeds from --seed on.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            help="Threads.  [default: one per core]",
        ),
    )

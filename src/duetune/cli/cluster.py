"""``duetune cluster``: the group, ``cluster simulate`` and ``cluster planners``.

``cluster_compare`` has the third command, ``cluster_options`` the options of both simulations.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from duetune.cli.catalogue import print_listing
from duetune.cli.cluster_compare import compare
from duetune.cli.cluster_options import (
    WorldNote,
    cluster_options,
    cluster_words,
    counted,
    known_or_dash,
    world_note,
    world_words,
)
from duetune.cli.context import print_answer
from duetune.cli.json_output import JsonDocument
from duetune.cli.options import run_options

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.cli.cluster_options import ClusterOptions
    from duetune.simulate.cluster.cluster_outcome import Figures


class _InOrder(click.Group):
    """A group that lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder)
def cluster() -> None:
    """Simulate many jobs on one cluster of GPUs, and compare planners.

    A planner decides which job gets which GPUs. A source of configuration knowledge tells it how
    fast each job would run.

    \b
    duetune cluster simulate --planner sia --source hybrid --plot day.png
    duetune cluster compare --planners fifo,sia --sources random,hybrid --load 12,24,60
    duetune cluster planners
    """


class ClusterRun(JsonDocument, frozen=True, kw_only=True):
    """The answer of ``cluster simulate --json``. Times in ``figures`` are in hours."""

    planner: str
    source: str
    world: WorldNote
    gpus: int
    arrivals: str
    figures: Figures


@cluster.command()
@click.option(
    "--planner",
    default="tutti",
    metavar="NAME",
    help="The planner; 'duetune cluster planners' lists them.",
)
@click.option(
    "--source",
    metavar="NAME",
    help="The source of configuration knowledge that the planner uses.  "
    "[default: hybrid; oracle with --paces]",
)
@click.option(
    "--load",
    type=float,
    metavar="JOBS/H",
    help="Jobs submitted per hour; rescales the arrivals of a workload file.  [default: 24]",
)
@cluster_options
@click.option("--csv", metavar="FILE", help="Write one row for each job.")
@click.option("--trace", metavar="FILE", help="Write one line of JSON for each planning round.")
@click.option(
    "--jobs-csv", metavar="FILE", help="Write the jobs, to repeat the run with --workload."
)
@run_options
def simulate(
    planner: str,
    source: str | None,
    load: float | None,
    site: ClusterOptions,
    csv: str | None,
    trace: str | None,
    jobs_csv: str | None,
    seed: int,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """Simulate one planner with one source of knowledge on a cluster."""
    from duetune import plots
    from duetune.cli.context import waiting
    from duetune.files import checked_target, whole_file
    from duetune.plots.cluster_figures import cluster_figure
    from duetune.registry.clusters import world_source
    from duetune.registry.planners import planner_named
    from duetune.simulate.cluster.cluster_outcome import write_jobs, write_rounds
    from duetune.simulate.cluster.workload_files import write_workload

    target = None if plot is None else plots.checked_plot(plot, "--plot")
    per_job = None if csv is None else checked_target(csv, "--csv", (".csv",))
    rounds = None if trace is None else checked_target(trace, "--trace", (".jsonl",))
    published = None if jobs_csv is None else checked_target(jobs_csv, "--jobs-csv", (".csv",))
    site.check_apart(
        {"--csv": per_job, "--trace": rounds, "--jobs-csv": published, "--plot": target}
    )
    source = source or ("hybrid" if site.paces is None else "oracle")
    chosen = planner_named(planner)
    found = site.build(seed, [source.strip()])
    jobs, arrivals = site.draw(found, load, seed)
    known = world_source(source, found.world, seed=seed)
    with waiting(f"{counted(len(jobs), 'job')} by {chosen.name} with {known.name}"):
        outcome = found.simulate(jobs, chosen, known, learning=site.learn)
    document = ClusterRun(
        command="cluster simulate",
        seed=seed,
        planner=chosen.name,
        source=source,
        world=world_note(found),
        gpus=int(found.stock.capacity.sum()),
        arrivals=arrivals,
        figures=outcome.figures(),
    )
    names = [each.name for each in found.stock.partitions]
    title = f"{chosen.name} with {source} ({document.world.how})"
    # The plot is drawn before any file is written: if it fails, no file is written.
    figure = None if target is None else cluster_figure(outcome, names, title=title)
    for path, field in ((per_job, "--csv"), (rounds, "--trace"), (published, "--jobs-csv")):
        if path is None:
            continue
        with whole_file(path, field) as part, part.open("w", encoding="utf-8", newline="") as file:
            if path is per_job:
                write_jobs(outcome, found.world.how, file)
            elif path is rounds:
                write_rounds(outcome, found.world.how, names, file)
            else:
                write_workload(jobs, file)
    if target is not None and figure is not None:
        plots.save_figure(figure, target)
    if as_json:
        print_answer(document)
        return
    click.echo(cluster_words(found))
    click.echo(f"{counted(len(jobs), 'job')}, {arrivals}; {chosen.name} with {source}")
    click.echo(world_words(document.world))
    _show(document.figures)
    _written((("Jobs", per_job), ("Rounds", rounds), ("Workload", published), ("Plot", target)))


cluster.add_command(compare)


@cluster.command()
def planners() -> None:
    """List the planners, and the sources of knowledge that they can use."""
    from duetune.registry.planners import planners_listed
    from duetune.registry.sources import sources_listed

    print_listing("Planners (simulate --planner, compare --planners)", planners_listed())
    print_listing("Sources (simulate --source, compare --sources)", sources_listed())


def _show(figures: Figures) -> None:
    from duetune.cli.tables import console, new_table, percent
    from duetune.simulate.summary import dollars

    each = figures
    hours = "{:.2f} h"
    table = new_table("", "mean", "median", "99%", left=("",))
    table.add_row(
        "job completion time",
        known_or_dash(each.mean_jct_h, hours),
        known_or_dash(each.median_jct_h, hours),
        known_or_dash(each.p99_jct_h, hours),
    )
    table.add_row("GPU-hours per job", f"{each.gpu_hours_per_job:.2f}", "", "")
    queued = known_or_dash(each.mean_queued_h, hours)
    table.add_row("wait before the first start", queued, "", "")
    table.add_row("out-of-memory starts per job", f"{each.failures_per_job:.2f}", "", "")
    table.add_row("restarts per job", f"{each.restarts_per_job:.2f}", "", "")
    if each.evictions_per_job:
        table.add_row("evictions by the market per job", f"{each.evictions_per_job:.2f}", "", "")
    table.add_row("GPUs in use", percent(each.utilisation), "", "")
    screen = console()
    screen.print()
    screen.print(table)
    screen.print()
    words = [f"All jobs finished after {each.makespan_h:.1f} h and cost {dollars(each.dollars)}."]
    if each.unserved:
        words = [_undone(each), f"All jobs together cost {dollars(each.dollars)}."]
    if each.missed is not None:
        words.append(f"{percent(each.missed)} of the deadlines were missed.")
    if not math.isnan(each.unfair):
        words.append(
            f"{percent(each.unfair)} of the jobs took longer than with an equal share of the "
            f"cluster; the slowest took {each.fairness:.1f} times as long."
        )
    screen.print(" ".join(words))


def _undone(figures: Figures) -> str:
    from duetune.simulate.cluster.rounds import GIVEN_UP_DAYS

    of = f"{figures.unserved:,} of {counted(figures.jobs, 'job')}"
    return (
        f"{of} never finished: the source knows no configuration that fits, the project's quota is "
        f"too small, or the simulation ended after {GIVEN_UP_DAYS} days."
    )


def _written(paths: tuple[tuple[str, Path | None], ...]) -> None:
    for what, path in paths:
        if path is not None:
            click.echo(f"{what}: {path}")

"""``duetune cluster simulate``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from duetune.cli.cluster_options import (
    WorldNote,
    cluster_options,
    cluster_words,
    counted,
    known_or_dash,
    world_note,
    world_words,
)
from duetune.cli.json_output import JsonDocument, print_document
from duetune.cli.options import run_options

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.cli.cluster_options import ClusterOptions
    from duetune.simulate.cluster.cluster_outcome import Figures


class ClusterRun(JsonDocument, frozen=True, kw_only=True):
    """Times of ``figures`` are in hours."""

    planner: str
    source: str
    world: WorldNote
    gpus: int
    arrivals: str
    figures: Figures


@click.command()
@click.option(
    "--planner", default="tutti", show_default=True, help="See 'duetune cluster planners'."
)
@click.option("--source", default="hybrid", show_default=True, help="What planners are told by.")
@click.option("--load", type=float, metavar="JOBS/H", help="How often jobs come.  [default: 24]")
@cluster_options
@click.option("--csv", metavar="FILE", help="Write what became of every job.")
@click.option("--trace", metavar="FILE", help="Write every round, as lines of JSON.")
@click.option("--jobs-csv", metavar="FILE", help="Write the jobs, so that --workload repeats them.")
@run_options
def simulate(
    planner: str,
    source: str,
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
    """One planner with one source of knowledge on a cluster."""
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
    chosen = planner_named(planner)
    cluster = site.build(seed, [source.strip()])
    jobs, arrivals = site.draw(cluster, load, seed)
    known = world_source(source, cluster.world, seed=seed)
    with waiting(f"{counted(len(jobs), 'job')} by {chosen.name} with {known.name}"):
        outcome = cluster.simulate(jobs, chosen, known, learning=site.learn)
    document = ClusterRun(
        command="cluster simulate",
        seed=seed,
        planner=chosen.name,
        source=source,
        world=world_note(cluster),
        gpus=int(cluster.stock.capacity.sum()),
        arrivals=arrivals,
        figures=outcome.figures(),
    )
    names = [each.name for each in cluster.stock.partitions]
    title = f"{chosen.name} with {source} ({document.world.how})"
    # Drawn before anything is written: all files are there, or none.
    figure = None if target is None else cluster_figure(outcome, names, title=title)
    for path, field in ((per_job, "--csv"), (rounds, "--trace"), (published, "--jobs-csv")):
        if path is None:
            continue
        with whole_file(path, field) as part, part.open("w", encoding="utf-8", newline="") as file:
            if path is per_job:
                write_jobs(outcome, cluster.world.how, file)
            elif path is rounds:
                write_rounds(outcome, cluster.world.how, names, file)
            else:
                write_workload(jobs, file)
    if target is not None and figure is not None:
        plots.save_figure(figure, target)
    if as_json:
        print_document(document)
        return
    click.echo(cluster_words(cluster))
    click.echo(f"{counted(len(jobs), 'job')}, {arrivals}; {chosen.name} with {source}")
    click.echo(world_words(document.world))
    _show(document.figures)
    _written((("Jobs", per_job), ("Rounds", rounds), ("Workload", published), ("Plot", target)))


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
    queued = known_or_dash(each.mean_queued_h, hours)
    table.add_row("waited for the first start", queued, "", "")
    table.add_row("GPU-hours of a job", f"{each.gpu_hours_per_job:.2f}", "", "")
    table.add_row("starts that ran out of memory", f"{each.failures_per_job:.2f}", "", "")
    table.add_row("restarts of a job", f"{each.restarts_per_job:.2f}", "", "")
    if each.evictions_per_job:
        table.add_row("evicted by the market", f"{each.evictions_per_job:.2f}", "", "")
    table.add_row("GPUs in use", percent(each.utilisation), "", "")
    screen = console()
    screen.print()
    screen.print(table)
    screen.print()
    words = [f"All done after {each.makespan_h:.1f} h for {dollars(each.dollars)}."]
    if each.unserved:
        words = [_undone(each), f"{dollars(each.dollars)} were spent."]
    if each.missed is not None:
        words.append(f"{percent(each.missed)} of the deadlines were missed.")
    if not math.isnan(each.unfair):
        words.append(
            f"{percent(each.unfair)} of the jobs took longer than with an even share of the "
            f"cluster; the worst {each.fairness:.1f} times."
        )
    screen.print(" ".join(words))


def _undone(figures: Figures) -> str:
    from duetune.simulate.cluster.rounds import GIVEN_UP_DAYS

    of = f"{figures.unserved:,} of {counted(figures.jobs, 'job')}"
    if figures.unserved == 1:
        return (
            f"{of} was never done: nothing fits it that the source believes in, its project's "
            f"quota forbids it, or it was given up after {GIVEN_UP_DAYS} days."
        )
    return (
        f"{of} were never done: nothing fits them that the source believes in, their project's "
        f"quota forbids it, or they were given up after {GIVEN_UP_DAYS} days."
    )


def _written(paths: tuple[tuple[str, Path | None], ...]) -> None:
    for what, path in paths:
        if path is not None:
            click.echo(f"{what}: {path}")

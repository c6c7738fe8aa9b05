"""``duetune cluster simulate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetune.cli.cluster_options import (
    WorldNote,
    cluster_options,
    cluster_words,
    world_note,
    world_words,
)
from duetune.cli.documents import Document, print_document
from duetune.cli.options import run_options

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.cli.cluster_options import ClusterOptions
    from duetune.cluster.outcome import Figures


class ClusterRun(Document, frozen=True, kw_only=True):
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
    from duetune.bootstrap.clusters import world_source
    from duetune.bootstrap.planners import planner_named
    from duetune.cli.home import waiting
    from duetune.cluster.outcome_files import write_jobs, write_rounds
    from duetune.cluster.workload_files import write_workload
    from duetune.simulate import plots
    from duetune.simulate.plots_cluster import cluster_figure
    from duetune.simulate.summary_files import checked_target, whole_file

    target = None if plot is None else plots.checked_plot(plot, "--plot")
    per_job = None if csv is None else checked_target(csv, "--csv", (".csv",))
    rounds = None if trace is None else checked_target(trace, "--trace", (".jsonl",))
    published = None if jobs_csv is None else checked_target(jobs_csv, "--jobs-csv", (".csv",))
    chosen = planner_named(planner)
    cluster = site.build(seed, [source.strip()])
    jobs, arrivals = site.draw(cluster, load, seed)
    known = world_source(source, cluster.world, seed=seed)
    with waiting(f"{len(jobs)} jobs by {chosen.name} with {known.name}"):
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
    if target is not None:
        title = f"{chosen.name} with {source} ({document.world.how})"
        plots.save_figure(cluster_figure(outcome, names, title=title), target)
    if as_json:
        print_document(document)
        return
    click.echo(cluster_words(cluster))
    click.echo(f"{len(jobs):,} jobs, {arrivals}; {chosen.name} with {source}")
    click.echo(world_words(document.world))
    _show(document.figures)
    _written((("Jobs", per_job), ("Rounds", rounds), ("Workload", published), ("Plot", target)))


def _show(figures: Figures) -> None:
    from duetune.cli.tables import console, new_table, percent
    from duetune.simulate.summary import dollars

    each = figures
    table = new_table("", "mean", "median", "99%", left=("",))
    table.add_row(
        "job completion time",
        f"{each.mean_jct_h:.2f} h",
        f"{each.median_jct_h:.2f} h",
        f"{each.p99_jct_h:.2f} h",
    )
    table.add_row("waited for the first start", f"{each.mean_queued_h:.2f} h", "", "")
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
    done = f"All done after {each.makespan_h:.1f} h for {dollars(each.dollars)}."
    if each.unserved:
        done = (
            f"{each.unserved:,} of {each.jobs:,} jobs were never done: nothing that the source "
            f"believes in fits them. {dollars(each.dollars)} were spent."
        )
    words = [done]
    if each.missed is not None:
        words.append(f"{percent(each.missed)} of the deadlines were missed.")
    words.append(
        f"{percent(each.unfair)} of the jobs took longer than with an even share of the cluster; "
        f"the worst {each.fairness:.1f} times."
    )
    screen.print(" ".join(words))


def _written(paths: tuple[tuple[str, Path | None], ...]) -> None:
    for what, path in paths:
        if path is not None:
            click.echo(f"{what}: {path}")

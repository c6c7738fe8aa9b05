"""``duetune cluster compare``: planners and sources of knowledge on the same jobs."""

from __future__ import annotations

import csv as csv_files
import itertools
import math
import time
from typing import TYPE_CHECKING

import click

from duetune.cli.cluster_options import (
    DEFAULT_LOAD,
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
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from duetune.cli.cluster_options import ClusterOptions
    from duetune.core.ports import Planner
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource
    from duetune.simulate.cluster.cluster_outcome import Figures
    from duetune.simulate.cluster.trial import Cluster, Compared, Setting

    Results = dict[Setting, list[Figures]]

_DRAWING = frozenset(("random", "noisy"))


class Comparison(JsonDocument, frozen=True, kw_only=True):
    """The answer of ``--json``.

    ``settings`` are in the order of the options. At each load the first one is the baseline.
    """

    world: WorldNote
    gpus: int
    seeds: int
    settings: tuple[Compared, ...]


@click.command()
@click.option(
    "--planners",
    default="fifo,sia,tutti",
    metavar="NAMES",
    help="Planners, separated by commas; 'duetune cluster planners' lists them.",
)
@click.option(
    "--sources",
    metavar="NAMES",
    help="Sources of configuration knowledge, separated by commas.  "
    "[default: random,hybrid; random,oracle with --paces]",
)
@click.option(
    "--load",
    "loads",
    metavar="JOBS/H",
    help="Jobs submitted per hour; several values separated by commas.  [default: 24]",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1, max=1000),
    default=5,
    metavar="N",
    help="Number of workloads at each load, with the seeds --seed, --seed + 1, ...",
)
@cluster_options
@click.option("--csv", metavar="FILE", help="Write one row for each simulation.")
@run_options
def compare(
    planners: str,
    sources: str | None,
    loads: str | None,
    seeds: int,
    site: ClusterOptions,
    csv: str | None,
    seed: int,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """Compare planners with sources of knowledge at several loads.

    Every planner and source gets the same jobs. The first planner with the first source is the
    baseline. Intervals are 95% intervals of a paired bootstrap over the seeds (2,000 draws).
    """
    from duetune import plots
    from duetune.cli.tables import print_written
    from duetune.files import checked_target, whole_file
    from duetune.plots.cluster_figures import comparison_figure
    from duetune.registry.planners import planner_named
    from duetune.simulate.cluster.trial import compared

    target = None if plot is None else plots.checked_plot(plot, "--plot")
    rows = None if csv is None else checked_target(csv, "--csv", (".csv",))
    site.check_apart({"--csv": rows, "--plot": target})
    chosen = {found.name: found for found in map(planner_named, planners.split(","))}
    sources = sources or ("random,hybrid" if site.paces is None else "random,oracle")
    named = list(dict.fromkeys(name.strip() for name in sources.split(",")))
    rates = _loads(loads, default=None if site.workload else DEFAULT_LOAD)
    cluster = site.build(seed, named)
    results = _play(cluster, site, list(chosen.values()), named, rates, range(seed, seed + seeds))
    document = Comparison(
        command="cluster compare",
        seed=seed,
        world=world_note(cluster),
        gpus=int(cluster.stock.capacity.sum()),
        seeds=seeds,
        settings=compared(results, seed),
    )
    title = f"Mean job completion time ({document.world.how})"
    # The plot is drawn before any file is written: if it fails, no file is written.
    figure = None if target is None else comparison_figure(document.settings, title=title)
    if rows is not None:
        with whole_file(rows, "--csv") as part, part.open("w", encoding="utf-8", newline="") as out:
            _write_rows(results, seed, cluster.world.how, out)
    if target is not None and figure is not None:
        plots.save_figure(figure, target)
    if as_json:
        print_answer(document)
        return
    click.echo(cluster_words(cluster))
    click.echo(world_words(document.world))
    _show(document)
    print_written(rows, target)


def _loads(text: str | None, *, default: float | None) -> list[float | None]:
    if text is None:
        return [default]
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(math.isfinite(each) and each > 0 for each in found):
        raise InvalidInput("load", text, "jobs per hour above 0, separated by commas: 12,24,60")
    return list(dict.fromkeys(found))


def _play(
    cluster: Cluster,
    site: ClusterOptions,
    planners: Sequence[Planner],
    sources: Sequence[str],
    loads: Sequence[float | None],
    seeds: range,
) -> Results:
    """Run all simulations with a progress bar; print the duration on standard error."""
    from duetune.cli.tables import counting_bar
    from duetune.registry.clusters import world_source
    from duetune.simulate.cluster.trial import Setting

    # Sources that learn or draw random numbers are made for each simulation, others once.
    kept: dict[str, KnowledgeSource] = {
        name: world_source(name, cluster.world, seed=seeds[0]) for name in sources
    }
    results: Results = {}
    runs = len(loads) * len(seeds) * len(planners) * len(sources)
    began = time.perf_counter()
    with counting_bar() as progress:
        task = progress.add_task("simulating", total=runs)
        for load, seed in itertools.product(loads, seeds):
            jobs, _ = site.draw(cluster, load, seed)
            for planner, name in itertools.product(planners, sources):
                setting = Setting(planner=planner.name, source=name, load=load)
                where = "" if load is None else f" at {load:g} jobs/h"
                progress.update(task, description=f"{planner.name} with {name}{where}")
                source = kept[name]
                if site.learn or _DRAWING & set(name.split(":")):
                    source = world_source(name, cluster.world, seed=seed)
                outcome = cluster.simulate(jobs, planner, source, learning=site.learn)
                results.setdefault(setting, []).append(outcome.figures())
                progress.advance(task)
    took = time.perf_counter() - began
    click.echo(f"{counted(runs, 'simulation')} in {took:.1f} s", err=True)
    return results


def _write_rows(results: Results, seed: int, world: str, file: TextIO) -> None:
    from duetune.simulate.cluster.cluster_outcome import Figures

    rows = csv_files.writer(file, lineterminator="\n")
    fields = Figures.__struct_fields__
    rows.writerow(("planner", "source", "load", "seed", "world", *fields))
    for setting, several in results.items():
        for number, figures in enumerate(several, start=seed):
            values = [getattr(figures, field) for field in fields]
            load = "" if setting.load is None else setting.load
            cells = ["" if value is None else value for value in values]
            rows.writerow((setting.planner, setting.source, load, number, world, *cells))


def _show(document: Comparison) -> None:
    from rich.markup import escape

    from duetune.cli.tables import console, new_table, percent
    from duetune.simulate.summary import dollars

    screen = console()
    due = any(each.figures.missed is not None for each in document.settings)
    for load, group in itertools.groupby(document.settings, key=lambda each: each.setting.load):
        rows = list(group)
        jobs = rows[0].figures.jobs // rows[0].seeds
        words = f"{counted(jobs, 'job')}, {counted(document.seeds, 'seed')}"
        screen.print()
        screen.print(words if load is None else f"{load:g} jobs/h: {words}")
        screen.print()
        table = new_table(
            *("planner", "source", "mean JCT", "GPU-h", "shorter by", "99%", "OOM"),
            *(("missed",) if due else ()),
            "cost",
            left=("planner", "source"),
        )
        for each in rows:
            figures = each.figures
            table.add_row(
                escape(each.setting.planner),
                escape(each.setting.source),
                _with_interval(figures.mean_jct_h, each),
                f"{figures.gpu_hours_per_job:.2f}",
                _saved(each),
                known_or_dash(figures.p99_jct_h),
                f"{figures.failures_per_job:.2f}",
                *((percent(figures.missed, 0),) if due else ()),
                dollars(figures.dollars),
            )
        screen.print(table)
        for each in rows:
            if each.figures.unserved:
                screen.print(escape(_undone(each)))
    screen.print()
    screen.print(
        "JCT: job completion time in hours, with 95% intervals. GPU-h: GPU-hours per job. Shorter "
        "by: compared with the first row. OOM: out-of-memory starts per job. Cost: of all jobs."
    )


def _undone(each: Compared) -> str:
    return (
        f"{each.setting.planner} with {each.setting.source}: {each.figures.unserved:,} of "
        f"{counted(each.figures.jobs, 'job')} never finished; its completion times leave them out."
    )


def _with_interval(mean: float, each: Compared) -> str:
    if each.mean_jct_h is None or math.isnan(mean):
        return known_or_dash(mean)
    return f"{mean:.2f} ({each.mean_jct_h.low:.2f}-{each.mean_jct_h.high:.2f})"


def _saved(each: Compared) -> str:
    if each.reduction is None or math.isnan(each.reduction):
        return "-"
    if each.reduction_interval is None:
        return f"{each.reduction:.0%}"
    low, high = each.reduction_interval.low, each.reduction_interval.high
    return f"{each.reduction:.0%} ({100 * low:.0f} to {100 * high:.0f})"

"""``duetune cluster compare``."""

from __future__ import annotations

import csv as csv_files
import itertools
import math
import time
from typing import TYPE_CHECKING

import click

from duetune.cli.cluster_options import (
    USUAL_LOAD,
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
    """``settings`` in the order asked for; at each load the first one is the baseline."""

    world: WorldNote
    gpus: int
    seeds: int
    settings: tuple[Compared, ...]


@click.command()
@click.option(
    "--planners",
    default="fifo,sia,tutti",
    show_default=True,
    metavar="NAMES",
    help="Separated by commas; see 'duetune cluster planners'.",
)
@click.option(
    "--sources",
    default="random,hybrid",
    show_default=True,
    metavar="NAMES",
    help="What planners are told by, separated by commas.",
)
@click.option(
    "--load",
    "loads",
    metavar="JOBS/H",
    help="How often jobs come; several separated by commas.  [default: 24]",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1, max=1000),
    default=5,
    show_default=True,
    help="Workloads at each load, with seeds from --seed on: the same for all.",
)
@cluster_options
@click.option("--csv", metavar="FILE", help="Write the figures of every simulation.")
@run_options
def compare(
    planners: str,
    sources: str,
    loads: str | None,
    seeds: int,
    site: ClusterOptions,
    csv: str | None,
    seed: int,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """Planners with sources of knowledge at several loads, against the first of them.

    Every planner and source gets the same jobs. Intervals are of 95%, from 2,000 draws of the seeds
    with replacement, in pairs with the baseline.
    """
    from duetune import plots
    from duetune.files import checked_target, whole_file
    from duetune.plots.cluster_figures import comparison_figure
    from duetune.registry.planners import planner_named
    from duetune.simulate.cluster.trial import compared

    target = None if plot is None else plots.checked_plot(plot, "--plot")
    rows = None if csv is None else checked_target(csv, "--csv", (".csv",))
    site.check_apart({"--csv": rows, "--plot": target})
    chosen = {found.name: found for found in map(planner_named, planners.split(","))}
    named = list(dict.fromkeys(name.strip() for name in sources.split(",")))
    rates = _loads(loads, default=None if site.workload else USUAL_LOAD)
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
    # Drawn before anything is written: all files are there, or none.
    figure = None if target is None else comparison_figure(document.settings, title=title)
    if rows is not None:
        with whole_file(rows, "--csv") as part, part.open("w", encoding="utf-8", newline="") as out:
            _write_rows(results, seed, cluster.world.how, out)
    if target is not None and figure is not None:
        plots.save_figure(figure, target)
    if as_json:
        print_document(document)
        return
    click.echo(cluster_words(cluster))
    click.echo(world_words(document.world))
    _show(document)
    for what, path in (("Rows", rows), ("Plot", target)):
        if path is not None:
            click.echo(f"{what}: {path}")


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
    """With a bar on the terminal."""
    from duetune.cli.tables import counting_bar
    from duetune.registry.clusters import world_source
    from duetune.simulate.cluster.trial import Setting

    # Who learns or draws by chance is made anew for every simulation, the others are fitted once.
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
            *("planner", "source", "mean JCT", "saved", "99%", "ran out", "GPU-h"),
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
                _saved(each),
                known_or_dash(figures.p99_jct_h),
                f"{figures.failures_per_job:.2f}",
                f"{figures.gpu_hours_per_job:.2f}",
                *((percent(figures.missed, 0),) if due else ()),
                dollars(figures.dollars),
            )
        screen.print(table)
        for each in rows:
            if each.figures.unserved:
                screen.print(escape(_undone(each)))
    screen.print()
    screen.print(
        "JCT: job completion time in hours, with 95% intervals; what is saved of the first one's. "
        "Ran out: starts of a job that ran out of memory. Cost: of all jobs."
    )


def _undone(each: Compared) -> str:
    are = "is" if each.figures.unserved == 1 else "are"
    return (
        f"{each.setting.planner} with {each.setting.source} left {each.figures.unserved:,} of "
        f"{counted(each.figures.jobs, 'job')} undone, which {are} not in its completion times."
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

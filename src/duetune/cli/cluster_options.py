"""Options that ``duetune cluster simulate`` and ``compare`` share: the cluster, world and jobs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.options import bundle
from duetune.errors import InvalidInput
from duetune.registry.clusters import WORLDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duetune.core.market import MarketTrace
    from duetune.core.planning import Stock
    from duetune.knowledge.history import History
    from duetune.simulate.cluster.cluster_world import ClusterWorld
    from duetune.simulate.cluster.trial import Cluster
    from duetune.simulate.cluster.workload import ClusterJob

_OF_FACTS = ("analytic", "regression", "hybrid")
DEFAULT_JOBS = 120
DEFAULT_LOAD = 24.0
MAX_JOBS = 100_000


class WorldNote(msgspec.Struct, frozen=True, kw_only=True):
    """The world in a JSON document.

    ``how`` says where the true speeds come from. ``measured`` is the number of runs that sources
    know at the start.
    """

    how: str
    configurations: int
    kinds: int
    measured: int


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options as typed; None where an option was not given."""

    cluster: str | None
    nodes: tuple[str, ...]
    workload: str | None
    rigid: bool
    jobs: int | None
    burst: float | None
    slack: str | None
    world: str
    history: str | None
    paces: str | None
    learn: bool
    start_s: float
    restart_s: float
    failed_s: float
    round_s: float

    def build(self, seed: int, sources: Sequence[str]) -> Cluster:
        """Build the cluster and its world.

        All options, and the names of the sources, are checked first: fitting the world takes
        seconds.
        """
        from duetune.cli.context import waiting
        from duetune.knowledge.history import History
        from duetune.registry.sources import source_named, sources_listed
        from duetune.simulate.cluster.rounds import Delays
        from duetune.simulate.cluster.trial import Cluster

        if seed < 0:
            raise InvalidInput("seed", seed, "a whole number, zero or more")
        self._range()
        heads = {each.name.split(":")[0] for each in sources_listed()}
        for name in sources:
            if name.split(":")[0] not in heads:
                source_named(name, History.empty())
            if self.paces is not None and name.split(":")[-1] in _OF_FACTS:
                allowed = f"with --paces none of {', '.join(_OF_FACTS)}: they need facts of models"
                raise InvalidInput("source", name, allowed)
        delays = Delays(
            start_s=self.start_s,
            restart_s=self.restart_s,
            failed_s=self.failed_s,
            round_s=self.round_s,
        )
        if self.workload is not None and not Path(self.workload).is_file():
            raise InvalidInput("workload", self.workload, "an existing file")
        stock, markets = self._stock(seed)
        known = self._history()
        with waiting("Building the world: fitting a model to measured runs"):
            world = self._world(stock, known, seed)
        return Cluster(stock, world, markets, delays)

    def _world(self, stock: Stock, known: History | None, seed: int) -> ClusterWorld:
        from duetune.registry.clusters import declared_gpus, world_named
        from duetune.simulate.cluster.pace_tables import read_paces, world_of_paces

        declared = {} if self.cluster is None else declared_gpus(self.cluster)
        if self.paces is not None:
            if self.world != WORLDS[0] or self.history is not None:
                raise click.UsageError("--paces cannot be used with --world or --history")
            return world_of_paces(read_paces(Path(self.paces)), stock, declared, seed=seed)
        if declared:
            allowed = "no GPUs: only a world of your own paces (--paces) can have GPUs of your own"
            raise InvalidInput("gpus", list(declared), allowed)
        return world_named(self.world, stock, known, seed=seed)

    def draw(
        self, cluster: Cluster, load: float | None, seed: int
    ) -> tuple[tuple[ClusterJob, ...], str]:
        """Return the jobs, and a description of where they come from."""
        import numpy as np

        from duetune.simulate.cluster.workload import poisson_arrivals, workload
        from duetune.simulate.cluster.workload_files import read_workload

        random = np.random.default_rng(seed)
        kinds = cluster.world.kinds
        if self.workload is None:
            if self.rigid:
                raise click.UsageError("--rigid needs --workload: the file has the numbers of GPUs")
            rate = DEFAULT_LOAD if load is None else load
            burst = 1.0 if self.burst is None else self.burst
            arrivals = poisson_arrivals(self.jobs or DEFAULT_JOBS, rate, random, burst=burst)
            jobs = workload(kinds, arrivals, random, slack=self._range())
            return jobs, f"{rate:g} jobs/h at random" + (f", {burst:g} at once" * (burst > 1))
        if self.burst is not None:
            raise click.UsageError("--burst and --workload cannot be used together")
        trace = read_workload(
            Path(self.workload),
            kinds,
            random,
            slack=self._range(),
            most=self.jobs or 0,
            per_hour=load,
            rigid=self.rigid,
        )
        words = Path(self.workload).name + ("" if load is None else f" at {load:g} jobs/h")
        if trace.left_out:
            words += f" ({counted(trace.left_out, 'row')} without GPUs or time left out)"
        return trace.jobs, words

    def check_apart(self, outputs: Mapping[str, Path | None]) -> None:
        """Refuse an output file that is also an input or another output."""
        from duetune.registry.clusters import cluster_files

        read = (("--workload", self.workload), ("--cluster", self.cluster))
        taken = {
            Path(path).resolve(): option
            for option, path in (*read, ("--history", self.history), ("--paces", self.paces))
            if path is not None
        }
        if self.cluster is not None and Path(self.cluster).is_file():
            taken |= {each.resolve(): "--cluster" for each in cluster_files(self.cluster)}
        for option, path in outputs.items():
            if path is None:
                continue
            other = taken.setdefault(path.resolve(), option)
            if other != option:
                raise InvalidInput(option, str(path), f"another file than that of {other}")

    def _stock(self, seed: int) -> tuple[Stock, dict[str, MarketTrace]]:
        from duetune.registry.clusters import cluster_from_file, cluster_of_nodes
        from duetune.simulate.cluster.cluster_world import usual_stock

        if self.cluster is not None and self.nodes:
            raise click.UsageError("--cluster and --nodes cannot be used together")
        if self.cluster is not None:
            return cluster_from_file(self.cluster, seed=seed)
        return (cluster_of_nodes(self.nodes) if self.nodes else usual_stock()), {}

    def _history(self) -> History | None:
        from duetune.interop.import_runs.recognise import import_history

        if self.history is None:
            return None
        if self.world == "physics":
            raise click.UsageError("--history needs --world emulated or replay")
        found = import_history(self.history).history
        if not len(found):
            raise InvalidInput("history", self.history, "a file with at least one valid run")
        return found

    def _range(self) -> tuple[float, float] | None:
        if self.slack is None:
            return None
        low, _, high = self.slack.partition(":")
        try:
            found = (float(low), float(high or low))
        except ValueError:
            found = (0.0, 0.0)
        if not (math.isfinite(found[1]) and 0 < found[0] <= found[1]):
            allowed = "LOW:HIGH, factors above 0 of the time that the work takes, such as 2:6"
            raise InvalidInput("slack", self.slack, allowed)
        return found


def world_note(cluster: Cluster) -> WorldNote:
    """Return the world of this cluster as a part of a JSON document."""
    world = cluster.world
    return WorldNote(
        how=world.how,
        configurations=len(world.space.rows),
        kinds=len(world.kinds),
        measured=len(world.known),
    )


def cluster_words(cluster: Cluster) -> str:
    """Describe the GPUs of the cluster in one line."""
    stock = cluster.stock
    parts = [
        f"{each.nodes} x {each.gpus_per_node} {each.gpu_model}"
        + ("" if each.tenure == "fixed" else f" ({each.tenure.replace('_', '-')})")
        for each in stock.partitions
    ]
    return f"{counted(int(stock.capacity.sum()), 'GPU')}: {', '.join(parts)}"


def world_words(note: WorldNote) -> str:
    """Describe the world in one line."""
    kinds = f"{counted(note.kinds, 'kind')} of job"
    known = f"{counted(note.measured, 'run')} known at the start"
    if note.how in {"replay", "pace table"}:
        what = "measured configuration" if note.how == "replay" else "configuration"
        return f"{note.how}: {counted(note.configurations, what)}, {kinds}; {known}"
    found = counted(note.configurations, "configuration")
    return f"{note.how}, not measured: {found}, {kinds}; {known}"


def counted(number: int, noun: str) -> str:
    """Return ``1 job`` or ``2 jobs``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def known_or_dash(number: float, words: str = "{:.2f}") -> str:
    """Return the number in words; a dash for NaN, which means that no job finished."""
    return "-" if math.isnan(number) else words.format(number)


cluster_options = bundle(
    ClusterOptions,
    "site",
    click.option(
        "--cluster", metavar="FILE", help="YAML file with partitions, markets and quotas."
    ),
    click.option(
        "--nodes",
        multiple=True,
        metavar="[NAME=]NxG:GPU",
        help="N nodes with G GPUs each, such as 4x8:A100-80GB. May be repeated.  "
        "[default: 4x8:A100-80GB, 4x4:A100-80GB-PCIe, 4x4:L40S]",
    ),
    click.option(
        "--workload",
        metavar="FILE",
        help="CSV file with jobs or arrival times: duetune's format, Sia's, or a log such as "
        "those of Helios and Philly.  [default: random arrivals]",
    ),
    click.option(
        "--rigid", is_flag=True, help="Jobs of a workload file keep their number of GPUs."
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1, max=MAX_JOBS),
        metavar="N",
        help="Number of jobs; of a workload file the first N.  "
        f"[default: {DEFAULT_JOBS}; all of a file]",
    ),
    click.option(
        "--burst",
        type=float,
        metavar="N",
        help="Mean number of jobs that are submitted together, as in a parameter sweep.  "
        "[default: 1]",
    ),
    click.option(
        "--slack",
        metavar="LOW:HIGH",
        help="Give jobs deadlines: LOW to HIGH times their duration with a median configuration.",
    ),
    click.option(
        "--world",
        type=click.Choice(WORLDS),
        default=WORLDS[0],
        help="Source of the true speeds: a model fitted to runs, physics alone, or measured runs.",
    ),
    click.option(
        "--history",
        metavar="FILE",
        help="File with the measured runs of the world.  [default: the runs shipped with duetune]",
    ),
    click.option(
        "--paces",
        metavar="FILE",
        help="CSV or JSON file with paces of your own: the world is this table.",
    ),
    click.option("--learn", is_flag=True, help="The source learns from each job that ends."),
    click.option(
        "--start-s",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="Time to start a job.",
    ),
    click.option(
        "--restart-s",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="Time to move a job.",
    ),
    click.option(
        "--failed-s",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="Time lost by a start that runs out of memory.",
    ),
    click.option(
        "--round-s",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="Time between two plans.",
    ),
)

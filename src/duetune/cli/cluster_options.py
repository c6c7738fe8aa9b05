"""What ``duetune cluster simulate`` and ``compare`` share: the cluster, its world and its jobs."""

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
    from duetune.simulate.cluster.trial import Cluster
    from duetune.simulate.cluster.workload import ClusterJob

USUAL_JOBS = 120
USUAL_LOAD = 24.0
MOST_JOBS = 100_000


class WorldNote(msgspec.Struct, frozen=True, kw_only=True):
    """``how`` the truth came about; ``measured`` runs were known to the sources at the start."""

    how: str
    configurations: int
    kinds: int
    measured: int


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str | None
    nodes: tuple[str, ...]
    workload: str | None
    rigid: bool
    jobs: int | None
    burst: float | None
    slack: str | None
    world: str
    history: str | None
    learn: bool
    start_s: float
    restart_s: float
    failed_s: float
    round_s: float

    def build(self, seed: int, sources: Sequence[str]) -> Cluster:
        """What is simulated, with a word on the terminal where that takes long. Whatever can be
        refused is refused before: the sources that will be asked for, too.
        """
        from duetune.cli.context import waiting
        from duetune.knowledge.history import History
        from duetune.registry.clusters import world_named
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
        delays = Delays(
            start_s=self.start_s,
            restart_s=self.restart_s,
            failed_s=self.failed_s,
            round_s=self.round_s,
        )
        if self.workload is not None and not Path(self.workload).is_file():
            raise InvalidInput("workload", self.workload, "a file that is there")
        stock, markets = self._stock(seed)
        known = self._history()
        with waiting("Making the world: fitting a model to what was measured"):
            world = world_named(self.world, stock, known, seed=seed)
        return Cluster(stock, world, markets, delays)

    def draw(
        self, cluster: Cluster, load: float | None, seed: int
    ) -> tuple[tuple[ClusterJob, ...], str]:
        """The jobs, and what to say of where they come from."""
        import numpy as np

        from duetune.simulate.cluster.workload import poisson_arrivals, workload
        from duetune.simulate.cluster.workload_files import read_workload

        random = np.random.default_rng(seed)
        kinds = cluster.world.kinds
        if self.workload is None:
            if self.rigid:
                raise click.UsageError("--rigid goes with --workload: GPUs are said there")
            rate = USUAL_LOAD if load is None else load
            burst = 1.0 if self.burst is None else self.burst
            arrivals = poisson_arrivals(self.jobs or USUAL_JOBS, rate, random, burst=burst)
            jobs = workload(kinds, arrivals, random, slack=self._range())
            return jobs, f"{rate:g} jobs/h at random" + (f", {burst:g} at once" * (burst > 1))
        if self.burst is not None:
            raise click.UsageError("--burst and --workload exclude each other")
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
        """No file that is written may be one that is read, or that is written, too."""
        from duetune.registry.clusters import cluster_files

        read = (("--workload", self.workload), ("--cluster", self.cluster))
        taken = {
            Path(path).resolve(): option
            for option, path in (*read, ("--history", self.history))
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
            raise click.UsageError("--cluster and --nodes exclude each other")
        if self.cluster is not None:
            return cluster_from_file(self.cluster, seed=seed)
        return (cluster_of_nodes(self.nodes) if self.nodes else usual_stock()), {}

    def _history(self) -> History | None:
        from duetune.interop.import_runs.recognise import import_history

        if self.history is None:
            return None
        if self.world == "physics":
            raise click.UsageError("--history goes with --world emulated or replay")
        found = import_history(self.history).history
        if not len(found):
            raise InvalidInput("history", self.history, "a file with runs that can be used")
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
    world = cluster.world
    return WorldNote(
        how=world.how,
        configurations=len(world.space.rows),
        kinds=len(world.kinds),
        measured=len(world.known),
    )


def cluster_words(cluster: Cluster) -> str:
    stock = cluster.stock
    parts = [
        f"{each.nodes} x {each.gpus_per_node} {each.gpu_model}"
        + ("" if each.tenure == "fixed" else f" ({each.tenure.replace('_', '-')})")
        for each in stock.partitions
    ]
    return f"{counted(int(stock.capacity.sum()), 'GPU')}: {', '.join(parts)}"


def world_words(note: WorldNote) -> str:
    kinds = f"{counted(note.kinds, 'kind')} of job"
    known = f"{counted(note.measured, 'run')} known at the start"
    if note.how == "replay":
        found = counted(note.configurations, "measured configuration")
        return f"replay: {found}, {kinds}; {known}"
    found = counted(note.configurations, "configuration")
    return f"{note.how}, not measured: {found}, {kinds}; {known}"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def known_or_dash(number: float, words: str = "{:.2f}") -> str:
    """What is not a number, since no job was done to take it from, is a dash."""
    return "-" if math.isnan(number) else words.format(number)


cluster_options = bundle(
    ClusterOptions,
    "site",
    click.option("--cluster", metavar="FILE", help="Partitions, markets and quotas in YAML."),
    click.option(
        "--nodes",
        multiple=True,
        metavar="[NAME=]NxG:GPU",
        help="N nodes with G GPUs each, such as 4x8:A100-80GB; may be repeated.  "
        "[default: 4x8:A100-80GB, 4x4:A100-80GB-PCIe, 4x4:L40S]",
    ),
    click.option(
        "--workload",
        metavar="FILE",
        help="Jobs or arrivals: our CSV, Sia's, or a log such as Helios' and Philly's.",
    ),
    click.option("--rigid", is_flag=True, help="Jobs of a trace keep the GPUs they had there."),
    click.option(
        "--jobs",
        type=click.IntRange(min=1, max=MOST_JOBS),
        metavar="N",
        help=f"So many jobs; of a file the first ones.  [default: {USUAL_JOBS}; of a file all]",
    ),
    click.option(
        "--burst",
        type=float,
        metavar="N",
        help="Jobs that come at once, in the mean, as in sweeps.  [default: 1]",
    ),
    click.option(
        "--slack",
        metavar="LOW:HIGH",
        help="Deadlines: so many times what the work takes the median configuration.",
    ),
    click.option(
        "--world",
        type=click.Choice(WORLDS),
        default=WORLDS[0],
        show_default=True,
        help="What configurations really do: a model's word, physics alone, or measured runs.",
    ),
    click.option(
        "--history",
        metavar="FILE",
        help="The runs behind the world.  [default: those that come with duetune]",
    ),
    click.option("--learn", is_flag=True, help="The source hears what became of each job."),
    click.option("--start-s", type=float, default=60.0, show_default=True, help="To start a job."),
    click.option("--restart-s", type=float, default=60.0, show_default=True, help="To move one."),
    click.option(
        "--failed-s", type=float, default=120.0, show_default=True, help="Lost to running out."
    ),
    click.option("--round-s", type=float, default=60.0, show_default=True, help="Between plans."),
)

"""What planners are told of each job: its predicted pace in every shape, from a knowledge source.

The source is asked when a job is submitted, again when a start of the job ran out of memory (all
configurations that need as much are then excluded), and whenever the source has learned something.
A pace that the job itself has shown replaces the prediction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.knowledge.listed_space import Listing
from duetune.knowledge.observation import Observation, Origin, RunOutcome
from duetune.knowledge.sources.blind import RandomSource
from duetune.knowledge.sources.knowledge_source import Limits, Objective
from duetune.simulate.cluster.workload import placeable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from duetune.core.planning import Stock
    from duetune.knowledge.configurations.configuration import Configuration, Value
    from duetune.knowledge.sources.knowledge_source import Candidate, KnowledgeSource
    from duetune.simulate.cluster.efficiency import EfficiencyTable
    from duetune.simulate.cluster.workload import ClusterJob

_MANY = 10_000


class ViewRow(NamedTuple):
    """The predicted pace of one job in each shape, and the configuration behind it.

    A pace is 0 where the job cannot run. ``guessed`` says that the source knows no pace, so paces
    are proportional to GPUs.
    """

    pace: NDArray[np.float64]
    configurations: dict[int, Configuration]
    guessed: bool


class Briefing:
    """Answers for each job what a planner is told about it.

    With ``single``, a source without knowledge chooses one configuration per job instead of one per
    shape. With ``learning``, the source observes the runs that ran out of memory or finished. With
    an ``efficiency``, paces are multiplied by it, and the batch that is then the fastest is chosen.
    """

    def __init__(
        self,
        source: KnowledgeSource,
        space: Listing,
        stock: Stock,
        *,
        single: bool = False,
        learning: bool = False,
        efficiency: EfficiencyTable | None = None,
    ) -> None:
        self.source, self.stock, self.efficiency = source, stock, efficiency
        self.learning = learning
        self._single = single and not source.capabilities
        self._ran_out: dict[str, tuple[Configuration, ...]] = {}
        self._shown: dict[str, dict[str, float]] = {}
        self._spaces: dict[tuple[object, ...], Listing] = {}
        self._rows: dict[tuple[object, ...], ViewRow] = {}
        self.space = Listing.of(space.rows.take(np.flatnonzero(placeable(space, stock))))

    def row(self, job: ClusterJob, progress: float = 0.0) -> ViewRow:
        """Return the job's paces and configurations; called in every round.

        ``progress`` is the share of its work that is done.
        """
        ran_out = self._ran_out.get(job.name, ())
        # A random source answers differently for each job.
        drawn = job.name if isinstance(self.source, RandomSource) else ""
        stage = 0 if self.efficiency is None else self.efficiency.stage(progress)
        failed = (each.key for each in ran_out)
        key = (*job.given.items(), drawn, stage, *failed, self.source.version)
        if key not in self._rows:
            if len(self._rows) > _MANY:
                self._rows.clear()
            self._rows[key] = self._asked(job, ran_out, progress)
        return self._as_shown(job, self._rows[key], progress)

    def efficiency_of(self, configuration: Configuration, progress: float) -> float:
        """Return the share of the configuration's pace that counts as progress."""
        return 1.0 if self.efficiency is None else self.efficiency.at(configuration, progress)

    def ran_out(self, job: ClusterJob, configuration: Configuration, at: float) -> None:
        """Record that a start of the job with this configuration ran out of memory."""
        self._ran_out[job.name] = (*self._ran_out.get(job.name, ()), configuration)
        self._observe(job, configuration, RunOutcome.OOM, None, at)

    def shown(self, job: ClusterJob, configuration: Configuration, pace: float) -> None:
        """Record the pace in tokens per second that the job has shown by running."""
        self._shown.setdefault(job.name, {})[configuration.key] = pace

    def finished(
        self, job: ClusterJob, configuration: Configuration, pace: float, at: float
    ) -> None:
        """Record that the job finished with this configuration and pace."""
        self._observe(job, configuration, RunOutcome.VALID, pace, at)
        self._shown.pop(job.name, None)
        self._ran_out.pop(job.name, None)

    def _asked(
        self, job: ClusterJob, ran_out: tuple[Configuration, ...], progress: float
    ) -> ViewRow:
        """Ask the source for the job's configurations and return them as a row."""
        space = self.possible(job).without(ran_out)
        given = {**job.given}
        source = self.source
        if isinstance(source, RandomSource):
            source = source.drawn_for(job.name)
        if self._single:
            limits = Limits(top=1, inventory=self._inventory())
        else:
            curve = self._curve(source, given, space, progress)
            if curve:
                return self._row(curve.values(), progress)
            # Nothing is likely to fit, but the job must try something.
            limits = Limits(top=1, min_p_valid=0.0, inventory=self._inventory())
        best = source.complete(given, space, Objective.BALANCED, limits).candidates
        return self._row(best, progress)

    def _curve(
        self, source: KnowledgeSource, given: dict[str, Value], space: Listing, progress: float
    ) -> dict[tuple[str, int], Candidate]:
        """Return the source's fastest configuration for each GPU model and number of GPUs."""
        gpus = tuple(dict.fromkeys(each.gpu_model for each in self.stock.partitions))
        counts = tuple(dict.fromkeys(int(each) for each in self.stock.gpus))
        if self.efficiency is None or not source.capabilities:
            return source.curve(given, space, gpus, counts)
        best: dict[tuple[str, int], Candidate] = {}
        fastest: dict[tuple[str, int], float] = {}
        for batch in space.values["batch_size"]:
            one = source.curve({**given, "batch_size": batch}, space, gpus, counts)
            for cell, found in one.items():
                goodput = found.estimate.tokens_per_s.middle
                goodput *= self.efficiency_of(found.configuration, progress)
                if cell not in best or goodput > fastest[cell]:
                    best[cell], fastest[cell] = found, goodput
        return best

    def _row(self, found: Iterable[Candidate], progress: float) -> ViewRow:
        """Return the candidates as a row over the shapes of the stock."""
        pace = np.zeros(len(self.stock.shapes))
        configurations: dict[int, Configuration] = {}
        guessed = False
        for candidate in found:
            configuration = candidate.configuration
            believed = candidate.estimate.tokens_per_s.middle
            key = (configuration.gpu_model, configuration.num_gpus, configuration.num_nodes)
            for shape in self.stock.alike.get(key, ()):
                guessed |= not believed > 0
                pace[shape] = believed if believed > 0 else float(configuration.num_gpus)
                pace[shape] *= self.efficiency_of(configuration, progress)
                configurations[shape] = configuration
        return ViewRow(pace, configurations, guessed)

    def _as_shown(self, job: ClusterJob, row: ViewRow, progress: float) -> ViewRow:
        """Return the row with the paces that the job itself has shown."""
        shown = self._shown.get(job.name)
        if not shown:
            return row
        pace = row.pace.copy()
        each_gpu = 0.0
        for shape, configuration in row.configurations.items():
            seen = shown.get(configuration.key)
            if seen is not None:
                pace[shape] = seen * self.efficiency_of(configuration, progress)
                each_gpu = max(each_gpu, seen / configuration.num_gpus)
        if row.guessed and each_gpu > 0:
            for shape, configuration in row.configurations.items():
                if configuration.key not in shown:
                    pace[shape] = each_gpu * configuration.num_gpus
                    pace[shape] *= self.efficiency_of(configuration, progress)
        return ViewRow(pace, row.configurations, row.guessed)

    def possible(self, job: ClusterJob) -> Listing:
        """Return the configurations that the job may have on this cluster."""
        key = tuple(job.given.items())
        if key not in self._spaces:
            self._spaces[key] = self.space.given(job.given)
        return self._spaces[key]

    def _inventory(self) -> dict[str, int]:
        """Return the largest number of GPUs of each model that one job can have."""
        most: dict[str, int] = {}
        for shape in self.stock.shapes:
            gpu = self.stock.partitions[shape.partition].gpu_model
            most[gpu] = max(most.get(gpu, 0), shape.gpus)
        return most

    def _observe(
        self,
        job: ClusterJob,
        configuration: Configuration,
        outcome: RunOutcome,
        pace: float | None,
        at: float,
    ) -> None:
        if self.learning:
            self.source.observe(
                Observation(
                    configuration=configuration,
                    outcome=outcome,
                    tokens_per_s=pace,
                    measured_at=at,
                    origin=Origin.PRODUCTION,
                    provenance=job.name,
                )
            )

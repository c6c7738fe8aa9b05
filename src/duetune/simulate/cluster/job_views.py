"""What planners are told of each job: its pace in every shape, as a source of knowledge has it.

The source is asked when a job is submitted, again once one of its starts has run out of memory (all
that needs as much is then out of the question), and whenever it has learned something. What a job
has shown itself is believed more than anything else.
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
    from numpy.typing import NDArray

    from duetune.core.planning import Stock
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.sources.knowledge_source import Candidate, KnowledgeSource
    from duetune.simulate.cluster.workload import ClusterJob

_MANY = 10_000


class ViewRow(NamedTuple):
    """By shape of the stock: the believed pace, 0 where none, and the configuration behind it.
    ``guessed``: paces are proportional to GPUs, since the source knows none.
    """

    pace: NDArray[np.float64]
    configurations: dict[int, Configuration]
    guessed: bool


class Briefing:
    """``single``: who knows nothing chooses one configuration for a job, once, and not one for
    each shape. With ``learning`` the source hears of what ran out of memory, and of what finished.
    """

    def __init__(
        self,
        source: KnowledgeSource,
        space: Listing,
        stock: Stock,
        *,
        single: bool = False,
        learning: bool = False,
    ) -> None:
        self.source, self.stock = source, stock
        self.learning = learning
        self._single = single and not source.capabilities
        self._ran_out: dict[str, tuple[Configuration, ...]] = {}
        self._shown: dict[str, dict[str, float]] = {}
        self._spaces: dict[tuple[object, ...], Listing] = {}
        self._rows: dict[tuple[object, ...], ViewRow] = {}
        self.space = self._placeable(space)

    def row(self, job: ClusterJob) -> ViewRow:
        ran_out = self._ran_out.get(job.name, ())
        # Who draws does so for each job anew.
        drawn = job.name if isinstance(self.source, RandomSource) else ""
        key = (*job.given.items(), drawn, *(each.key for each in ran_out), self.source.version)
        if key not in self._rows:
            if len(self._rows) > _MANY:
                self._rows.clear()
            self._rows[key] = self._asked(job, ran_out)
        return self._as_shown(job, self._rows[key])

    def ran_out(self, job: ClusterJob, configuration: Configuration, at: float) -> None:
        self._ran_out[job.name] = (*self._ran_out.get(job.name, ()), configuration)
        self._observe(job, configuration, RunOutcome.OOM, None, at)

    def shown(self, job: ClusterJob, configuration: Configuration, pace: float) -> None:
        """What it does, once it has run for a while."""
        self._shown.setdefault(job.name, {})[configuration.key] = pace

    def finished(
        self, job: ClusterJob, configuration: Configuration, pace: float, at: float
    ) -> None:
        self._observe(job, configuration, RunOutcome.VALID, pace, at)
        self._shown.pop(job.name, None)
        self._ran_out.pop(job.name, None)

    def _asked(self, job: ClusterJob, ran_out: tuple[Configuration, ...]) -> ViewRow:
        space = self.possible(job).without(ran_out)
        given = {**job.given}
        source = self.source
        if isinstance(source, RandomSource):
            source = source.drawn_for(job.name)
        if self._single:
            limits = Limits(top=1, inventory=self._inventory())
            ranking = source.complete(given, space, Objective.BALANCED, limits)
            found = list(ranking.candidates)
        else:
            gpus = tuple(dict.fromkeys(each.gpu_model for each in self.stock.partitions))
            counts = tuple(dict.fromkeys(int(each) for each in self.stock.gpus))
            found = list(source.curve(given, space, gpus, counts).values())
            if not found:
                # Nothing is likely to fit, and something has to be tried.
                limits = Limits(top=1, min_p_valid=0.0, inventory=self._inventory())
                ranking = source.complete(given, space, Objective.BALANCED, limits)
                found = list(ranking.candidates)
        return self._row(found)

    def _row(self, found: list[Candidate]) -> ViewRow:
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
                configurations[shape] = configuration
        return ViewRow(pace, configurations, guessed)

    def _as_shown(self, job: ClusterJob, row: ViewRow) -> ViewRow:
        shown = self._shown.get(job.name)
        if not shown:
            return row
        pace = row.pace.copy()
        each_gpu = 0.0
        for shape, configuration in row.configurations.items():
            seen = shown.get(configuration.key)
            if seen is not None:
                pace[shape] = seen
                each_gpu = max(each_gpu, seen / configuration.num_gpus)
        if row.guessed and each_gpu > 0:
            for shape, configuration in row.configurations.items():
                if configuration.key not in shown:
                    pace[shape] = each_gpu * configuration.num_gpus
        return ViewRow(pace, row.configurations, row.guessed)

    def possible(self, job: ClusterJob) -> Listing:
        """The configurations that it may have here."""
        key = tuple(job.given.items())
        if key not in self._spaces:
            self._spaces[key] = self.space.given(job.given)
        return self._spaces[key]

    def _placeable(self, space: Listing) -> Listing:
        """Only what some shape of the stock is for."""
        return Listing.of(space.rows.take(np.flatnonzero(placeable(space, self.stock))))

    def _inventory(self) -> dict[str, int]:
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

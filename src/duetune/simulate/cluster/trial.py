"""One planner with one knowledge source on a cluster, and the comparison of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.market import MarketTrace
from duetune.core.planning import Stock
from duetune.errors import InvalidInput
from duetune.simulate.cluster.cluster_outcome import Figures
from duetune.simulate.cluster.cluster_world import ClusterWorld, Supply
from duetune.simulate.cluster.job_views import Briefing
from duetune.simulate.cluster.rounds import Delays, Simulation, Truth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.ports import Planner
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource
    from duetune.simulate.cluster.cluster_outcome import ClusterOutcome
    from duetune.simulate.cluster.workload import ClusterJob

DRAWS = 2000
"""Number of bootstrap samples: seeds drawn with replacement, for an interval."""


class Cluster(msgspec.Struct, frozen=True, eq=False):
    """What is simulated, except jobs, planner and source. ``markets`` are by name of partition."""

    stock: Stock
    world: ClusterWorld
    markets: Mapping[str, MarketTrace] = {}
    delays: Delays = Delays()

    def simulate(
        self,
        jobs: Sequence[ClusterJob],
        planner: Planner,
        source: KnowledgeSource,
        *,
        learning: bool = False,
        truth: Truth | None = None,
    ) -> ClusterOutcome:
        """Play the jobs and return the outcome.

        ``truth`` may be passed in to reuse its cache between simulations of the same world.
        """
        supply = Supply(self.stock, self.markets)
        briefing = Briefing(
            source,
            self.world.space,
            supply.stock,
            single=bool(getattr(planner, "as_submitted", False)),
            learning=learning,
            efficiency=self.world.efficiency,
        )
        truth = truth or Truth(self.world.truth)
        return Simulation(jobs, supply, planner, briefing, truth, self.delays).run()


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A planner and a source at a load in jobs per hour; None if the arrivals come from a file."""

    planner: str
    source: str
    load: float | None


class MeanInterval(msgspec.Struct, frozen=True):
    """The 95% interval of a mean."""

    low: float
    high: float


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A setting as the mean over seeds.

    ``reduction`` is the share of the baseline's mean completion time that is saved, at the same
    load and with the same jobs. It is None for the baseline itself. Intervals are None with one
    seed.
    """

    setting: Setting
    seeds: int
    figures: Figures
    mean_jct_h: MeanInterval | None
    reduction: float | None
    reduction_interval: MeanInterval | None


def compared(results: Mapping[Setting, Sequence[Figures]], seed: int = 0) -> tuple[Compared, ...]:
    """Return each setting beside the first one of its load, seed by seed with the same jobs."""
    baselines: dict[float | None, Setting] = {}
    found = []
    for setting, figures in results.items():
        first = baselines.setdefault(setting.load, setting)
        base = _jct(results[first])
        mine = _jct(figures)
        if base.shape != mine.shape or not mine.size:
            raise InvalidInput("seeds", mine.size, f"as many as the baseline has, {base.size}")
        drawn = redrawn(mine.size, seed)
        several = mine.size > 1
        means = mine[drawn].mean(axis=1)
        saved = 1.0 - means / base[drawn].mean(axis=1)
        itself = setting == first
        found.append(
            Compared(
                setting=setting,
                seeds=mine.size,
                figures=mean_figures(figures),
                mean_jct_h=interval(means) if several else None,
                reduction=None if itself else float(1.0 - mine.mean() / base.mean()),
                reduction_interval=None if itself or not several else interval(saved),
            )
        )
    return tuple(found)


def mean_figures(several: Sequence[Figures]) -> Figures:
    """Return the mean of each figure over seeds; numbers of jobs are summed."""
    first = several[0]
    found: dict[str, float | int | None] = {}
    for field in first.__struct_fields__:
        values = [getattr(each, field) for each in several]
        known = [value for value in values if value is not None]
        if field in {"jobs", "unserved"}:
            found[field] = sum(known)
        else:
            found[field] = float(np.mean(known)) if known else None
    return msgspec.structs.replace(first, **found)


def _jct(figures: Sequence[Figures]) -> NDArray[np.float64]:
    return np.array([each.mean_jct_h for each in figures])


def redrawn(seeds: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the seeds of each bootstrap sample, one row per sample."""
    return np.random.default_rng(seed).integers(seeds, size=(DRAWS, seeds))


def interval(values: NDArray[np.float64]) -> MeanInterval:
    """Return the 95% interval of bootstrap means."""
    low, high = np.quantile(values, (0.025, 0.975))
    return MeanInterval(float(low), float(high))

"""Sources that know nothing about a configuration and choose anyway: baselines for benchmarks."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from duetune.knowledge.configurations.configuration import FIELDS, Configurations
from duetune.knowledge.configurations.configuration_rules import broken
from duetune.knowledge.estimate import Estimates
from duetune.knowledge.ranking import RULE, unavailable
from duetune.knowledge.sources.estimating import Source, asked_for, cells
from duetune.knowledge.sources.knowledge_source import Candidate, Limits, Objective, Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.space import Space
    from duetune.knowledge.sources.knowledge_source import Capability

    Column = NDArray[np.float64]

SITE_GPUS = 4
SITE_BATCH = 16


class Blind(Source):
    """A source that chooses by ``preference`` alone; subclasses define it."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    learns = False

    def estimate(self, configurations: Configurations) -> Estimates:
        """Return estimates that know nothing."""
        return Estimates.unknown(len(configurations), self.name)

    def preference(self, configurations: Configurations) -> Column:
        """Return a number for each configuration; the lowest is chosen."""
        raise NotImplementedError

    def complete(
        self,
        partial: Mapping[str, object],
        space: Space,
        objective: Objective,  # noqa: ARG002 - without knowledge no objective can be followed
        limits: Limits,
    ) -> Ranking:
        """Return the preferred configurations that break no rule and are available."""
        left_out: dict[str, int] = {}
        considered = 0
        best: list[tuple[float, int, Candidate]] = []
        for part in space.given(partial).enumerate():
            open_ = np.ones(len(part), np.bool_)
            for reason, mask in {RULE: broken(part) >= 0, **unavailable(part, limits)}.items():
                count = int(np.sum(open_ & mask))
                if count:
                    left_out[reason] = left_out.get(reason, 0) + count
                open_ &= ~mask
            for row, first in self._first(part, open_, limits.top):
                best.append((first, considered + row, self._candidate(part, row, first)))
            considered += len(part)
            best = sorted(best, key=lambda each: each[:2])[: limits.top]
        note = f"{self.name} does not estimate what fits" if best else self._nothing(left_out)
        return Ranking(
            candidates=tuple(candidate for _, _, candidate in best),
            considered=considered,
            left_out=left_out,
            note=note,
        )

    def curve(
        self,
        partial: Mapping[str, object],
        space: Space,
        gpu_models: Sequence[str],
        counts: Sequence[int],
    ) -> dict[tuple[str, int], Candidate]:
        """Return the preferred configuration for each GPU model and number of GPUs."""
        asked = asked_for(space.given(partial), gpu_models, counts)
        found: dict[tuple[str, int], tuple[float, Candidate]] = {}
        for part in () if asked is None else asked.enumerate():
            kept = broken(part) < 0
            for cell, rows in cells(part).items():
                for row, first in self._first(part, rows & kept, 1):
                    if cell not in found or first < found[cell][0]:
                        found[cell] = (first, self._candidate(part, row, first))
        return {cell: candidate for cell, (_, candidate) in found.items()}

    def _first(
        self, part: Configurations, open_: NDArray[np.bool_], top: int
    ) -> list[tuple[int, float]]:
        """Return the first ``top`` of the open rows, each with its preference."""
        rows = np.flatnonzero(open_)
        preference = self.preference(part.take(rows))
        order = np.argsort(preference, kind="stable")[:top]
        return list(zip(rows[order].tolist(), preference[order].tolist(), strict=True))

    def _candidate(self, part: Configurations, row: int, first: float) -> Candidate:
        """Return the candidate for a row; it breaks no rule, and nothing else is known about it."""
        nothing = Estimates.unknown(1, self.name)[0]
        return Candidate(configuration=part[row], estimate=nothing, score=-first)

    @staticmethod
    def _nothing(left_out: dict[str, int]) -> str:
        counts = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        if not counts:
            return "the space contains no configuration"
        return f"no configuration qualifies: {counts}"


class DefaultSource(Blind):
    """The same choice for all jobs: the first GPU of the space, four of them, batch 16, or the
    nearest.
    """

    name = "default"

    def preference(self, configurations: Configurations) -> Column:
        """Return the distance to the site's default."""
        gpus = np.abs(np.log2(configurations.number("num_gpus") / SITE_GPUS))
        batch = np.abs(np.log2(configurations.number("batch_size") / SITE_BATCH))
        return 1e6 * configurations.columns["gpu_model"] + 1e3 * gpus + batch


class RandomSource(Blind):
    """A random choice, always the same for the same question."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    @property
    def version(self) -> str:
        """Return the version with the seed in it."""
        return f"{super().version}-{self.seed}"

    def drawn_for(self, name: str) -> RandomSource:
        """Return a source that draws for this job alone."""
        return RandomSource(self.seed + (zlib.crc32(name.encode()) << 32))

    def preference(self, configurations: Configurations) -> Column:
        """Return a random number for each configuration."""
        return uniform(configurations, self.seed)


def uniform(configurations: Configurations, seed: int) -> Column:
    """Return a number in (0, 1) for each row, which depends only on the configuration and the
    seed.
    """
    state = np.full(len(configurations), np.uint64(seed % 2**64))
    for field in FIELDS:
        if field in configurations.labels:
            words = [zlib.crc32(word.encode()) for word in configurations.labels[field]]
            column = np.array(words, np.uint64)[configurations.columns[field]]
        else:
            column = configurations.number(field).view(np.uint64)
        state = _mixed(state ^ column)
    return ((state >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of splitmix64: each input bit changes half of the output bits."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))

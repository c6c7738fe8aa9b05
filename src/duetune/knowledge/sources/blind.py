"""Sources that know nothing of a configuration and choose all the same."""

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
    """Subclasses say by ``preference`` what they would take first: the lowest number."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    learns = False

    def estimate(self, configurations: Configurations) -> Estimates:
        return Estimates.unknown(len(configurations), self.name)

    def preference(self, configurations: Configurations) -> Column:
        raise NotImplementedError

    def complete(
        self,
        partial: Mapping[str, object],
        space: Space,
        objective: Objective,  # noqa: ARG002 - nothing is known by which to follow it
        limits: Limits,
    ) -> Ranking:
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
        note = f"{self.name} knows nothing of what fits" if best else self._nothing(left_out)
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
        rows = np.flatnonzero(open_)
        preference = self.preference(part.take(rows))
        order = np.argsort(preference, kind="stable")[:top]
        return list(zip(rows[order].tolist(), preference[order].tolist(), strict=True))

    def _candidate(self, part: Configurations, row: int, first: float) -> Candidate:
        """Of a row that breaks no rule, of which there is then nothing more to say."""
        nothing = Estimates.unknown(1, self.name)[0]
        return Candidate(configuration=part[row], estimate=nothing, score=-first)

    @staticmethod
    def _nothing(left_out: dict[str, int]) -> str:
        counts = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        return f"nothing qualifies: {counts}" if counts else "the space allows no configuration"


class DefaultSource(Blind):
    """What a site has for all jobs alike: the first GPU of the space, four of them, batch 16; or
    what is nearest to that.
    """

    name = "default"

    def preference(self, configurations: Configurations) -> Column:
        gpus = np.abs(np.log2(configurations.number("num_gpus") / SITE_GPUS))
        batch = np.abs(np.log2(configurations.number("batch_size") / SITE_BATCH))
        return 1e6 * configurations.columns["gpu_model"] + 1e3 * gpus + batch


class RandomSource(Blind):
    """Any configuration as well as any other; the same one whenever the same is asked."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    @property
    def version(self) -> str:
        return f"{super().version}-{self.seed}"

    def drawn_for(self, name: str) -> RandomSource:
        """One that draws for this job alone."""
        return RandomSource(self.seed + (zlib.crc32(name.encode()) << 32))

    def preference(self, configurations: Configurations) -> Column:
        return uniform(configurations, self.seed)


def uniform(configurations: Configurations, seed: int) -> Column:
    """A number in (0, 1) for each, that depends on nothing but the configuration and the seed."""
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
    """The finaliser of splitmix64: every bit of the input changes half of those of the output."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))

"""What configuration knowledge says of the ways to train one job: whether they fit, how fast."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.estimate import FITS
from duetune.knowledge.ranking import rank
from duetune.knowledge.sources.knowledge_source import Limits, Objective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.jobs.trainer_facts import TrainerKnowledge
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.estimate import Estimate, Estimates, Interval

FILL = 0.5
"""Examples of which nothing is known are shorter than the longest allowed, by half."""

NEARLY = 0.02
"""Of those whose paces differ by less than this share the smallest in memory is taken."""

_SIZES = 300
_SMALLEST = 1e7


class Prospects:
    """Asks ``source`` about configurations of one GPU: every GPU of duetune's own trainer holds all
    of the model. Examples have about ``tokens_per_row`` tokens, if that is known.
    """

    def __init__(self, source: TrainerKnowledge, tokens_per_row: float | None = None) -> None:
        self.source = source
        self.tokens_per_row = tokens_per_row

    def usual_length(self, one: Configuration) -> int:
        """Return the tokens of an example, where none has more than the configuration allows."""
        longest = one.tokens_per_sample
        return round(min(self.tokens_per_row or 0.0, longest)) or max(1, round(FILL * longest))

    def of(self, tried: Sequence[Configuration]) -> Estimates:
        """Return for each whether its longest examples fit, and the pace of one GPU with examples
        of the usual length.
        """
        usual = [each.replace(tokens_per_sample=self.usual_length(each)) for each in tried]
        asked = self.source.query(Configurations.of([*tried, *usual]))
        count = len(tried)
        found, pace = asked.take(np.arange(count)), asked.take(np.arange(count, 2 * count))
        for name in ("tokens_per_s", "support", "extrapolated"):
            setattr(found, name, getattr(pace, name))
        return found

    def one(self, configuration: Configuration) -> Estimate:
        """Return what is known of one."""
        return self.of([configuration])[0]

    def fits(self, configuration: Configuration) -> bool:
        """Whether a configuration is likely enough to fit."""
        return self.one(configuration).p_valid >= FITS

    def fastest(self, tried: Sequence[Configuration], estimates: Estimates) -> int | None:
        """Return the place of the fastest, of those nearly as fast the one that needs the least
        memory; None where no pace is known.
        """
        limits = Limits(min_p_valid=0.0, top=len(tried))
        ranking = rank(Configurations.of(tried), estimates, Objective.FASTEST, limits)
        if not ranking.candidates:
            return None
        enough = (1 - NEARLY) * ranking.candidates[0].score
        best = min(
            (each for each in ranking.candidates if each.score >= enough),
            key=lambda each: np.nan_to_num(each.estimate.memory_gb.middle, nan=math.inf),
        )
        return tried.index(best.configuration)

    def memory_terms(self, one: Configuration) -> dict[str, float]:
        """Gigabytes by what they are for; not all of them are needed at the same time."""
        return {term.name: term.value for term in self.source.explain(one).memory}

    def largest_model(self, one: Configuration, parameters: int) -> float:
        """About how many parameters fit, of models in the usual shape and not larger than so many;
        0.0 if none do.
        """
        sizes = np.geomspace(_SMALLEST, max(parameters, 2 * _SMALLEST), _SIZES)
        asked = [one.replace(model=f"model-{size / 1e9:.3f}b") for size in sizes.tolist()]
        fitting = sizes[self.source.query(Configurations.of(asked)).p_valid >= FITS]
        return float(fitting.max()) if len(fitting) else 0.0


def known(interval: Interval) -> bool:
    return math.isfinite(interval.middle)

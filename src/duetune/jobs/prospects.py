"""What configuration knowledge says about a recipe: whether it fits and how fast it is.

Rows are packed as the trainer packs them, with the real lengths of the dataset where those are
known.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from duetune.jobs.trainer_facts import on_gpus
from duetune.knowledge.configurations.configuration import Attention, Configurations
from duetune.knowledge.estimate import FITS
from duetune.knowledge.ranking import rank
from duetune.knowledge.sources.knowledge_source import Limits, Objective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.jobs.trainer_knowledge import TrainerKnowledge
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.estimate import Estimate, Estimates, Interval


FILL = 0.5
"""Mean length of examples as a share of the longest allowed, if their length is unknown."""

NEARLY = 0.02
"""Paces that differ by less than this share count as equal; the least memory then decides."""

_SIZES = 300
_SMALLEST = 1e7


class Prospects:
    """Asks ``source`` about configurations of one GPU, which holds the whole model, or a shard of
    it if a member has ``gpus_per_member`` GPUs.
    """

    def __init__(self, source: TrainerKnowledge, gpus_per_member: int = 1) -> None:
        self.source = source
        self.gpus_per_member = gpus_per_member

    def tokens_per_microbatch(self, one: Configuration) -> int:
        """Return the most tokens of one microbatch."""
        return int(self.source.packing.tokens(Configurations.of([one]))[0])

    def _packed(self, one: Configuration) -> Configuration:
        """Return a configuration with its microbatch full of the longest examples."""
        return one.replace(
            batch_size=1,
            tokens_per_microbatch=self.tokens_per_microbatch(one),
            attention=Attention.VARLEN,
            fast_kernels=self.source.packing.fused,
        )

    def _member(self, one: Configuration) -> Configuration:
        """Return a configuration of one GPU on all GPUs of a member."""
        return on_gpus(one, self.gpus_per_member, self.gpus_per_member)

    def _usual(self, one: Configuration) -> Configuration:
        """Return a configuration with examples of the usual length in its microbatches."""
        full, mean = self._packed(one), self.usual_length(one)
        step = one.batch_size * one.grad_accum * mean
        tokens = max(mean, min(full.tokens_per_microbatch, step))
        return full.replace(
            tokens_per_sample=mean,
            longest_sample=one.tokens_per_sample if one.tokens_per_sample > mean else 0,
            tokens_per_microbatch=tokens,
            grad_accum=max(1, math.ceil(step / tokens)),
        )

    def usual_length(self, one: Configuration) -> int:
        """Return the expected tokens of an example, at most what the configuration allows."""
        longest, known = one.tokens_per_sample, self.source.packing.tokens_per_row
        return round(min(known or 0.0, longest)) or max(1, round(FILL * longest))

    def of(self, tried: Sequence[Configuration]) -> Estimates:
        """Return estimates for the configurations: whether their longest examples fit, and the pace
        of one GPU with examples of the usual length.
        """
        longest = [self._packed(each) for each in tried]
        usual = [self._usual(each) for each in tried]
        whole = [self._member(each) for each in (*longest, *usual)]
        asked = self.source.query(Configurations.of(whole))
        count = len(tried)
        found, pace = asked.take(np.arange(count)), asked.take(np.arange(count, 2 * count))
        for name in ("tokens_per_s", "support", "extrapolated"):
            setattr(found, name, getattr(pace, name))
        found.tokens_per_s = found.tokens_per_s / self.gpus_per_member
        return found

    def one(self, configuration: Configuration) -> Estimate:
        """Return the estimate for one configuration."""
        return self.of([configuration])[0]

    def fits(self, configuration: Configuration) -> bool:
        """Return whether a configuration is likely enough to fit."""
        return self.one(configuration).p_valid >= FITS

    def fastest(self, tried: Sequence[Configuration], estimates: Estimates) -> int | None:
        """Return the index of the fastest configuration; among nearly equal ones that with the
        least memory. None if no pace is known.
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
        """Return gigabytes by purpose; not all of them are needed at the same time."""
        whole = self._member(self._packed(one))
        return {term.name: term.value for term in self.source.explain(whole).memory}

    def largest_model(self, one: Configuration, parameters: int) -> float:
        """Return about how many parameters would fit, up to ``parameters``, for a model of the
        usual shape; 0.0 if none do.
        """
        sizes = np.geomspace(_SMALLEST, max(parameters, 2 * _SMALLEST), _SIZES)
        whole = self._member(self._packed(one))
        asked = [whole.replace(model=f"model-{size / 1e9:.3f}b") for size in sizes.tolist()]
        fitting = sizes[self.source.query(Configurations.of(asked)).p_valid >= FITS]
        return float(fitting.max()) if len(fitting) else 0.0


def known(interval: Interval) -> bool:
    """Return whether an interval has a known middle."""
    return math.isfinite(interval.middle)

"""What configuration knowledge says of the recipes of one job: whether they fit, and how fast."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configuration import Configurations
from duetune.knowledge.estimate import FITS
from duetune.knowledge.ranking import rank
from duetune.knowledge.source import Limits, Objective
from duetune.quote.trainer import TrainerKnowledge, configuration_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.knowledge.configuration import Configuration
    from duetune.knowledge.estimate import Estimate, Estimates, Interval
    from duetune.knowledge.source import KnowledgeSource
    from duetune.quote.site import Site
    from duetune.quote.trainer import Recipe

FILL = 0.5
"""Examples of which nothing is known are shorter than the longest allowed, by half."""

NEARLY = 0.02
"""Of recipes whose paces differ by less than this share the smallest in memory is taken."""

_SIZES = 300
_SMALLEST = 1e7


def usual_length(recipe: Recipe) -> int:
    """Of the examples, in tokens."""
    return recipe.usual_length or max(1, round(FILL * recipe.max_length))


class Prospects:
    """Asks ``source`` about a model on a site, on one GPU: every GPU of duetune's own trainer holds
    all of the model. ``ran_out`` are configurations that ran out of memory here.
    """

    def __init__(
        self,
        source: KnowledgeSource,
        model: str,
        site: Site,
        ran_out: Sequence[Configuration] = (),
    ) -> None:
        self.source = TrainerKnowledge(source, site.software, ran_out)
        self._model = model
        self._site = site

    def of(self, recipes: Sequence[Recipe]) -> Estimates:
        """Return for each recipe whether its longest examples fit, and the pace of one GPU with
        examples of the usual length.
        """
        model, site, count = self._model, self._site, len(recipes)
        longest = [configuration_of(each, model, site) for each in recipes]
        usual = [configuration_of(each, model, site, length=usual_length(each)) for each in recipes]
        asked = self.source.query(Configurations.of([*longest, *usual]))
        found, pace = asked.take(np.arange(count)), asked.take(np.arange(count, 2 * count))
        for name in ("tokens_per_s", "support", "extrapolated"):
            setattr(found, name, getattr(pace, name))
        return found

    def fastest(self, recipes: Sequence[Recipe], estimates: Estimates) -> int | None:
        """Return the place of the fastest, of those nearly as fast the one that needs the least
        memory; None where no pace is known.
        """
        asked = [configuration_of(each, self._model, self._site) for each in recipes]
        limits = Limits(min_p_valid=0.0, top=len(asked))
        ranking = rank(Configurations.of(asked), estimates, Objective.FASTEST, limits)
        if not ranking.candidates:
            return None
        enough = (1 - NEARLY) * ranking.candidates[0].score
        best = min(
            (each for each in ranking.candidates if each.score >= enough),
            key=lambda each: np.nan_to_num(each.estimate.memory_gb.middle, nan=math.inf),
        )
        return asked.index(best.configuration)

    def one(self, recipe: Recipe) -> Estimate:
        """Return what is known of one recipe."""
        return self.of([recipe])[0]

    def fits(self, recipe: Recipe) -> bool:
        """Whether the recipe is likely enough to fit."""
        return self.allows(configuration_of(recipe, self._model, self._site))

    def allows(self, configuration: Configuration) -> bool:
        """Whether a configuration is likely enough to fit."""
        return bool(self.source.query(Configurations.of([configuration])).p_valid[0] >= FITS)

    def ran_out(self, recipe: Recipe) -> bool:
        """Whether a run that needed no more memory ran out of it here."""
        return self.source.ran_out(configuration_of(recipe, self._model, self._site))

    def memory_terms(self, recipe: Recipe) -> dict[str, float]:
        """Gigabytes by what they are for; not all of them are needed at the same time."""
        explanation = self.source.explain(configuration_of(recipe, self._model, self._site))
        return {term.name: term.value for term in explanation.memory}

    def largest_model(self, recipe: Recipe, parameters: int) -> float:
        """About how many parameters fit, of models in the usual shape and not larger than so many;
        0.0 if none do.
        """
        sizes = np.geomspace(_SMALLEST, max(parameters, 2 * _SMALLEST), _SIZES)
        names = [f"model-{size / 1e9:.3f}b" for size in sizes.tolist()]
        asked = Configurations.of([configuration_of(recipe, name, self._site) for name in names])
        fitting = sizes[self.source.query(asked).p_valid >= FITS]
        return float(fitting.max()) if len(fitting) else 0.0


def known(interval: Interval) -> bool:
    return math.isfinite(interval.middle)

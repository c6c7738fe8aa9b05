"""What configuration knowledge says of the recipes of one job: whether they fit, and how fast."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.knowledge.configuration import Configurations
from duetune.knowledge.ranking import exceeding
from duetune.quote.trainer import configuration_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.knowledge.configuration import Configuration
    from duetune.knowledge.estimate import Interval
    from duetune.knowledge.source import KnowledgeSource
    from duetune.quote.site import Site
    from duetune.quote.trainer import Recipe

FITS = 0.8
"""What fits with this probability is planned with."""

FILL = 0.5
"""Examples of which nothing is known are shorter than the longest allowed, by half."""

_SIZES = 300
_SMALLEST = 1e7


class Prospect(NamedTuple):
    """Of one recipe. ``memory_gb`` is for the longest examples, ``tokens_per_s`` those of one GPU
    for examples of the usual length; NaN where the source does not know. ``ran_out``: a run that
    needed no more did.
    """

    p_fits: float
    ran_out: bool
    memory_gb: Interval
    tokens_per_s: Interval
    support: int
    extrapolated: tuple[str, ...]
    measured: bool

    @property
    def fits(self) -> bool:
        return self.p_fits >= FITS


def usual_length(recipe: Recipe) -> int:
    """Of the examples, in tokens."""
    return recipe.usual_length or max(1, round(FILL * recipe.max_length))


class Prospects:
    """Asks ``source`` about a model on a site, on one GPU: every GPU of duetune's own trainer holds
    all of the model. ``ran_out`` are configurations, of one GPU each, that ran out of memory here.
    """

    def __init__(
        self,
        source: KnowledgeSource,
        model: str,
        site: Site,
        ran_out: Sequence[Configuration] = (),
    ) -> None:
        self.source = source
        self._model = model
        self._site = site
        self._ran_out = tuple(ran_out)

    def of(self, recipes: Sequence[Recipe]) -> list[Prospect]:
        model, site, count = self._model, self._site, len(recipes)
        longest = [configuration_of(each, model, site) for each in recipes]
        usual = [configuration_of(each, model, site, length=usual_length(each)) for each in recipes]
        asked = Configurations.of([*longest, *usual])
        estimates = self.source.query(asked)
        ran_out = exceeding(asked, self._ran_out)
        found = []
        for place in range(count):
            fit, pace = estimates[place], estimates[count + place]
            out = bool(ran_out[place])
            found.append(
                Prospect(
                    p_fits=0.0 if out else fit.p_valid,
                    ran_out=out,
                    memory_gb=fit.memory_gb,
                    tokens_per_s=pace.tokens_per_s,
                    support=pace.support,
                    extrapolated=pace.extrapolated,
                    measured=fit.measured,
                )
            )
        return found

    def one(self, recipe: Recipe) -> Prospect:
        return self.of([recipe])[0]

    def fits(self, recipe: Recipe) -> bool:
        return self.one(recipe).fits

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

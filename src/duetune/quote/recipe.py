"""How to train: method, precision, batch and length that fit and are fast, each with a reason."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.knowledge.advice import GIVEN
from duetune.knowledge.estimate import FITS
from duetune.quote.prospects import known
from duetune.quote.question import Question
from duetune.quote.trainer import Recipe
from duetune.training.task import Method

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.knowledge.estimate import Estimate
    from duetune.knowledge.model_facts import ModelFacts
    from duetune.quote.prospects import Prospects
    from duetune.quote.site import Site
    from duetune.spec.schema import JobSpec

SHORTEST = 128


class Chosen(NamedTuple):
    """A recipe, what is known of it, and why each of its fields is what it is."""

    recipe: Recipe
    estimate: Estimate
    reasons: dict[str, str]


def choose_recipe(
    spec: JobSpec,
    site: Site,
    model: ModelFacts | None,
    gpus: int,
    rows: int | None,
    prospects: Prospects,
    tokens_per_row: float | None = None,
) -> Chosen:
    """For a group of up to ``gpus`` GPUs and ``rows`` training examples, if they are known.

    A model of which nothing is known is taken to fit.
    """
    return _Choice(spec, site, model, gpus, rows, prospects, tokens_per_row).made()


class _Choice:
    def __init__(
        self,
        spec: JobSpec,
        site: Site,
        model: ModelFacts | None,
        gpus: int,
        rows: int | None,
        prospects: Prospects,
        tokens_per_row: float | None,
    ) -> None:
        self.spec, self.site, self.model = spec, site, model
        self.asked = Question.of(spec)
        self.step = self.asked.step(gpus, rows)
        self.tokens_per_row = tokens_per_row
        self.prospects = prospects
        self.limited = model is not None and site.memory is not None
        self.reasons: dict[str, str] = {}

    def made(self) -> Chosen:
        asked, reasons = self.asked, self.reasons
        precision, reasons["precision"] = asked.computed_in(self.site)
        lora_r, reasons["lora_r"] = asked.rank()
        length, reasons["max_length"] = asked.length(self.model)
        targets, _ = asked.layers()
        first = self._with(
            Recipe(
                method=Method.LORA,
                precision=precision,
                microbatch=1,
                max_length=length,
                gradient_checkpointing=False,
                lora_r=lora_r,
                lora_targets=targets,
                usual_length=round(min(self.tokens_per_row or 0.0, length)),
            )
        )
        allows = self.prospects.allows if self.limited else None
        method, reasons["method"] = asked.chosen_method(
            self.spec.model or "", self.model, [self.site], allows
        )
        if method == Method.FULL:
            first = self._with(first, method=Method.FULL)
            del reasons["lora_r"]
        recipe, estimate = self._best(first)
        self._say_accumulation()
        return Chosen(recipe, estimate, reasons)

    def _best(self, first: Recipe) -> tuple[Recipe, Estimate]:
        """The fastest that fits; cutting examples is the last resort."""
        lengths = [first.max_length]
        while self.asked.max_length is None and lengths[-1] // 2 >= SHORTEST:
            lengths.append(lengths[-1] // 2)
        for length in lengths:
            tried = self._candidates(self._with(first, max_length=length))
            found = self.prospects.of(tried)
            rows = np.flatnonzero(found.p_valid >= (FITS if self.limited else 0.0))
            if len(rows):
                fitting, estimates = [tried[row] for row in rows.tolist()], found.take(rows)
                paced = self.site.measurable and self.model is not None
                place = self.prospects.fastest(fitting, estimates) if paced else None
                self._say_recipe(first, fitting[place or 0], fitting)
                return fitting[place or 0], estimates[place or 0]
        raise self._refusal(first)

    def _candidates(self, first: Recipe) -> list[Recipe]:
        """In the order of preference where nothing is known of their paces: recomputing is dearer
        than a small microbatch.
        """
        given = self.asked.checkpointing
        return [
            self._with(first, gradient_checkpointing=checkpointing, microbatch=microbatch)
            for checkpointing in ((False, True) if given is None else (given,))
            for microbatch in self.step.microbatches
        ]

    def _fits(self, recipe: Recipe) -> bool:
        return not self.limited or self.prospects.fits(recipe)

    def _say_recipe(self, first: Recipe, recipe: Recipe, fitting: list[Recipe]) -> None:
        reasons, asked = self.reasons, self.asked
        if recipe.max_length < first.max_length:
            reasons["max_length"] = "the longest that fits in the GPU's memory"
        sizes = {
            each.microbatch
            for each in fitting
            if each.gradient_checkpointing == recipe.gradient_checkpointing
        }
        if asked.microbatch is not None:
            reasons["microbatch"] = GIVEN
        elif recipe.microbatch < max(sizes):
            reasons["microbatch"] = "the fastest of those that fit"
        elif recipe.microbatch < self.step.microbatches[0]:
            reasons["microbatch"] = "the most that fits in the GPU's memory"
        else:
            reasons["microbatch"] = "so many that every GPU has its share of a step"
        if asked.checkpointing is not None:
            reasons["gradient_checkpointing"] = GIVEN
        elif not recipe.gradient_checkpointing:
            reasons["gradient_checkpointing"] = "the GPU's memory is large enough without"
        elif all(each.gradient_checkpointing for each in fitting):
            reasons["gradient_checkpointing"] = "without it the GPU's memory is too small"
        else:
            reasons["gradient_checkpointing"] = "faster: there is room for a larger microbatch"

    def _with(self, recipe: Recipe, **changes: object) -> Recipe:
        changed = msgspec.structs.replace(recipe, **changes)
        accumulation = self.step.accumulated(changed.microbatch)
        return msgspec.structs.replace(changed, accumulation=accumulation)

    def _say_accumulation(self) -> None:
        if self.asked.accumulation is not None:
            self.reasons["accumulation"] = GIVEN
        elif self.asked.microbatch is None:
            self.reasons["accumulation"] = f"for {self.step.batch} examples per step"
        else:
            self.reasons["accumulation"] = "so many that every GPU has its share of a step"

    def _refusal(self, first: Recipe) -> InvalidInput:
        """The field that could be changed so that it fits, and to what."""
        model, memory = self.model, self.site.memory
        assert model is not None  # else everything fits
        assert memory is not None
        where = f"in the {memory:g} GB of {self.site.accelerator}"
        given = self.step.microbatches[-1]
        tried = self._with(
            first,
            microbatch=given,
            gradient_checkpointing=self.asked.checkpointing is not False,
        )
        needs = f"{given} x {first.max_length} tokens {self._needs(tried)}"
        smaller = _largest(given, lambda size: self._fits(self._with(tried, microbatch=size)))
        if smaller:
            field = "training.per_device_train_batch_size"
            return InvalidInput(field, given, f"at most {smaller} {where}; {needs}")
        if self._fits(self._with(tried, gradient_checkpointing=True)):
            return InvalidInput("training.gradient_checkpointing", False, f"true {where}; {needs}")
        shorter = _largest(
            first.max_length, lambda size: self._fits(self._with(tried, max_length=size))
        )
        if shorter >= SHORTEST:
            return InvalidInput(
                "training.max_length", first.max_length, f"at most {shorter} {where}; {needs}"
            )
        if first.method is Method.FULL and self._fits(self._with(tried, method=Method.LORA)):
            return InvalidInput("method", "full", f"lora {where}; with full {needs}")
        parameters = self.prospects.largest_model(tried, model.parameters)
        most = f"at most about {parameters / 1e9:.2g} billion parameters" if parameters else "none"
        return InvalidInput(
            "model",
            self.spec.model,
            f"{most} with {first.method} {where}; "
            f"this one has {model.parameters / 1e9:.3g} billion: {needs}",
        )

    def _needs(self, recipe: Recipe) -> str:
        if self.prospects.ran_out(recipe):
            return "ran out of memory in an earlier job"
        estimate = self.prospects.one(recipe)
        if not known(estimate.memory_gb):
            return f"fit with a probability of {estimate.p_valid:.0%} only"
        likely = f"need {estimate.memory_gb.middle:.1f} GB"
        high = estimate.memory_gb.high
        return f"{likely}, {high:.1f} GB at the worst" if math.isfinite(high) else likely


def _largest(below: int, fits: Callable[[int], bool]) -> int:
    """The largest number below that fits, 0 if none does."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low

"""The recipe of one job: method, precision, microbatch, checkpointing and length.

``choose_recipe`` takes the fastest recipe that fits in GPU memory and gives a reason for each
choice. ``prospects`` asks configuration knowledge whether a recipe fits and how fast it is.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.errors import InvalidInput
from duetune.jobs.plan_reasons import member_reason
from duetune.jobs.prospects import Prospects, known
from duetune.jobs.question import Question
from duetune.jobs.site import Site
from duetune.jobs.trainer_facts import trainer_software
from duetune.jobs.trainer_knowledge import Packing, TrainerKnowledge
from duetune.knowledge.advice import GIVEN
from duetune.knowledge.configurations.configuration import (
    Method,
    Precision,
)
from duetune.knowledge.estimate import FITS
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.sources.analytic import AnalyticSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.estimate import Estimate
    from duetune.knowledge.facts.model_facts import ModelFacts


SHORTEST = 128


class Chosen(NamedTuple):
    """A recipe as one GPU runs it with all microbatches of a step, the estimate for it, and the
    reason for each field.

    ``prospects`` is for members of as many GPUs as the recipe needs. ``conceded`` are the fields
    whose usual value does not fit, and why. ``rank`` says in which order such recipes are tried.
    """

    one: Configuration
    estimate: Estimate
    reasons: dict[str, str]
    prospects: Prospects
    conceded: dict[str, str]
    rank: int

    @property
    def gpus_per_member(self) -> int:
        """Return how many GPUs share one copy of the model."""
        return self.prospects.gpus_per_member

    @property
    def concessions(self) -> list[str]:
        """What was changed so that the recipe fits, in words."""
        values = {
            "method": f"method {self.one.method}",
            "precision": f"precision {self.one.precision}",
            "max_length": f"sequences of {self.one.tokens_per_sample:,} tokens",
            "gpus_per_member": f"members of {self.gpus_per_member} GPUs",
        }
        return [f"{values[field]}: {why}" for field, why in self.conceded.items()]


def choose_recipe(
    asked: Question,
    model: str,
    facts: ModelFacts | None,
    site: Site,
    gpus: tuple[int, int],
    rows: int | None,
    trainer: TrainerKnowledge,
    method: tuple[str, str] | None = None,
) -> Chosen:
    """Return the recipe for the least to the most ``gpus`` and ``rows`` training examples (None:
    unknown).

    ``fits``, ``recommend``, ``plan``, ``launch`` and exports all choose with it. A member gets as
    few GPUs as the model needs, or a whole node if the fleet gives no less. ``method`` is the
    training method and why, if it is decided already. A model of unknown size is assumed to fit.
    Refuses a job that fits in no way, and says which field to change.
    """
    asked.usable([site])
    node = site.gpus_per_node
    alone = Prospects(trainer, node or 1)
    limited = facts is not None and site.memory is not None
    fits = alone.fits if limited else None
    method = method or asked.chosen_method(model, facts, [site], fits)
    refusal: InvalidInput | None = None
    for size in asked.member_sizes(method[0], *gpus, node):
        prospects = Prospects(trainer, size)
        try:
            whole = gpus[1] // size * size
            return _Choice(asked, model, facts, site, whole, rows, prospects).made(*method)
        except InvalidInput as error:
            refusal = refusal or error
            # More GPUs per member help only if the model itself is too large for one.
            if error.field not in {"model", "method"}:
                break
    assert refusal is not None
    raise refusal


def recipe_by_data_sheet(
    spec: JobSpec,
    accelerator: str,
    gpus: int,
    rows: int | None = None,
    tokens_per_row: float | None = None,
) -> Chosen:
    """Return the recipe for ``gpus`` GPUs of one kind, from data sheets and physics alone.

    Exports call it: they know no fleet and no measured runs. ``rows`` are the training examples.
    """
    site = Site(accelerator=accelerator, max_gpus=gpus, software=trainer_software())
    packing = Packing.of(spec, tokens_per_row)
    trainer = TrainerKnowledge(AnalyticSource(), site.software, packing=packing)
    name = spec.model or ""
    asked, facts = Question.of(spec), model_facts(name)
    return choose_recipe(asked, name, facts, site, (gpus, gpus), rows, trainer)


class _Choice:
    """One choice of a recipe; ``reasons`` fills up while it is made."""

    def __init__(
        self,
        asked: Question,
        name: str,
        model: ModelFacts | None,
        site: Site,
        gpus: int,
        rows: int | None,
        prospects: Prospects,
    ) -> None:
        self.asked, self.name, self.model, self.site = asked, name, model, site
        self.step = asked.step(gpus, rows)
        self.prospects = prospects
        self.limited = model is not None and site.memory is not None
        self.reasons: dict[str, str] = {}

    def made(self, method: str, why: str) -> Chosen:
        asked, reasons = self.asked, self.reasons
        _, reasons["precision"] = asked.computed_in(self.site)
        _, reasons["max_length"] = asked.length(self.model)
        reasons["method"] = why
        reasons["gpus_per_member"] = member_reason(
            asked.gpus_per_member, self.prospects.gpus_per_member, self.site.gpus_per_node
        )
        if method != Method.FULL:
            _, reasons["lora_r"] = asked.rank()
        return self._first_that_fits(method)

    def _first_that_fits(self, method: str) -> Chosen:
        """Return the best recipe of the method, or else of one with smaller weights, as far as the
        spec leaves it open.
        """
        first = self._with(self._of(method))
        smaller: Configuration | None = None
        changed: dict[str, str] = {}
        alone = self.prospects.gpus_per_member == 1
        if method == Method.LORA and self.asked.method is None and alone:
            smaller = self._with(self._of(Method.QLORA))
            changed = {"method": "adapters on weights in 16 bits do not fit in GPU memory"}
        elif first.precision is Precision.BF16_MIXED and self.asked.precision is None:
            smaller = first.replace(precision=Precision.BF16)
            changed = {"precision": "weights in 32 bits do not fit in GPU memory"}
        tried = [(first, {})] if smaller is None else [(first, {}), (smaller, changed)]
        # Examples are cut only if nothing else helps.
        for place, (shorter, (one, reasons)) in enumerate(itertools.product((False, True), tried)):
            found = self._best(one, shorter=shorter)
            if found is not None:
                self.reasons |= reasons
                self._say_accumulation()
                conceded = self._conceded(reasons, shorter=shorter)
                return Chosen(*found, self.reasons, self.prospects, conceded, place)
        raise self._refusal(first)

    def _conceded(self, changed: dict[str, str], *, shorter: bool) -> dict[str, str]:
        """Return the fields that were changed so that the recipe fits, and why."""
        found = [*changed, *(["max_length"] if shorter else [])]
        chosen = self.asked.gpus_per_member is None and self.site.gpus_per_node is None
        if self.prospects.gpus_per_member > 1 and chosen:
            found.append("gpus_per_member")
        return {field: self.reasons[field] for field in found}

    def _of(self, method: str) -> Configuration:
        return self.asked.configuration(method, self.name, self.model, self.site)

    def _best(
        self, first: Configuration, *, shorter: bool
    ) -> tuple[Configuration, Estimate] | None:
        """Return the fastest configuration that fits, with all of each example or, if ``shorter``,
        less of it; None if there is none.
        """
        lengths = [first.tokens_per_sample]
        while self.asked.max_length is None and lengths[-1] // 2 >= SHORTEST:
            lengths.append(lengths[-1] // 2)
        for length in lengths[1:] if shorter else lengths[:1]:
            tried = self._candidates(first.replace(tokens_per_sample=length))
            found = self.prospects.of(tried)
            rows = np.flatnonzero(found.p_valid >= (FITS if self.limited else 0.0))
            if len(rows):
                fitting, estimates = [tried[row] for row in rows.tolist()], found.take(rows)
                paced = self.site.measurable and self.model is not None
                place = self.prospects.fastest(fitting, estimates) if paced else None
                self._say_recipe(first, fitting[place or 0], fitting)
                return fitting[place or 0], estimates[place or 0]
        return None

    def _candidates(self, first: Configuration) -> list[Configuration]:
        """Return configurations to try, best first where their paces are unknown: a smaller
        microbatch costs less than recomputing activations.
        """
        given = self.asked.checkpointing
        return [
            self._with(first, grad_checkpoint=checkpointing, batch_size=microbatch)
            for checkpointing in ((False, True) if given is None else (given,))
            for microbatch in self.step.microbatches
        ]

    def _fits(self, one: Configuration) -> bool:
        return not self.limited or self.prospects.fits(one)

    def _say_recipe(
        self, first: Configuration, one: Configuration, fitting: list[Configuration]
    ) -> None:
        reasons, asked = self.reasons, self.asked
        if one.tokens_per_sample < first.tokens_per_sample:
            reasons["max_length"] = "the longest that fits in GPU memory"
        sizes = {
            tried.batch_size for tried in fitting if tried.grad_checkpoint == one.grad_checkpoint
        }
        if asked.microbatch is not None:
            reasons["microbatch"] = GIVEN
        elif one.batch_size < max(sizes):
            reasons["microbatch"] = "the fastest of those that fit"
        elif one.batch_size < self.step.microbatches[0]:
            reasons["microbatch"] = "the largest that fits in GPU memory"
        else:
            reasons["microbatch"] = "every GPU gets a share of a step"
        if asked.checkpointing is not None:
            reasons["gradient_checkpointing"] = GIVEN
        elif not one.grad_checkpoint:
            reasons["gradient_checkpointing"] = "not needed: GPU memory is large enough"
        elif all(each.grad_checkpoint for each in fitting):
            reasons["gradient_checkpointing"] = "needed: GPU memory is too small without it"
        else:
            reasons["gradient_checkpointing"] = "faster: it makes room for a larger microbatch"

    def _with(self, one: Configuration, **changes: object) -> Configuration:
        changed = one.replace(**changes)
        return changed.replace(grad_accum=self.step.accumulated(changed.batch_size))

    def _say_accumulation(self) -> None:
        if self.asked.accumulation is not None:
            self.reasons["accumulation"] = GIVEN
        elif self.asked.microbatch is None:
            self.reasons["accumulation"] = f"for {self.step.batch} examples per step"
        else:
            self.reasons["accumulation"] = "every GPU gets a share of a step"

    def _refusal(self, first: Configuration) -> InvalidInput:
        """Return the error that names the field to change so that the job fits, and its limit."""
        model, memory = self.model, self.site.memory
        assert model is not None  # an unknown model is never refused
        assert memory is not None
        where = f"in the {memory:g} GB of {self.site.accelerator}"
        given = self.step.microbatches[-1]
        tried = self._with(
            first,
            batch_size=given,
            grad_checkpoint=self.asked.checkpointing is not False,
        )
        needs = f"{given} x {first.tokens_per_sample} tokens {self._needs(tried)}"
        smaller = _largest(given, lambda size: self._fits(self._with(tried, batch_size=size)))
        if smaller:
            field = "training.per_device_train_batch_size"
            return InvalidInput(field, given, f"at most {smaller} {where}; {needs}")
        if self._fits(self._with(tried, grad_checkpoint=True)):
            return InvalidInput("training.gradient_checkpointing", False, f"true {where}; {needs}")
        shorter = _largest(
            first.tokens_per_sample,
            lambda size: self._fits(self._with(tried, tokens_per_sample=size)),
        )
        if shorter >= SHORTEST:
            return InvalidInput(
                "training.max_length",
                first.tokens_per_sample,
                f"at most {shorter} {where}; {needs}",
            )
        if first.method is Method.FULL and self._fits(
            self._of(Method.LORA).replace(
                batch_size=tried.batch_size, grad_checkpoint=tried.grad_checkpoint
            )
        ):
            return InvalidInput("method", "full", f"lora {where}; with full {needs}")
        parameters = self.prospects.largest_model(tried, model.parameters)
        most = f"at most about {parameters / 1e9:.2g} billion parameters" if parameters else "none"
        return InvalidInput(
            "model",
            self.name,
            f"{most} with {first.method} {where}; "
            f"this one has {model.parameters / 1e9:.3g} billion: {needs}",
        )

    def _needs(self, one: Configuration) -> str:
        if self.prospects.source.ran_out(one):
            return "ran out of memory in an earlier job"
        estimate = self.prospects.one(one)
        if not known(estimate.memory_gb):
            return f"fit with a probability of only {estimate.p_valid:.0%}"
        likely = f"need {estimate.memory_gb.middle:.1f} GB"
        high = estimate.memory_gb.high
        return f"{likely}, up to {high:.1f} GB" if math.isfinite(high) else likely


def _largest(below: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number below ``below`` that fits; 0 if none does."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low

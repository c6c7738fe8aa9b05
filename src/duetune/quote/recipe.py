"""How to train: method, precision, batch and length that fit and are fast, each with a reason."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duetune.errors import InvalidInput
from duetune.quote.prospects import known
from duetune.quote.trainer import ALL_LINEAR, ATTENTION, Recipe
from duetune.spec.schema import Method as Wish
from duetune.training.task import Method, TrainingTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.knowledge.model_facts import ModelFacts
    from duetune.quote.prospects import Prospect, Prospects
    from duetune.quote.site import Site
    from duetune.spec.schema import JobSpec

GIVEN = "given"
USUAL = TrainingTask(model="", dataset="")
USUAL_BATCH = 16
LARGEST_USUAL_BATCH = 64
SHORTEST = 128
SMALL_MODEL = 1e9
NEARLY = 0.02
"""Of recipes whose paces differ by less than this share the smallest in memory is taken."""


class Chosen(NamedTuple):
    recipe: Recipe
    prospect: Prospect
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
        self.tokens_per_row = tokens_per_row
        self.spec, self.training, self.site, self.model = spec, spec.training, site, model
        self.prospects = prospects
        self.limited = model is not None and site.memory is not None
        self.gpus = gpus
        self.reasons: dict[str, str] = {}
        usual = _power_up(max(USUAL_BATCH, gpus))
        self.batch = usual if rows is None else min(usual, _power_down(max(1, rows)))

    def made(self) -> Chosen:
        precision = self._precision()
        lora_r = self._given("lora_r", self.training.lora_r, USUAL.lora_r, "the usual rank")
        length = self._length()
        targets = self.training.lora_target_modules or USUAL.lora_target_modules
        first = self._with(
            Recipe(
                method=Method.LORA,
                precision=precision,
                microbatch=1,
                max_length=length,
                gradient_checkpointing=False,
                lora_r=lora_r,
                lora_targets=ALL_LINEAR if targets == ALL_LINEAR else ATTENTION,
                usual_length=round(min(self.tokens_per_row or 0.0, length)),
            )
        )
        first = self._with(first, method=self._method(first))
        if first.method is Method.FULL:
            del self.reasons["lora_r"]
        recipe, prospect = self._best(first)
        self._say_accumulation()
        return Chosen(recipe, prospect, self.reasons)

    def _given(self, field: str, value: int | None, otherwise: int, why: str) -> int:
        self.reasons[field] = why if value is None else GIVEN
        return otherwise if value is None else value

    def _precision(self) -> str:
        training, gpu = self.training, self.site.gpu
        self.reasons["precision"] = GIVEN
        if training.bf16:
            return "bf16"
        if training.fp16:
            return "fp16"
        if training.bf16 is False and training.fp16 is False:
            return "fp32"
        if self.site.emulated_microbatch_s is not None:
            self.reasons["precision"] = "the GPU is emulated"
            return "fp32"
        if gpu is None:
            self.reasons["precision"] = f"nothing is known of {self.site.accelerator}"
            return "fp32"
        if gpu.bf16 and training.bf16 is None:
            self.reasons["precision"] = f"{self.site.accelerator} computes in bfloat16"
            return "bf16"
        if training.fp16 is None:
            self.reasons["precision"] = f"{self.site.accelerator} has no bfloat16"
            return "fp16"
        return "fp32"

    def _length(self) -> int:
        context = None if self.model is None else self.model.context
        wish = self.training.max_length
        if wish is None and context is not None and context < USUAL.max_length:
            self.reasons["max_length"] = "all that the model can take"
            return context
        return self._given("max_length", wish, USUAL.max_length, "the usual length")

    def _method(self, recipe: Recipe) -> Method:
        training, model = self.training, self.model
        if self.spec.method is not Wish.AUTO:
            self.reasons["method"] = GIVEN
            return Method(self.spec.method.value)
        adapter = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")
        if any(getattr(training, field) is not None for field in adapter):
            self.reasons["method"] = "the spec says how to adapt"
        elif model is None or not self.limited:
            self.reasons["method"] = "adapters need the least memory, and it is not known"
        elif model.parameters >= SMALL_MODEL:
            self.reasons["method"] = "adapters: the model has a billion parameters or more"
        elif not self.prospects.fits(self._with(recipe, method=Method.FULL)):
            self.reasons["method"] = "adapters: all weights would need more than the GPU's memory"
        else:
            self.reasons["method"] = "the model is small: all weights are trained"
            return Method.FULL
        return Method.LORA

    def _microbatches(self) -> list[int]:
        """Those to try, the largest first."""
        training = self.training
        if training.per_device_train_batch_size is not None:
            return [training.per_device_train_batch_size]
        # A step of fewer microbatches than GPUs would leave some of them idle.
        share = training.gradient_accumulation_steps or self.gpus
        size = _power_down(max(1, self.batch // share))
        return [2**power for power in range(size.bit_length() - 1, -1, -1)]

    def _best(self, first: Recipe) -> tuple[Recipe, Prospect]:
        """The fastest that fits; cutting examples is the last resort."""
        lengths = [first.max_length]
        while self.training.max_length is None and lengths[-1] // 2 >= SHORTEST:
            lengths.append(lengths[-1] // 2)
        for length in lengths:
            tried = self._candidates(self._with(first, max_length=length))
            found = list(zip(tried, self.prospects.of(tried), strict=True))
            fitting = [each for each in found if not self.limited or each[1].fits]
            if fitting:
                best = fitting[self._fastest([prospect for _, prospect in fitting])]
                self._say_recipe(first, best[0], fitting)
                return best
        raise self._refusal(first)

    def _candidates(self, first: Recipe) -> list[Recipe]:
        """In the order of preference where nothing is known of their paces: recomputing is dearer
        than a small microbatch.
        """
        given = self.training.gradient_checkpointing
        return [
            self._with(first, gradient_checkpointing=checkpointing, microbatch=microbatch)
            for checkpointing in ((False, True) if given is None else (given,))
            for microbatch in self._microbatches()
        ]

    def _fastest(self, prospects: list[Prospect]) -> int:
        paces = [each.tokens_per_s.middle for each in prospects if known(each.tokens_per_s)]
        if not self.site.measurable or self.model is None or not paces:
            return 0
        enough = (1 - NEARLY) * max(paces)

        def memory(place: int) -> float:
            gigabytes = prospects[place].memory_gb.middle
            return gigabytes if math.isfinite(gigabytes) else math.inf

        nearly = [
            place for place, each in enumerate(prospects) if each.tokens_per_s.middle >= enough
        ]
        return min(nearly, key=memory)

    def _fits(self, recipe: Recipe) -> bool:
        return not self.limited or self.prospects.fits(recipe)

    def _say_recipe(
        self, first: Recipe, recipe: Recipe, fitting: list[tuple[Recipe, Prospect]]
    ) -> None:
        reasons, training = self.reasons, self.training
        if recipe.max_length < first.max_length:
            reasons["max_length"] = "the longest that fits in the GPU's memory"
        sizes = {
            each.microbatch
            for each, _ in fitting
            if each.gradient_checkpointing == recipe.gradient_checkpointing
        }
        if training.per_device_train_batch_size is not None:
            reasons["microbatch"] = GIVEN
        elif recipe.microbatch < max(sizes):
            reasons["microbatch"] = "the fastest of those that fit"
        elif recipe.microbatch < self._microbatches()[0]:
            reasons["microbatch"] = "the most that fits in the GPU's memory"
        else:
            reasons["microbatch"] = "so many that every GPU has its share of a step"
        if training.gradient_checkpointing is not None:
            reasons["gradient_checkpointing"] = GIVEN
        elif not recipe.gradient_checkpointing:
            reasons["gradient_checkpointing"] = "the GPU's memory is large enough without"
        elif all(each.gradient_checkpointing for each, _ in fitting):
            reasons["gradient_checkpointing"] = "without it the GPU's memory is too small"
        else:
            reasons["gradient_checkpointing"] = "faster: there is room for a larger microbatch"

    def _with(self, recipe: Recipe, **changes: object) -> Recipe:
        changed = msgspec.structs.replace(recipe, **changes)
        return msgspec.structs.replace(changed, accumulation=self._accumulation(changed.microbatch))

    def _accumulation(self, microbatch: int) -> int:
        """K: microbatches per optimiser step, over all GPUs."""
        training = self.training
        if training.gradient_accumulation_steps is not None:
            return training.gradient_accumulation_steps
        least = -(-self.batch // microbatch)
        if training.per_device_train_batch_size is None:
            return least
        return max(least, min(self.gpus, LARGEST_USUAL_BATCH // microbatch))

    def _say_accumulation(self) -> None:
        training = self.training
        if training.gradient_accumulation_steps is not None:
            self.reasons["accumulation"] = GIVEN
        elif training.per_device_train_batch_size is None:
            self.reasons["accumulation"] = f"for {self.batch} examples per step"
        else:
            self.reasons["accumulation"] = "so many that every GPU has its share of a step"

    def _refusal(self, first: Recipe) -> InvalidInput:
        """The field that could be changed so that it fits, and to what."""
        model, memory, training = self.model, self.site.memory, self.training
        assert model is not None  # else everything fits
        assert memory is not None
        where = f"in the {memory:g} GB of {self.site.accelerator}"
        given = self._microbatches()[-1]
        tried = self._with(
            first,
            microbatch=given,
            gradient_checkpointing=training.gradient_checkpointing is not False,
        )
        needs = f"{given} x {first.max_length} tokens {_needs(self.prospects.one(tried))}"
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


def _needs(prospect: Prospect) -> str:
    if prospect.ran_out:
        return "ran out of memory in an earlier job"
    if not known(prospect.memory_gb):
        return f"fit with a probability of {prospect.p_fits:.0%} only"
    likely = f"need {prospect.memory_gb.middle:.1f} GB"
    high = prospect.memory_gb.high
    return f"{likely}, {high:.1f} GB at the worst" if math.isfinite(high) else likely


def _largest(below: int, fits: Callable[[int], bool]) -> int:
    """The largest number below that fits, 0 if none does."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _power_down(number: int) -> int:
    return 1 << (number.bit_length() - 1)


def _power_up(number: int) -> int:
    return 1 << (number - 1).bit_length()

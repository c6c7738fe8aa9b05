"""How to train: method, precision, batch and length that fit on the GPU, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duetune.errors import InvalidInput
from duetune.quote.memory import COMFORT, Recipe, largest_model, peak_gb
from duetune.spec.schema import Method as Wish
from duetune.training.task import Method, TrainingTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from duetune.quote.model import ModelFacts
    from duetune.quote.site import Site
    from duetune.spec.schema import JobSpec

GIVEN = "given"
USUAL = TrainingTask(model="", dataset="")
USUAL_BATCH = 16
LARGEST_USUAL_BATCH = 64
SHORTEST = 128
SMALL_MODEL = 1e9
ROOMY = 0.6
"""Training all weights is chosen only where it takes at most this share of the memory."""


class Chosen(NamedTuple):
    recipe: Recipe
    accumulation: int
    reasons: dict[str, str]


def choose_recipe(
    spec: JobSpec, site: Site, model: ModelFacts | None, gpus: int, rows: int | None
) -> Chosen:
    """For a group of up to ``gpus`` GPUs and ``rows`` training examples, if they are known.

    A model of which nothing is known is taken to fit.
    """
    return _Choice(spec, site, model, gpus, rows).made()


class _Choice:
    def __init__(
        self, spec: JobSpec, site: Site, model: ModelFacts | None, gpus: int, rows: int | None
    ) -> None:
        self.spec, self.training, self.site, self.model = spec, spec.training, site, model
        self.gpus = gpus
        self.reasons: dict[str, str] = {}
        usual = _power_up(max(USUAL_BATCH, gpus))
        self.batch = usual if rows is None else min(usual, _power_down(max(1, rows)))

    def made(self) -> Chosen:
        precision = self._precision()
        lora_r = self._given("lora_r", self.training.lora_r, USUAL.lora_r, "the usual rank")
        length = self._length()
        first = Recipe(Method.LORA, precision, 1, length, False, lora_r)
        first = msgspec.structs.replace(first, method=self._method(first))
        if first.method is Method.FULL:
            del self.reasons["lora_r"]
        recipe = next((each for each in self._candidates(first) if self._fits(each)), None)
        if recipe is None:
            raise self._refusal(first)
        self._say_recipe(first, recipe)
        return Chosen(recipe, self._accumulation(recipe), self.reasons)

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
        training, model, memory = self.training, self.model, self.site.memory
        if self.spec.method is not Wish.AUTO:
            self.reasons["method"] = GIVEN
            return Method(self.spec.method.value)
        adapter = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")
        if any(getattr(training, field) is not None for field in adapter):
            self.reasons["method"] = "the spec says how to adapt"
        elif model is None or memory is None:
            self.reasons["method"] = "adapters need the least memory, and it is not known"
        elif model.parameters >= SMALL_MODEL:
            self.reasons["method"] = "adapters: the model has a billion parameters or more"
        elif peak_gb(model, msgspec.structs.replace(recipe, method=Method.FULL)) > ROOMY * memory:
            self.reasons["method"] = "adapters: all weights would need most of the GPU's memory"
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

    def _candidates(self, first: Recipe) -> Iterator[Recipe]:
        """In order of preference: recomputing is dearer than a small microbatch, and cutting
        examples is the last resort.
        """
        given = self.training.gradient_checkpointing
        lengths = [first.max_length]
        while self.training.max_length is None and lengths[-1] // 2 >= SHORTEST:
            lengths.append(lengths[-1] // 2)
        for length in lengths:
            for checkpointing in (False, True) if given is None else (given,):
                for microbatch in self._microbatches():
                    yield msgspec.structs.replace(
                        first,
                        max_length=length,
                        gradient_checkpointing=checkpointing,
                        microbatch=microbatch,
                    )

    def _fits(self, recipe: Recipe) -> bool:
        memory = self.site.memory
        if self.model is None or memory is None:
            return True
        return peak_gb(self.model, recipe) <= COMFORT * memory

    def _say_recipe(self, first: Recipe, recipe: Recipe) -> None:
        reasons, training = self.reasons, self.training
        if recipe.max_length < first.max_length:
            reasons["max_length"] = "the longest that fits in the GPU's memory"
        most = self._microbatches()[0]
        reasons["microbatch"] = (
            "the most that fits in the GPU's memory"
            if recipe.microbatch < most
            else "so many that every GPU has its share of a step"
        )
        if training.per_device_train_batch_size is not None:
            reasons["microbatch"] = GIVEN
        reasons["gradient_checkpointing"] = (
            "without it the GPU's memory is too small"
            if recipe.gradient_checkpointing
            else "the GPU's memory is large enough without"
        )
        if training.gradient_checkpointing is not None:
            reasons["gradient_checkpointing"] = GIVEN

    def _accumulation(self, recipe: Recipe) -> int:
        """K: microbatches per optimiser step, over all GPUs."""
        training, microbatch = self.training, recipe.microbatch
        if training.gradient_accumulation_steps is not None:
            self.reasons["accumulation"] = GIVEN
            return training.gradient_accumulation_steps
        least = -(-self.batch // microbatch)
        if training.per_device_train_batch_size is None:
            self.reasons["accumulation"] = f"for {self.batch} examples per step"
            return least
        self.reasons["accumulation"] = "so many that every GPU has its share of a step"
        return max(least, min(self.gpus, LARGEST_USUAL_BATCH // microbatch))

    def _refusal(self, first: Recipe) -> InvalidInput:
        """The field that could be changed so that it fits, and to what."""
        model, memory, training = self.model, self.site.memory, self.training
        assert model is not None  # else everything fits
        assert memory is not None
        where = f"in the {memory:g} GB of {self.site.accelerator}"
        given = self._microbatches()[-1]
        tried = msgspec.structs.replace(
            first,
            microbatch=given,
            gradient_checkpointing=training.gradient_checkpointing is not False,
        )
        needs = f"{given} x {first.max_length} tokens need {peak_gb(model, tried):.1f} GB"
        smaller = _largest(
            given, lambda size: self._fits(msgspec.structs.replace(tried, microbatch=size))
        )
        if smaller:
            field = "training.per_device_train_batch_size"
            return InvalidInput(field, given, f"at most {smaller} {where}; {needs}")
        if self._fits(msgspec.structs.replace(tried, gradient_checkpointing=True)):
            return InvalidInput("training.gradient_checkpointing", False, f"true {where}; {needs}")
        shorter = _largest(
            first.max_length,
            lambda size: self._fits(msgspec.structs.replace(tried, max_length=size)),
        )
        if shorter >= SHORTEST:
            return InvalidInput(
                "training.max_length", first.max_length, f"at most {shorter} {where}; {needs}"
            )
        adapted = msgspec.structs.replace(tried, method=Method.LORA)
        if first.method is Method.FULL and self._fits(adapted):
            return InvalidInput("method", "full", f"lora {where}; with full {needs}")
        billions = largest_model(memory, tried) / 1e9
        return InvalidInput(
            "model",
            self.spec.model,
            f"at most about {billions:.2g} billion parameters with {first.method} {where}; "
            f"this one has {model.parameters / 1e9:.3g} billion: {needs}",
        )


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

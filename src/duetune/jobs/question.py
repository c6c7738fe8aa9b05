"""What a user says about how to train, and the trainer's default for everything left open.

A job spec, the options of ``fits`` and those of ``recommend`` all become a ``Question``, so a field
that nobody names gets the same value in all of them. Most methods return a value and the reason for
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.jobs.spec.adapter_fields import LORA_SETTINGS
from duetune.jobs.spec.method_choice import MethodChoice
from duetune.jobs.trainer_facts import (
    ATTENTION,
    NO_RANK,
    USUAL,
    adapted_layers,
    known_optimiser,
    on_gpus,
    precision_kept,
    unshardable,
)
from duetune.knowledge.advice import GIVEN
from duetune.knowledge.configurations.configuration import (
    Attention,
    Configuration,
    Method,
    Precision,
)
from duetune.knowledge.facts.model_registry import model_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from duetune.jobs.site import Site
    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.knowledge.facts.model_facts import ModelFacts

USUAL_BATCH = 16
LARGEST_USUAL_BATCH = 64
SMALL_MODEL = 1e9
USUAL_GPUS = 8
"""Most GPUs of a job that does not say how many it may use."""

MEMBER_SIZES = (1, 2, 4, 8)
"""Numbers of GPUs that may share one copy of the model, fewest first: those of one node."""


class Step(msgspec.Struct, frozen=True):
    """How the examples of one optimiser step can be divided: ``batch`` examples on up to ``gpus``
    GPUs.

    ``microbatch`` and ``accumulation`` are the values that were given. ``exact`` says that
    ``batch`` was given.
    """

    batch: int
    gpus: int
    microbatch: int | None = None
    accumulation: int | None = None
    exact: bool = False

    @property
    def microbatches(self) -> list[int]:
        """The microbatch sizes of one GPU that may be tried, largest first."""
        if self.microbatch is not None:
            return [self.microbatch]
        if self.exact:
            return [size for size in range(self.batch, 0, -1) if self.batch % size == 0]
        # A step of fewer microbatches than GPUs would leave some of them idle.
        size = _power_down(max(1, self.batch // (self.accumulation or self.gpus)))
        return [2**power for power in range(size.bit_length() - 1, -1, -1)]

    def cuts(self, gpus: int) -> list[tuple[int, int]]:
        """Return pairs of microbatch size and microbatches per step, for exactly ``gpus`` GPUs.
        Where the GPUs cannot share a step evenly, some of them wait in its last round.
        """
        sizes = msgspec.structs.replace(self, gpus=gpus).microbatches
        found = [(size, count) for size in sizes if (count := self.accumulated(size)) >= gpus]
        return [cut for cut in found if cut[1] % gpus == 0] or found

    def accumulated(self, microbatch: int) -> int:
        """Return the number of microbatches of a step over all GPUs."""
        if self.accumulation is not None:
            return self.accumulation
        least = -(-self.batch // microbatch)
        if self.microbatch is None or self.exact:
            return least
        return max(least, min(self.gpus, LARGEST_USUAL_BATCH // microbatch))


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What was said about training; None is what was left open.

    - ``batch`` is the number of examples per step, ``microbatch`` per GPU and forward pass,
      ``accumulation`` the microbatches of a step over all GPUs.
    - ``precision`` is how weights are stored; ``bf16`` and ``fp16`` say what is computed in.
    - ``optim`` is the trainer's name of the optimiser.
    - ``adapters`` says that some LoRA setting was given.
    - ``gpus_per_member`` is how many GPUs share one copy of the model.
    """

    method: str | None = None
    max_length: int | None = None
    batch: int | None = None
    microbatch: int | None = None
    accumulation: int | None = None
    checkpointing: bool | None = None
    precision: str | None = None
    bf16: bool | None = None
    fp16: bool | None = None
    lora_r: int | None = None
    lora_targets: str | tuple[str, ...] | None = None
    adapters: bool = False
    optim: str | None = None
    gpus_per_member: int | None = None

    @classmethod
    def of(cls, spec: JobSpec) -> Question:
        """Return what a job spec says."""
        training = spec.training
        return cls(
            method=None if spec.method is MethodChoice.AUTO else spec.method.value,
            max_length=training.max_length,
            microbatch=training.per_device_train_batch_size,
            accumulation=training.gradient_accumulation_steps,
            checkpointing=training.gradient_checkpointing,
            precision=training.precision,
            bf16=training.bf16,
            fp16=training.fp16,
            optim=training.optim,
            lora_r=training.lora_r,
            lora_targets=training.lora_target_modules,
            adapters=any(getattr(training, name) not in {None, False} for name in LORA_SETTINGS),
            gpus_per_member=spec.resources.gpus_per_member,
        )

    def length(self, model: ModelFacts | None) -> tuple[int, str]:
        """Return the tokens of the longest example, and why."""
        context = None if model is None else model.context
        if self.max_length is not None:
            return self.max_length, GIVEN
        if context is not None and context < USUAL.max_length:
            return context, "the model's context length"
        return USUAL.max_length, "the default length"

    def rank(self) -> tuple[int, str]:
        """Return the LoRA rank, and why."""
        return (USUAL.lora_r, "the default rank") if self.lora_r is None else (self.lora_r, GIVEN)

    def layers(self) -> tuple[str, str]:
        """Return which layers LoRA adapts, and why."""
        return adapted_layers(
            self.lora_targets
        ), GIVEN if self.lora_targets else "the default layers"

    def chosen_method(
        self,
        model: str,
        facts: ModelFacts | None,
        sites: Iterable[Site],
        fits: Callable[[Configuration], bool] | None,
    ) -> tuple[str, str]:
        """Return the training method, and why.

        ``fits`` is called only to find out whether all weights of a small model fit on one of the
        ``sites``. It is None if the memory of a GPU is unknown.
        """
        if self.method is not None:
            if self.method not in set(Method):
                raise InvalidInput("method", self.method, f"one of {', '.join(Method)}")
            return self.method, GIVEN
        if self.adapters:
            return Method.LORA.value, "the spec has LoRA settings"
        if facts is None or fits is None:
            unknown = "the size of the model" if facts is None else "the memory of the GPU"
            return Method.LORA.value, f"adapters need the least memory, and {unknown} is unknown"
        if facts.parameters >= SMALL_MODEL:
            return (
                Method.LORA.value,
                "the model has a billion parameters or more, so adapters are trained",
            )
        full = (self.configuration(Method.FULL, model, facts, site) for site in sites)
        if not any(map(fits, full)):
            return Method.LORA.value, "training all weights needs more than the GPU's memory"
        return (
            Method.FULL.value,
            "the model has fewer than a billion parameters, so all weights are trained",
        )

    def member_sizes(
        self, method: str, least: int, gpus: int, node: int | None = None
    ) -> list[int]:
        """Return how many GPUs a member may have, fewest first, in a job of ``least`` to ``gpus``
        GPUs; refuse a given number that cannot be. If the fleet gives only whole nodes of ``node``
        GPUs, a member is such a node.
        """
        given, why = self.gpus_per_member, unshardable(method, self.optim)
        if node is not None:
            words = whole_nodes(node)
            if given not in {None, node}:
                raise InvalidInput("resources.gpus_per_member", given, f"{node}: {words}")
            if node > 1 and why:
                raise InvalidInput("resources.gpus_per_member", node, f"1: {why}, but {words}")
            return [node]
        whole = [size for size in range(1, gpus + 1) if gpus // size * size >= least]
        if given is None:
            return [size for size in MEMBER_SIZES if size in whole and (size == 1 or not why)]
        if given > gpus:
            raise InvalidInput("resources.gpus_per_member", given, f"at most {gpus}, all its GPUs")
        if given not in whole:
            allowed = f"one of {', '.join(map(str, whole))}: members share {gpus} GPUs evenly"
            raise InvalidInput("resources.gpus_per_member", given, allowed)
        if given > 1 and why:
            raise InvalidInput("resources.gpus_per_member", given, f"1, because {why}")
        return [given]

    def usable(self, sites: Sequence[Site]) -> list[Site]:
        """Return the sites whose GPU can compute in the precision that was asked for; refuse the
        question if there is none. ``plan`` and ``recommend`` call it before they choose.
        """
        if not self.bf16 or self.precision is not None:
            return list(sites)
        able = [site for site in sites if site.gpu is None or site.gpu.bf16]
        if not able:
            names = " and ".join(site.accelerator for site in sites)
            allowed = f"false, or fp16: true instead, because {names} cannot compute in bfloat16"
            raise InvalidInput("training.bf16", True, allowed)
        return able

    def computed_in(self, site: Site) -> tuple[str, str]:
        """Return the precision to compute in (bf16, fp16 or fp32), and why."""
        gpu, name = site.gpu, site.accelerator
        if self.precision is not None:
            return self.precision.removesuffix("-mixed"), GIVEN
        if self.bf16 or self.fp16:
            return "bf16" if self.bf16 else "fp16", GIVEN
        if self.bf16 is False and self.fp16 is False:
            return "fp32", GIVEN
        if site.emulated_microbatch_s is not None:
            return "fp32", "the GPU is emulated"
        if gpu is None:
            return "fp32", f"no data sheet of {name}"
        if gpu.bf16 and self.bf16 is None:
            return "bf16", f"{name} computes in bfloat16"
        if self.fp16 is None:
            return "fp16", "bf16 is false" if gpu.bf16 else f"{name} has no bfloat16"
        return "fp32", GIVEN

    def kept_in(self, method: str, site: Site) -> tuple[str, str]:
        """Return the precision in which the weights are stored, and why."""
        if self.precision is not None:
            if self.precision not in set(Precision):
                raise InvalidInput("precision", self.precision, f"one of {', '.join(Precision)}")
            return self.precision, GIVEN
        word, reason = self.computed_in(site)
        return precision_kept(method, word).value, reason

    def configuration(
        self,
        method: str,
        model: str,
        facts: ModelFacts | None,
        site: Site,
        *,
        gpus: int = 1,
        gpus_per_member: int = 1,
        microbatch: int = 1,
        accumulation: int = 1,
        checkpointing: bool = False,
    ) -> Configuration:
        """Return the configuration that is asked about, for any method. ``accumulation`` counts the
        microbatches of a step over all GPUs.
        """
        whole = method == Method.FULL
        one = Configuration(
            model=model_name(model),
            method=Method(method),
            gpu_model=site.gpu_model,
            batch_size=microbatch,
            tokens_per_sample=self.length(facts)[0],
            grad_accum=accumulation,
            precision=Precision(self.kept_in(method, site)[0]),
            grad_checkpoint=checkpointing,
            optimiser=known_optimiser(self.optim),
            lora_rank=NO_RANK if whole else self.rank()[0],
            lora_targets=ATTENTION if whole else self.layers()[0],
            attention=Attention.SDPA if site.gpu is None else Attention.VARLEN,
            memory_cap_gb=site.memory_cap_gb,
            software=site.software,
        )
        return on_gpus(one, gpus, gpus_per_member)

    def step(self, gpus: int, rows: int | None = None) -> Step:
        """Return how a step on up to ``gpus`` GPUs can be divided, with ``rows`` examples."""
        if self.batch is not None:
            return Step(self.batch, gpus, self.microbatch, exact=True)
        usual = _power_up(max(USUAL_BATCH, gpus))
        batch = usual if rows is None else min(usual, _power_down(max(1, rows)))
        return Step(batch, gpus, self.microbatch, self.accumulation)


def whole_nodes(gpus: int) -> str:
    """Return in words that the fleet gives only whole nodes of ``gpus`` GPUs."""
    return f"the fleet gives only whole nodes of {gpus} GPU{'' if gpus == 1 else 's'}"


def _power_down(number: int) -> int:
    return 1 << (number.bit_length() - 1)


def _power_up(number: int) -> int:
    return 1 << (number - 1).bit_length()

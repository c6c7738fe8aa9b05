"""What a user asks the advisor, from a job spec and options."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.knowledge.advice import GIVEN, Request, asked_gpu, asked_model
from duetune.knowledge.configuration import Method, Precision, Sharding
from duetune.knowledge.gpus import GPUS, gpu_name
from duetune.knowledge.model_facts import model_facts
from duetune.knowledge.prices import prices_for
from duetune.knowledge.rules import Constraint
from duetune.knowledge.source import Limits, Objective
from duetune.knowledge.space import Domain, Role, Space
from duetune.knowledge.space_files import default_space
from duetune.quote.plan import held_out_rows
from duetune.quote.recipe import LARGEST_USUAL_BATCH, USUAL
from duetune.service.wishes import seconds_until
from duetune.spec.places import is_path
from duetune.spec.schema import JobSpec
from duetune.spec.schema import Method as SpecMethod
from duetune.training.data import check_dataset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duetune.knowledge.space import Value
    from duetune.settings import SiteSettings

ANY = "any"
NODE = 8
MOST_GPUS = 8
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?) *([kmbt]?)", re.IGNORECASE)
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_ATTENTION = frozenset(("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn"))


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed; None is what was not. ``gpus`` is an inventory such as ``H100:8,L40S:4``,
    ``price`` such as ``H100=2.5``; ``batch`` the sequences of one step of the optimiser.
    """

    model: str | None = None
    method: str | None = None
    seq: int | None = None
    batch: int | None = None
    objective: str | None = None
    gpus: str | None = None
    price: str | None = None
    tokens: str | None = None
    deadline: str | None = None
    precision: str | None = None
    sharding: str | None = None
    top: int = 5


class Site(msgspec.Struct, frozen=True):
    """What the site has: its GPUs, and what they cost on demand."""

    inventory: dict[str, int] = {}
    price: dict[str, float] = {}


def site_gpus(site: SiteSettings, price: float | None) -> Site:
    """Of a site that names its GPUs; one that does not has no say."""
    name = None if site.accelerator is None else gpu_name(site.accelerator)
    if name is None:
        return Site()
    return Site({name: site.max_gpus}, {} if price is None else {name: price})


def request(wanted: Wanted, spec: JobSpec | None = None, site: Site | None = None) -> Request:
    """What is wrong is refused here, before anything is computed."""
    return _Asking(wanted, spec, site or Site()).request()


class _Asking:
    def __init__(self, wanted: Wanted, spec: JobSpec | None, site: Site) -> None:
        if spec is not None and spec.run is not None:
            raise InvalidInput("run", spec.run, "a job of the built-in trainer, to advise on")
        self.wanted, self.spec, self.site = wanted, spec, site
        self.training = None if spec is None else spec.training
        self.given: dict[str, Value] = {}
        self.reasons: dict[str, str] = {}
        self.assumptions: list[str] = []
        self.constraints: list[Constraint] = []

    def request(self) -> Request:
        if self.wanted.top < 1:
            raise InvalidInput("top", self.wanted.top, "one or more")
        self._model()
        self._method()
        inventory = self._inventory()
        space = self._batch(self._gpus(default_space(), inventory))
        space = self._precision(space, tuple(inventory))
        deadline_s = self._deadline()
        objective = self._objective(deadline_s)
        price, usual = prices_for(
            tuple(inventory), {**self.site.price, **parsed_prices(self.wanted.price)}
        )
        if usual:
            self.assumptions.append("usual prices on demand; --price says what you pay")
        tokens = self._tokens()
        if self.wanted.deadline is not None and self.spec is None and tokens is None:
            raise InvalidInput(
                "deadline", self.wanted.deadline, "also --tokens: how much is to be done by then"
            )
        limits = Limits(
            tokens=tokens,
            deadline_s=deadline_s,
            inventory=inventory,
            price=price if len(price) == len(inventory) else {},
            top=self.wanted.top,
        )
        return Request(
            given=self.given,
            space=Space(space.domains, (*space.constraints, *self.constraints)),
            objective=objective,
            limits=limits,
            reasons=self.reasons,
            assumptions=tuple(self.assumptions),
        )

    def _set(self, field: str, value: Value, reason: str = GIVEN) -> None:
        self.given[field] = value
        if reason != GIVEN:
            self.reasons[field] = reason

    def _model(self) -> None:
        place = self.wanted.model or (None if self.spec is None else self.spec.model)
        if place is None:
            raise InvalidInput("model", None, "a job spec or --model")
        self._set("model", asked_model(place))
        facts = model_facts(place)
        context = None if facts is None else facts.context
        length = self.wanted.seq
        if length is None and self.training is not None:
            length = self.training.max_length
        if length is not None:
            if length < 1:
                raise InvalidInput("seq", length, "one or more tokens")
            self._set("tokens_per_sample", length)
        elif context is not None and context < USUAL.max_length:
            self._set("tokens_per_sample", context, "all that the model can take")
        else:
            self._set("tokens_per_sample", USUAL.max_length, "the usual length")

    def _method(self) -> None:
        training = self.training
        wish = self.wanted.method
        if wish is None and self.spec is not None and self.spec.method is not SpecMethod.AUTO:
            wish = self.spec.method.value
        if wish is not None:
            if wish not in set(Method):
                raise InvalidInput("method", wish, f"one of {', '.join(Method)}")
            self._set("method", wish)
        else:
            self._set("method", Method.LORA.value, "adapters, unless you say full")
        if self.given["method"] == Method.FULL:
            return
        rank = None if training is None else training.lora_r
        modules = None if training is None else training.lora_target_modules
        self._set("lora_rank", rank or USUAL.lora_r, GIVEN if rank else "the usual rank")
        names = {modules} if isinstance(modules, str) else set(modules or ())
        attention = bool(names) and names <= _ATTENTION
        targets = "attention" if attention else "all-linear"
        self._set("lora_targets", targets, GIVEN if names else "the usual ones")

    def _inventory(self) -> dict[str, int]:
        if self.wanted.gpus is not None:
            self.reasons["gpu_model"] = ""
            return parsed_inventory(self.wanted.gpus)
        name = None if self.spec is None else self.spec.gpus[0]
        most = None if self.spec is None else self.spec.gpus[2]
        if name is not None:
            return {asked_gpu(name, "resources.accelerators"): most or MOST_GPUS}
        if self.site.inventory:
            return {gpu: min(most or count, count) for gpu, count in self.site.inventory.items()}
        self.assumptions.append(f"up to {most or MOST_GPUS} of any usual GPU; --gpus says yours")
        values = default_space().values["gpu_model"]
        return {str(gpu): most or MOST_GPUS for gpu in values}

    def _gpus(self, space: Space, inventory: Mapping[str, int]) -> Space:
        least = 1 if self.spec is None else self.spec.gpus[1]
        most = max(inventory.values())
        if least > most:
            raise InvalidInput("resources.accelerators", least, f"at most {most}, all there are")
        counts = [count for count in _counts(most) if count >= least] or [most]
        space = space.with_values("gpu_model", tuple(inventory))
        space = space.with_values("num_gpus", tuple(counts))
        nodes = sorted({max(1, count // NODE) for count in counts})
        domains = {**space.domains, "num_nodes": Domain(tuple(nodes), Role.FIXED)}
        self.reasons.pop("gpu_model", None)
        if len(inventory) == 1:
            self._set("gpu_model", next(iter(inventory)), self._why_gpu())
        if len(counts) == 1:
            self._set("num_gpus", counts[0], self._why_gpu())
        wish = self.wanted.sharding or ("ddp" if self.spec is not None else ANY)
        if wish != ANY:
            if wish not in set(Sharding):
                raise InvalidInput("sharding", wish, f"any, or one of {', '.join(Sharding)}")
            domains["sharding"] = Domain(tuple(dict.fromkeys(("none", wish))), Role.FIXED)
            own = "what duetune's trainer does" if self.wanted.sharding is None else GIVEN
            self.reasons["sharding"] = own
        return Space(domains, space.constraints)

    def _why_gpu(self) -> str:
        named = self.wanted.gpus is not None or (self.spec is not None and self.spec.gpus[0])
        return GIVEN if named else "what the site has"

    def _batch(self, space: Space) -> Space:
        """``accumulation`` counts, as in a spec, the microbatches of a step over all GPUs."""
        training = self.training
        each = None if training is None else training.per_device_train_batch_size
        accumulation = None if training is None else training.gradient_accumulation_steps
        whole = self.wanted.batch
        if training is not None and training.gradient_checkpointing is not None:
            self._set("grad_checkpoint", training.gradient_checkpointing)
        if whole is not None and whole < 1:
            raise InvalidInput("batch", whole, "one or more sequences")
        counts = [int(count) for count in space.values["num_gpus"]]
        if whole is None and each is not None and accumulation is not None:
            whole = each * accumulation
        batches = [2**power for power in range(LARGEST_USUAL_BATCH.bit_length())]
        if each is not None:
            batches = sorted({each * count for count in counts})
            self.constraints.append(
                Constraint(f"batch_size == {each} * num_gpus", f"each GPU has {each} sequences")
            )
        elif whole is not None:
            batches = _divisors(whole)
        domains = dict(space.domains)
        if whole is not None:
            domains["grad_accum"] = Domain(tuple(_divisors(whole)), Role.FIXED)
            batches = [size for size in batches if whole % size == 0]
            self.constraints.append(
                Constraint(f"grad_accum * batch_size == {whole}", f"{whole} sequences a step")
            )
            self.reasons["grad_accum"] = f"{whole} sequences a step of the optimiser"
        elif each is None:
            self.assumptions.append(
                f"up to {LARGEST_USUAL_BATCH} sequences a step, since the batch is not given; "
                "--batch says how many"
            )
        if not batches:
            raise InvalidInput("batch", whole, f"a multiple of {each}, the batch of one GPU")
        domains["batch_size"] = Domain(tuple(batches))
        return Space(domains, space.constraints)

    def _precision(self, space: Space, gpus: Sequence[str]) -> Space:
        training, wish = self.training, self.wanted.precision
        if wish is not None:
            if wish not in set(Precision):
                raise InvalidInput("precision", wish, f"one of {', '.join(Precision)}")
            self._set("precision", wish)
            return space
        mixed = "-mixed" if self.spec is not None and self.given["method"] == Method.FULL else ""
        # In 16 bits alone, float16 cannot train all weights.
        fp16 = "fp16-mixed" if self.given["method"] == Method.FULL else "fp16"
        old = [gpu for gpu in gpus if gpu in GPUS and not GPUS[gpu].bf16]
        if training is not None and (training.bf16 or training.fp16):
            self._set("precision", ("bf16" if training.bf16 else "fp16") + mixed)
            if training.bf16 and len(old) == len(gpus):
                allowed = f"fp16: {' and '.join(old)} cannot compute in bfloat16"
                raise InvalidInput("training.bf16", True, allowed)
            if training.bf16 and old:
                self._exclude(old)
            return space
        if training is not None and training.bf16 is False and training.fp16 is False:
            self._set("precision", "fp32")
            return space
        if not old or len(old) == len(gpus):
            why = "the GPU has no bfloat16" if old else "the GPU computes in bfloat16"
            self._set("precision", fp16 if old else f"bf16{mixed}", why)
            return space
        self.constraints.append(
            Constraint(
                f'(gpu_model in ({_names(old)})) == (precision == "{fp16}")',
                "bfloat16 where the GPU has it",
            )
        )
        self.reasons["precision"] = "bfloat16 where the GPU has it, else float16"
        values = (f"bf16{mixed}", fp16)
        return Space({**space.domains, "precision": Domain(values, Role.FIXED)}, space.constraints)

    def _exclude(self, gpus: Sequence[str]) -> None:
        """Those that cannot compute in bfloat16."""
        self.constraints.append(
            Constraint(f"gpu_model not in ({_names(gpus)})", "the GPU computes in bfloat16")
        )

    def _deadline(self) -> float | None:
        if self.wanted.deadline is not None:
            spec = JobSpec.model_validate({"deadline": self.wanted.deadline, "run": "true"})
            return seconds_until(spec.deadline, 1.0)
        return None if self.spec is None else seconds_until(self.spec.deadline, 1.0)

    def _objective(self, deadline_s: float | None) -> Objective:
        wish = self.wanted.objective
        if wish is None:
            return Objective.GPU_HOURS if deadline_s is None else Objective.DEADLINE
        if wish not in set(Objective):
            raise InvalidInput("objective", wish, f"one of {', '.join(Objective)}")
        if wish == Objective.DEADLINE and deadline_s is None:
            raise InvalidInput("deadline", None, "a time such as 6h, for the objective deadline")
        return Objective(wish)

    def _tokens(self) -> float | None:
        if self.wanted.tokens is not None:
            return parsed_amount("tokens", self.wanted.tokens)
        if self.spec is None or self.training is None or self.spec.dataset is None:
            return None
        length = int(self.given["tokens_per_sample"])
        steps = self.training.max_steps
        if steps is not None:
            each = self.training.per_device_train_batch_size or USUAL.per_device_train_batch_size
            share = self.training.gradient_accumulation_steps
            batch = self.wanted.batch or each * (share or USUAL.gradient_accumulation_steps)
            self.assumptions.append(f"{steps:,} steps of {batch} sequences of {length:,} tokens")
            return float(steps * batch * length)
        place = self.spec.dataset
        if not is_path(place):
            self.assumptions.append(f"how much there is to do in {place} is not known: --tokens")
            return None
        dataset = check_dataset(place)
        trained = dataset.rows - held_out_rows(self.spec, dataset.rows)
        epochs = self.training.num_train_epochs or USUAL.num_train_epochs
        usual = min(float(length), dataset.tokens_per_row)
        self.assumptions.append(
            f"{epochs:g} passes over {trained:,} examples of about {usual:,.0f} tokens each,"
            " by their characters"
        )
        return float(max(1, math.ceil(trained * epochs)) * usual)


def parsed_amount(field: str, text: str) -> float:
    """``2e8``, ``200M``, ``1.5B``."""
    found = _AMOUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    number = float(found[1]) * _UNITS[found[2].casefold()] if found else 0.0
    if not 0 < number < 1e18:
        raise InvalidInput(field, text, "a number above 0, such as 2e8, 200M or 1.5B")
    return number


def parsed_inventory(text: str) -> dict[str, int]:
    """``A100-80GB:8,L40S:4``; without a number there are eight."""
    found: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, count = part.partition(":")
        if count and not (count.isdecimal() and 1 <= int(count) <= 4096):
            raise InvalidInput("gpus", part, "a GPU and how many, such as A100-80GB:8")
        found[asked_gpu(name.strip(), "gpus")] = int(count or MOST_GPUS)
    if not found:
        raise InvalidInput("gpus", text, "GPUs and how many of each: A100-80GB:8,L40S:4")
    return found


def parsed_prices(text: str | None) -> dict[str, float]:
    """``A100-80GB=1.2,L40S=0.8``: dollars per GPU and hour."""
    found: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in (text or "").split(","))):
        name, _, amount = part.partition("=")
        try:
            price = float(amount.strip().removeprefix("$"))
        except ValueError:
            price = math.nan
        if not 0 < price < 1e6:
            raise InvalidInput("price", part, "dollars per GPU and hour, such as A100-80GB=1.2")
        found[asked_gpu(name.strip(), "price")] = price
    return found


def _counts(most: int) -> list[int]:
    """Powers of two and all there are, in a node; whole nodes beyond."""
    inside = min(most, NODE)
    counts = {2**power for power in range(inside.bit_length()) if 2**power <= inside} | {inside}
    nodes = 2
    while nodes * NODE <= most:
        counts.add(nodes * NODE)
        nodes *= 2
    return sorted(counts)


def _names(gpus: Sequence[str]) -> str:
    return "".join(f'"{gpu}",' for gpu in gpus)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]

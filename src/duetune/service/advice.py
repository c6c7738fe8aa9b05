"""What a user asks the advisor, from a job spec and options."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.knowledge.advice import GIVEN, Request, asked_gpu, asked_model
from duetune.knowledge.configuration import Interconnect, Sharding
from duetune.knowledge.model_facts import model_facts
from duetune.knowledge.prices import prices_for
from duetune.knowledge.rules import Constraint
from duetune.knowledge.source import Limits, Objective
from duetune.knowledge.space import Domain, Role, Space
from duetune.knowledge.space_files import default_space
from duetune.quote.plan import held_out_rows
from duetune.quote.question import USUAL_GPUS, Question
from duetune.quote.site import Site
from duetune.quote.trainer import USUAL, trainer_software
from duetune.service.inventory import (
    NODE,
    gpu_counts,
    parsed_amount,
    parsed_inventory,
    parsed_prices,
)
from duetune.service.wishes import seconds_until
from duetune.spec.places import is_path
from duetune.spec.schema import JobSpec
from duetune.training.data import check_dataset
from duetune.training.task import Method

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.knowledge.configuration import Configuration
    from duetune.knowledge.space import Value

    Fits = Callable[[Configuration], bool]

ANY = "any"
_OWN = "what duetune's trainer does"


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
    software: str | None = None
    top: int = 5

    def question(self, spec: JobSpec | None) -> Question:
        """Return what the spec says, with what was typed in its place."""
        typed = {
            "method": self.method,
            "max_length": self.seq,
            "batch": self.batch,
            "precision": self.precision,
        }
        said = {field: value for field, value in typed.items() if value is not None}
        return msgspec.structs.replace(Question() if spec is None else Question.of(spec), **said)


def request(
    wanted: Wanted,
    spec: JobSpec | None = None,
    site: Site | None = None,
    price: float | None = None,
    fits: Fits | None = None,
) -> Request:
    """Return what the advisor is asked; what is wrong is refused here, before anything is computed.

    ``site`` is where jobs run, if it names its GPU, at ``price`` dollars per GPU and hour on
    demand. ``fits`` is only asked whether all weights of a small model could be trained.
    """
    return _Asking(wanted, spec, site, price, fits).request()


class _Asking:
    def __init__(
        self,
        wanted: Wanted,
        spec: JobSpec | None,
        site: Site | None,
        price: float | None,
        fits: Fits | None,
    ) -> None:
        if spec is not None and spec.run is not None:
            raise InvalidInput("run", spec.run, "a job of the built-in trainer, to advise on")
        for field, number in (("top", wanted.top), ("seq", wanted.seq), ("batch", wanted.batch)):
            if number is not None and number < 1:
                raise InvalidInput(field, number, "a whole number, one or more")
        if wanted.sharding not in {None, ANY, *Sharding}:
            raise InvalidInput("sharding", wanted.sharding, f"any, or one of {', '.join(Sharding)}")
        self.wanted, self.spec, self.fits = wanted, spec, fits
        self.asked = wanted.question(spec)
        self.site = None if site is None or site.gpu is None else site
        self.site_price = {} if price is None or site is None else {site.gpu_model: price}
        self.given: dict[str, Value] = {}
        self.reasons: dict[str, str] = {}
        self.assumptions: list[str] = []
        self.constraints: list[Constraint] = []
        self.domains: dict[str, Domain] = {}

    def request(self) -> Request:
        place = self.wanted.model or (None if self.spec is None else self.spec.model)
        if place is None:
            raise InvalidInput("model", None, "a job spec or --model")
        self._set("model", asked_model(place))
        self.facts = model_facts(place)
        self._set("tokens_per_sample", *self.asked.length(self.facts))
        inventory = self._inventory()
        sites = self._sites(inventory)
        deadline_s = self._deadline()
        objective = self._objective(deadline_s)
        price, usual = prices_for(
            tuple(inventory), {**self.site_price, **parsed_prices(self.wanted.price)}
        )
        if usual:
            self.assumptions.append("usual prices on demand; --price says what you pay")
        rows = self._rows()
        self.step = self.asked.step(max(inventory.values()), rows)
        tokens = self._tokens(rows)
        if self.wanted.deadline is not None and self.spec is None and tokens is None:
            raise InvalidInput(
                "deadline", self.wanted.deadline, "also --tokens: how much is to be done by then"
            )
        self._gpus(inventory)
        self._batch()
        self._method(sites)
        self._precision(sites)
        self._sharding()
        software = self.wanted.software
        self._set("software", software or trainer_software(), GIVEN if software else _OWN)
        limits = Limits(
            tokens=tokens,
            deadline_s=deadline_s,
            inventory=inventory,
            price=price if len(price) == len(inventory) else {},
            top=self.wanted.top,
        )
        return Request(
            given=self.given,
            space=Space({**default_space().domains, **self.domains}, tuple(self.constraints)),
            objective=objective,
            limits=limits,
            reasons=self.reasons,
            assumptions=tuple(self.assumptions),
        )

    def _set(self, field: str, value: Value, reason: str = GIVEN) -> None:
        self.given[field] = value
        if reason != GIVEN:
            self.reasons[field] = reason

    def _inventory(self) -> dict[str, int]:
        if self.wanted.gpus is not None:
            return parsed_inventory(self.wanted.gpus)
        name, _, most = (None, 1, None) if self.spec is None else self.spec.gpus
        site = self.site
        if site is not None and (name is None or site.sells(name)):
            return {site.gpu_model: min(most or site.max_gpus, site.max_gpus)}
        if name is not None:
            return {asked_gpu(name, "resources.accelerators"): most or USUAL_GPUS}
        self.assumptions.append(f"up to {most or USUAL_GPUS} of any usual GPU; --gpus says yours")
        values = default_space().values["gpu_model"]
        return {str(gpu): most or USUAL_GPUS for gpu in values}

    def _sites(self, inventory: dict[str, int]) -> dict[str, Site]:
        """What is known of each GPU; of the site's own, what its settings say."""
        sites = {gpu: Site(accelerator=gpu, software=trainer_software()) for gpu in inventory}
        if self.site is not None and self.wanted.gpus is None and self.site.gpu_model in sites:
            sites[self.site.gpu_model] = self.site
            if self.site.memory_cap_gb:
                self._set("memory_cap_gb", self.site.memory_cap_gb, "what the site has")
        return sites

    def _gpus(self, inventory: dict[str, int]) -> None:
        least = 1 if self.spec is None else self.spec.gpus[1]
        most = max(inventory.values())
        if least > most:
            raise InvalidInput("resources.accelerators", least, f"at most {most}, all there are")
        self.counts = [count for count in gpu_counts(most) if count >= least] or [most]
        self.domains["gpu_model"] = Domain(tuple(inventory))
        self.domains["num_gpus"] = Domain(tuple(self.counts))
        named = self.wanted.gpus is not None or (self.spec is not None and self.spec.gpus[0])
        why = GIVEN if named else "what the site has"
        if len(inventory) == 1:
            self._set("gpu_model", next(iter(inventory)), why)
        if len(self.counts) == 1:
            self._set("num_gpus", self.counts[0], why)

    def _sharding(self) -> None:
        """As the trainer does it, unless another way was asked for: one GPU to a node."""
        own = self.given["method"] in set(Method)
        wish = self.wanted.sharding or (Sharding.DDP.value if own else ANY)
        alone = Constraint('(num_gpus == 1) == (sharding == "none")', "one GPU shares nothing")
        if wish != ANY:
            self.domains["sharding"] = Domain(tuple(dict.fromkeys(("none", wish))), Role.FIXED)
            self.reasons["sharding"] = GIVEN if self.wanted.sharding else _OWN
        if wish not in {Sharding.DDP, Sharding.NONE}:
            nodes = sorted({max(1, count // NODE) for count in self.counts})
            self.domains["num_nodes"] = Domain(tuple(nodes), Role.FIXED)
            self.constraints += default_space().constraints
            return
        self.domains["num_nodes"] = Domain(tuple(self.counts), Role.FIXED)
        links = (Interconnect.AUTO.value, Interconnect.TCP.value)
        self.domains["interconnect"] = Domain(links, Role.FIXED)
        self.reasons["num_nodes"] = self.reasons["interconnect"] = "one GPU to a node"
        self.constraints += (
            alone,
            Constraint("num_nodes == num_gpus", "one GPU to a node"),
            Constraint('(num_gpus == 1) == (interconnect == "auto")', "nodes are linked by TCP"),
        )

    def _batch(self) -> None:
        """A step is cut into microbatches as the trainer does it, in rounds over all GPUs."""
        step, least = self.step, self.counts[0]
        if self.asked.checkpointing is not None:
            self._set("grad_checkpoint", self.asked.checkpointing)
        if step.accumulation is not None and step.microbatch is None:
            # So many microbatches of any size.
            sizes, most = step.microbatches, step.accumulation
            counted, told = "num_gpus", f"{most} microbatches a step"
            self.constraints.append(Constraint(f"batch_size <= {sizes[0]} * num_gpus", told))
        else:
            size = step.microbatch or 1
            most = size * step.accumulated(size)
            sizes = [each for each in range(1, most + 1) if most % each == 0]
            counted, told = "batch_size", f"{most} sequences a step"
            if step.microbatch is not None:
                sizes, each_has = [size], f"each GPU has {size} sequences"
                self.constraints.append(Constraint(f"batch_size == {size} * num_gpus", each_has))
                if step.exact and step.batch % size:
                    allowed = f"a multiple of {size}, the batch of one GPU"
                    raise InvalidInput("batch", step.batch, allowed)
            elif not step.exact:
                self.assumptions.append(f"{told}, as launch takes; --batch says how many")
        if least * sizes[-1 if counted == "num_gpus" else 0] > most:
            allowed = (
                f"at least {least}, the fewest GPUs that the job may run on: each needs a share"
            )
            raise InvalidInput("batch", most, allowed)
        batches = sorted({size * count for size in sizes for count in self.counts})
        rounds = sorted({-(-most // each) for each in (*batches, *self.counts)})
        self.domains["batch_size"] = Domain(tuple(batches))
        self.domains["grad_accum"] = Domain(tuple(rounds), Role.FIXED)
        self.reasons["grad_accum"] = f"{told} of the optimiser"
        # Where the GPUs cannot share a step evenly, some of them wait in its last round.
        self.constraints.append(
            Constraint(
                f"{counted} <= {most} and (grad_accum * {counted} == {most} or {most} % num_gpus"
                f" != 0 and grad_accum * {counted} >= {most}"
                f" and (grad_accum - 1) * {counted} < {most})",
                told,
            )
        )

    def _method(self, sites: dict[str, Site]) -> None:
        method, reason = self.asked.chosen_method(
            str(self.given["model"]), self.facts, sites.values(), self.fits
        )
        self._set("method", method, reason)
        if method != Method.FULL:
            self._set("lora_rank", *self.asked.rank())
            self._set("lora_targets", *self.asked.layers())

    def _precision(self, sites: dict[str, Site]) -> None:
        """That of the trainer on each GPU; GPUs that cannot compute as was asked are left out."""
        old = [gpu for gpu, site in sites.items() if site.gpu is not None and not site.gpu.bf16]
        if self.asked.bf16 and self.asked.precision is None and old:
            if len(old) == len(sites):
                allowed = f"fp16: {' and '.join(old)} cannot compute in bfloat16"
                raise InvalidInput("training.bf16", True, allowed)
            excluded = f"gpu_model not in {(*old,)!r}"
            self.constraints.append(Constraint(excluded, "the GPU computes in bfloat16"))
        method = str(self.given["method"])
        kept = {gpu: self.asked.kept_in(method, site) for gpu, site in sites.items()}
        values = tuple(dict.fromkeys(precision for precision, _ in kept.values()))
        if len(values) == 1:
            reason = next(iter(kept.values()))[1]
            several = reason != GIVEN and len(kept) > 1
            self._set(
                "precision", values[0], "what all of the GPUs compute in" if several else reason
            )
            return
        self.domains["precision"] = Domain(values, Role.FIXED)
        self.reasons["precision"] = "bfloat16 where the GPU has it, else float16"
        self.constraints += (
            Constraint(
                f"(gpu_model in {(*(gpu for gpu in kept if kept[gpu][0] == value),)!r})"
                f" == (precision == {value!r})",
                "bfloat16 where the GPU has it",
            )
            for value in values
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

    def _rows(self) -> int | None:
        """Examples that are trained on, and how long they are, if the dataset is here."""
        self.tokens_per_row = 0.0
        place = None if self.spec is None else self.spec.dataset
        if self.spec is None or place is None or not is_path(place):
            return None
        dataset = check_dataset(place)
        self.tokens_per_row = dataset.tokens_per_row
        return dataset.rows - held_out_rows(self.spec, dataset.rows)

    def _tokens(self, rows: int | None) -> float | None:
        if self.wanted.tokens is not None:
            return parsed_amount("tokens", self.wanted.tokens)
        if self.spec is None:
            return None
        length, training = int(self.given["tokens_per_sample"]), self.spec.training
        if training.max_steps is not None:
            microbatch = self.step.microbatches[0]
            batch = microbatch * self.step.accumulated(microbatch)
            told = f"{training.max_steps:,} steps of {batch} sequences of {length:,} tokens"
            self.assumptions.append(told)
            return float(training.max_steps * batch * length)
        if rows is None:
            self.assumptions.append(
                f"how much there is to do in {self.spec.dataset} is not known: --tokens"
            )
            return None
        epochs = training.num_train_epochs or USUAL.num_train_epochs
        usual = min(float(length), self.tokens_per_row)
        self.assumptions.append(
            f"{epochs:g} passes over {rows:,} examples of about {usual:,.0f} tokens each,"
            " by their characters"
        )
        return float(max(1, math.ceil(rows * epochs)) * usual)

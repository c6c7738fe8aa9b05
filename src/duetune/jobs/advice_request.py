"""What ``duetune recommend`` asks the advisor, made from a job spec and command-line options.

The request lists every configuration to compare. The advisor, which ranks them, is in
``knowledge``; the defaults come from ``Question``, as in ``plan``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.jobs.configure import held_out_rows
from duetune.jobs.inventory import (
    gpu_counts,
    parsed_amount,
    parsed_inventory,
    parsed_prices,
)
from duetune.jobs.prospects import Prospects
from duetune.jobs.question import USUAL_GPUS, Question
from duetune.jobs.recipe import choose_recipe
from duetune.jobs.site import Site
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.terms import seconds_until
from duetune.jobs.trainer_facts import USUAL, placement, trainer_software
from duetune.jobs.trainer_knowledge import TrainerKnowledge
from duetune.knowledge.advice import GIVEN, Request, asked_gpu, asked_model
from duetune.knowledge.configurations.configuration import Attention, Sharding
from duetune.knowledge.configurations.space_files import default_space
from duetune.knowledge.facts.gpus import prices_for
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.listed_space import Listing
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.knowledge.sources.knowledge_source import Limits, Objective
from duetune.training.task import TrainingMethod

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.jobs.recipe import Chosen
    from duetune.knowledge.configurations.configuration import Configuration, Value
    from duetune.training.dataset_rows import DatasetSummary

    Knowledge = Callable[[], TrainerKnowledge]

ANY = "any"
_OWN = "duetune's trainer works this way"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The options as typed; None is what was not typed.

    ``gpus`` is an inventory such as ``H100:8,L40S:4``, ``price`` is such as ``H100=2.5``, ``batch``
    is the number of sequences per optimiser step.
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
        """Return what the spec says, overridden by what was typed."""
        typed = {
            "method": self.method,
            "max_length": self.seq,
            "batch": self.batch,
            "precision": self.precision,
        }
        given = {field: value for field, value in typed.items() if value is not None}
        return msgspec.structs.replace(Question() if spec is None else Question.of(spec), **given)


def _physics() -> TrainerKnowledge:
    return TrainerKnowledge(AnalyticSource(), trainer_software())


def request(
    wanted: Wanted,
    spec: JobSpec | None = None,
    site: Site | None = None,
    price: float | None = None,
    data: DatasetSummary | None = None,
    knowledge: Knowledge = _physics,
) -> Request:
    """Return the request to the advisor; wrong options are refused before anything is computed.

    ``site`` is where jobs run, if it names its GPU; ``price`` is its on-demand price in dollars per
    GPU and hour. ``data`` is the dataset, if it is on this machine. ``knowledge`` is called after
    the options were checked.
    """
    return _Asking(wanted, spec, site, price, data, knowledge).request()


class _Asking:
    """One request in the making: given fields, reasons and assumptions are collected here."""

    def __init__(
        self,
        wanted: Wanted,
        spec: JobSpec | None,
        site: Site | None,
        price: float | None,
        data: DatasetSummary | None,
        knowledge: Knowledge,
    ) -> None:
        if spec is not None and spec.run is not None:
            allowed = "no value: recommend works for jobs of the built-in trainer only"
            raise InvalidInput("run", spec.run, allowed)
        for field, number in (("top", wanted.top), ("seq", wanted.seq), ("batch", wanted.batch)):
            if number is not None and number < 1:
                raise InvalidInput(field, number, "a whole number, one or more")
        if wanted.sharding not in {None, ANY, *Sharding}:
            raise InvalidInput("sharding", wanted.sharding, f"any, or one of {', '.join(Sharding)}")
        self.wanted, self.spec, self.data, self.knowledge = wanted, spec, data, knowledge
        self.asked = wanted.question(spec)
        self.site = None if site is None or site.gpu is None else site
        self.site_price = {} if price is None or site is None else {site.gpu_model: price}
        self.given: dict[str, Value] = {}
        self.reasons: dict[str, str] = {}
        self.assumptions: list[str] = []

    def request(self) -> Request:
        place = self.wanted.model or (None if self.spec is None else self.spec.model)
        if place is None:
            raise InvalidInput("model", None, "a job spec or --model")
        self._set("model", asked_model(place))
        self.facts = model_facts(place)
        inventory = self._inventory()
        sites = self._sites(inventory)
        deadline_s = self._deadline()
        objective = self._objective(deadline_s)
        price, usual = prices_for(
            tuple(inventory), {**self.site_price, **parsed_prices(self.wanted.price)}
        )
        if usual:
            self.assumptions.append("list prices on demand; set yours with --price")
        tokens = self._typed_tokens()
        rows = self._rows()
        self.step = self.asked.step(max(inventory.values()), rows)
        counts = self._counts(inventory)
        method = self.asked.chosen_method(place, self.facts, sites.values(), self._fits)
        recipes = self._recipes(place, method, sites, (counts[0], inventory), rows)
        self._set("method", *method)
        self._set("tokens_per_sample", *self.asked.length(self.facts))
        self._say(sites, next(iter(recipes.values()), None))
        tokens = self._tokens(rows) if tokens is None else tokens
        points = self._points(str(self.given["method"]), sites, counts, recipes)
        limits = Limits(
            tokens=tokens,
            deadline_s=deadline_s,
            inventory=inventory,
            price=price if len(price) == len(inventory) else {},
            top=self.wanted.top,
        )
        return Request(
            given=self.given,
            space=Listing.of(points),
            objective=objective,
            limits=limits,
            reasons=self.reasons,
            assumptions=tuple(self.assumptions),
        )

    def _set(self, field: str, value: Value, reason: str = GIVEN) -> None:
        """Record a field that is the same for all configurations, and its reason."""
        self.given[field] = value
        if reason != GIVEN:
            self.reasons[field] = reason

    def _inventory(self) -> dict[str, int]:
        """Return the GPUs to choose from, with the number of each."""
        if self.wanted.gpus is not None:
            return parsed_inventory(self.wanted.gpus)
        name, _, most = (None, 1, None) if self.spec is None else self.spec.gpus
        site = self.site
        if site is not None and (name is None or site.sells(name)):
            return {site.gpu_model: min(most or site.max_gpus, site.max_gpus)}
        if name is not None:
            return {asked_gpu(name, "resources.accelerators"): most or USUAL_GPUS}
        self.assumptions.append(
            f"up to {most or USUAL_GPUS} GPUs of any common kind; set yours with --gpus"
        )
        values = default_space().values["gpu_model"]
        return {str(gpu): most or USUAL_GPUS for gpu in values}

    def _sites(self, inventory: dict[str, int]) -> dict[str, Site]:
        """Return the sites whose GPU can compute as asked; the home's own GPU keeps its
        settings.
        """
        software = self.wanted.software or trainer_software()
        sites = {gpu: Site(accelerator=gpu, software=software) for gpu in inventory}
        if self.site is not None and self.wanted.gpus is None and self.site.gpu_model in sites:
            sites[self.site.gpu_model] = msgspec.structs.replace(self.site, software=software)
        return {site.gpu_model: site for site in self.asked.usable(list(sites.values()))}

    def _counts(self, inventory: dict[str, int]) -> list[int]:
        """Return the numbers of GPUs to choose from."""
        least = 1 if self.spec is None else self.spec.gpus[1]
        most = max(inventory.values())
        if least > most:
            raise InvalidInput(
                "resources.accelerators", least, f"at most {most}, the number of GPUs there are"
            )
        counts = [count for count in gpu_counts(most) if count >= least] or [most]
        named = self.wanted.gpus is not None or (self.spec is not None and self.spec.gpus[0])
        why = GIVEN if named else "the GPUs of the site"
        if len(inventory) == 1:
            self._set("gpu_model", next(iter(inventory)), why)
        if len(counts) == 1:
            self.reasons["num_gpus"] = why
        return counts

    def _fits(self, one: Configuration) -> bool:
        return Prospects(self.knowledge()).fits(one)

    def _recipes(
        self,
        model: str,
        method: tuple[str, str],
        sites: dict[str, Site],
        gpus: tuple[int, dict[str, int]],
        rows: int | None,
    ) -> dict[str, Chosen]:
        """Return what ``plan`` would choose on each GPU on which it fits with the fewest
        concessions to memory; empty for other trainers.
        """
        (least, inventory), wanted, found = gpus, self.wanted, {}
        if method[0] not in set(TrainingMethod) or wanted.software or wanted.sharding:
            return {}
        for gpu, site in sites.items():
            range_ = (min(least, inventory[gpu]), inventory[gpu])
            self.asked.member_sizes(method[0], *range_, site.gpus_per_node)
            knowledge = self.knowledge()
            try:
                found[gpu] = choose_recipe(
                    self.asked, model, self.facts, site, range_, rows, knowledge, method
                )
            except InvalidInput:
                continue  # it does not fit on this GPU; the advisor says so
        least = min((each.rank for each in found.values()), default=0)
        return {gpu: each for gpu, each in found.items() if each.rank == least}

    def _points(
        self,
        method: str,
        sites: dict[str, Site],
        counts: list[int],
        recipes: dict[str, Chosen],
    ) -> list[Configuration]:
        """Return all configurations that the trainer can run, or those of another trainer if one
        was asked for.
        """
        own = method in set(TrainingMethod)
        sharding = self.wanted.sharding or (Sharding.DDP.value if own else ANY)
        ways: tuple[str | None, ...] = (None if sharding == Sharding.DDP else sharding,)
        if sharding == ANY:
            ways = (Sharding.FSDP, Sharding.DDP)
        else:
            why = next((each.conceded.get("gpus_per_member") for each in recipes.values()), None)
            self.reasons["sharding"] = GIVEN if self.wanted.sharding else why or _OWN
        given, least = self.asked.checkpointing, self.asked.gpus_per_member or 1
        sizes = {gpu: recipes[gpu].gpus_per_member if gpu in recipes else least for gpu in sites}
        kernel = {"attention": Attention.SDPA} if self.wanted.software else {}
        points = [
            self.asked.configuration(
                method,
                str(self.given["model"]),
                self.facts,
                site,
                gpus=count,
                microbatch=microbatch,
                accumulation=accumulation,
                checkpointing=checkpointing,
            ).replace(**placement(count, way, sizes[gpu]), **kernel)
            for gpu, site in sites.items()
            for count in sorted({-(-count // sizes[gpu]) * sizes[gpu] for count in counts})
            for microbatch, accumulation in self.step.cuts(count)
            for checkpointing in ((True, False) if given is None else (given,))
            for way in (ways if count > 1 else ways[:1])
        ]
        if not points:
            allowed = f"at least {counts[0]} microbatches, one per GPU"
            raise InvalidInput("batch", self.step.batch, allowed)
        return points

    def _say(self, sites: dict[str, Site], recipe: Chosen | None) -> None:
        """Record the reasons for fields that are the same for all configurations. What a recipe
        concedes to memory holds for all of them.
        """
        conceded = {} if recipe is None else recipe.conceded
        if recipe is not None:
            self.assumptions += recipe.concessions
            one = recipe.one
            if "method" in conceded:
                self._set("method", one.method.value, conceded["method"])
            if "max_length" in conceded:
                self._set("tokens_per_sample", one.tokens_per_sample, conceded["max_length"])
                self.asked = msgspec.structs.replace(self.asked, max_length=one.tokens_per_sample)
            if "precision" in conceded:
                self.asked = msgspec.structs.replace(self.asked, precision=one.precision.value)
        method = str(self.given["method"])
        step = self.step
        if self.asked.checkpointing is not None:
            self._set("grad_checkpoint", self.asked.checkpointing)
        if method != TrainingMethod.FULL:
            self._set("lora_rank", *self.asked.rank())
            self._set("lora_targets", *self.asked.layers())
        kept = [self.asked.kept_in(method, site) for site in sites.values()]
        if len({precision for precision, _ in kept}) == len(kept) == 1 or kept[0][1] == GIVEN:
            self._set("precision", *kept[0])
        else:
            self.reasons["precision"] = "bfloat16 if the GPU supports it, else float16"
        if "precision" in conceded:
            self.reasons["precision"] = conceded["precision"]
        self.reasons |= dict.fromkeys(("num_nodes", "interconnect"), _OWN)
        self.reasons["software"] = GIVEN if self.wanted.software else _OWN
        if step.exact and step.microbatch and step.batch % step.microbatch:
            allowed = f"a multiple of {step.microbatch}, the batch of one GPU"
            raise InvalidInput("batch", step.batch, allowed)
        whole = f"{step.batch} sequences per step"
        if step.microbatch is None and step.accumulation is None and not step.exact:
            self.assumptions.append(f"{whole}, as in launch; set it with --batch")
        self.reasons["grad_accum"] = "the GPUs share the sequences of a step"

    def _deadline(self) -> float | None:
        if self.wanted.deadline is not None:
            spec = JobSpec.model_validate({"deadline": self.wanted.deadline, "run": "true"})
            return seconds_until(spec.deadline, 1.0)
        return None if self.spec is None else seconds_until(self.spec.deadline, 1.0)

    def _objective(self, deadline_s: float | None) -> Objective:
        name = self.wanted.objective
        if name is None:
            return Objective.GPU_HOURS if deadline_s is None else Objective.DEADLINE
        if name not in set(Objective):
            raise InvalidInput("objective", name, f"one of {', '.join(Objective)}")
        if name == Objective.DEADLINE and deadline_s is None:
            raise InvalidInput(
                "deadline", None, "a time such as 6h, because the objective is deadline"
            )
        return Objective(name)

    def _rows(self) -> int | None:
        """Return the number of training examples if the dataset is on this machine."""
        if self.spec is None or self.data is None:
            return None
        return self.data.rows - held_out_rows(self.spec, self.data.rows)

    def _typed_tokens(self) -> float | None:
        """Return the tokens to train on as they were typed."""
        if self.wanted.tokens is not None:
            return parsed_amount("tokens", self.wanted.tokens)
        if self.wanted.deadline is not None and self.spec is None:
            raise InvalidInput(
                "deadline", self.wanted.deadline, "--tokens as well: the amount of work until then"
            )
        return None

    def _tokens(self, rows: int | None) -> float | None:
        """Return the tokens to train on in total; None if unknown."""
        if self.spec is None:
            return None
        length, training = int(self.given["tokens_per_sample"]), self.spec.training
        if training.max_steps is not None:
            microbatch = self.step.microbatches[0]
            batch = microbatch * self.step.accumulated(microbatch)
            self.assumptions.append(
                f"{training.max_steps:,} steps of {batch} sequences of {length:,} tokens"
            )
            return float(training.max_steps * batch * length)
        if rows is None or self.data is None:
            self.assumptions.append(
                f"the size of {self.spec.dataset} is unknown; set the work with --tokens"
            )
            return None
        epochs = training.num_train_epochs or USUAL.num_train_epochs
        usual = min(float(length), self.data.tokens_per_row)
        self.assumptions.append(
            f"{epochs:g} epochs of {rows:,} examples of about {usual:,.0f} tokens each,"
            " estimated from their characters"
        )
        return float(max(1, math.ceil(rows * epochs)) * usual)

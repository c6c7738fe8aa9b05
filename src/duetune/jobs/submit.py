"""From a spec to a job in the journal: plan, quote, choose a policy, write it all down."""

from __future__ import annotations

import os
import secrets as randomness
import shlex
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.control.crash_points import journal_with_crash_points
from duetune.control.learning import learnt_utilities
from duetune.core.decision import Outlook
from duetune.core.events import Past, Submitted
from duetune.core.fleet import MarketReport, Task
from duetune.core.market import MarketTrace
from duetune.core.node_contract import CHECKPOINT_DIR, CHECKPOINT_KEEP, LOGS
from duetune.core.ports import Policy
from duetune.errors import InvalidInput
from duetune.files import OWNER, write_whole
from duetune.fleets.embedded.node_assignment import SECRETS_FILE
from duetune.jobs.configure import TrainingPlan, configure
from duetune.jobs.measured_runs import measured_paces, ran_out_of_memory
from duetune.jobs.quote import Quote, make_quote
from duetune.jobs.site import Site
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.spec.places import is_path
from duetune.jobs.terms import Terms, job_terms
from duetune.jobs.user_requests import seconds_until
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.observation import Origin
from duetune.knowledge.sources.knowledge_source import KnowledgeSource
from duetune.market.forecast.simple import outlook_at
from duetune.notebook import html_table
from duetune.policies.select.hedge import Learner
from duetune.settings import QueueSettings
from duetune.store.store import Store
from duetune.training.dataset_rows import check_dataset
from duetune.training.task import TrainingTask, write_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from duetune.settings import Settings
    from duetune.training.dataset_rows import DatasetSummary

TRUST = 0.9
"""How much the scenarios of the quote count before any job was learnt from."""

SCENARIOS = 100
TRAINER = "duetune.training.worker"
SPEC_FILE = "job.yaml"
_LETTERS = "bcdfghjkmnpqrstvwxz23456789"


class PreparedJob(msgspec.Struct, frozen=True):
    """A job that could be submitted: nothing has been written or spent. The deadline in ``terms``
    counts from when it was prepared; ``submit`` counts anew.
    """

    spec: JobSpec
    plan: TrainingPlan
    terms: Terms
    quote: Quote
    policy: str
    chosen: str
    rows: int | None
    outlook: Outlook
    past: Past

    def _repr_html_(self) -> str:
        quote = self.quote.document
        return html_table(
            ("", "cost", "80% between", "on time", "GPUs"),
            (
                (
                    line.role.value.replace("_", " "),
                    f"${line.cost:.2f}",
                    f"${line.cost_low:.2f} to ${line.cost_high:.2f}",
                    f"{line.on_time:.0%}",
                    f"{line.gpus:.1f}",
                )
                for line in quote.lines
            ),
            f"{self.spec.name}: {self.plan.method}, {self.plan.total_steps} steps on "
            f"{self.plan.max_gpus} x {self.plan.accelerator}; policy {self.policy}",
        )


class Submitter(msgspec.Struct, frozen=True):
    """What is needed to prepare a job: the site, its market now and before, the pool. ``knowledge``
    of configurations may take seconds to get, and is only got where it is needed. ``queue`` says
    how many GPUs a job can hold beside what the site has.
    """

    site: Site
    market: MarketReport
    history: MarketTrace | None
    pool: tuple[Policy, ...]
    policy_named: Callable[[str], Policy]
    learner: Callable[[int], Learner]
    knowledge: Callable[[Store], KnowledgeSource]
    queue: QueueSettings = QueueSettings()


def prepare(spec: JobSpec, desk: Submitter, store: Store, *, seed: int = 0) -> PreparedJob:
    """All that can be wrong with a job is found here, before anything is spent."""
    _check_environment(spec, os.environ)
    _check_model(spec)
    summary = _dataset(spec)
    rows = None if summary is None else summary.rows
    facts = None if spec.model is None else model_facts(spec.model)
    site = _site(spec, desk)
    earlier = store.observations.history(origin=Origin.PRODUCTION)
    plan = configure(
        spec,
        site,
        rows,
        facts,
        measured_paces(earlier, spec),
        source=lambda: desk.knowledge(store),
        ran_out=ran_out_of_memory(earlier),
        tokens_per_row=None if summary is None else summary.tokens_per_row,
    )
    terms = _terms(spec, plan, site, desk.market)
    quote = make_quote(
        terms,
        desk.pool,
        market_history=desk.history,
        now=desk.market,
        scenarios=SCENARIOS,
        seed=seed,
    )
    _check_finishable(spec, quote)
    policy, chosen = _chosen(spec, terms, desk, quote.utilities, store)
    return PreparedJob(
        spec=spec,
        plan=plan,
        terms=terms,
        quote=quote.with_policy(desk.policy_named(policy)),
        policy=policy,
        chosen=chosen,
        rows=rows,
        outlook=_outlook(desk),
        past=_past(desk),
    )


def submit(
    prepared: PreparedJob, settings: Settings, store: Store, *, site: Site, market: MarketReport
) -> str:
    """The id of the new job. Its folder is there before the journal knows of it, so that no
    controller can find a job without one.
    """
    terms = _terms(prepared.spec, prepared.plan, site, market)
    job = _identifier(prepared.spec.name)
    folder = settings.folder(job)
    folder.mkdir(parents=True, mode=0o700)
    (folder / LOGS).mkdir()
    (folder / SPEC_FILE).write_text(prepared.spec.to_yaml(), "utf-8")
    _write_secrets(folder, prepared.spec, os.environ)
    if prepared.spec.run is None:
        write_task(folder, training_task(prepared))
    event = Submitted(
        at=market.at,
        spec=msgspec.json.encode(prepared.spec.document()).decode(),
        job=terms.job,
        task=_node_task(prepared.spec, folder),
        policy=prepared.policy,
        origin=terms.origin,
        slot_s=terms.slot_s,
        chosen=prepared.chosen,
        max_price=terms.max_price,
        outlook=prepared.outlook,
        stop_at=terms.stop_at,
        value_given=prepared.spec.value is not None,
        steps=prepared.plan.total_steps,
        deadline_at=terms.deadline_at,
        past=prepared.past,
        priority=prepared.spec.priority,
        project=prepared.spec.project,
    )
    journal_with_crash_points(store.journal).append(job, [event], expected=0)
    return job


def _site(spec: JobSpec, desk: Submitter) -> Site:
    """With no more GPUs than a job of its project can ever hold."""
    limit = desk.queue.limit(spec.project)
    if limit is None:
        return desk.site
    if limit[0] < 1:
        raise InvalidInput("project", spec.project, f"one with a quota; {limit[1]} is 0")
    return desk.site.within(*limit)


def _terms(spec: JobSpec, plan: TrainingPlan, site: Site, market: MarketReport) -> Terms:
    """The deadline counts from now, by the market's clock."""
    left = timedelta(seconds=seconds_until(spec.deadline, site.speed))
    relative = spec.model_copy(update={"deadline": left})
    return job_terms(relative, plan, site, market, market.at)


def training_task(prepared: PreparedJob) -> TrainingTask:
    spec, chosen = prepared.spec, prepared.plan
    given = dict(spec.training.given)
    for field in (
        *("num_train_epochs", "max_steps", "per_device_train_batch_size", "bf16", "fp16"),
        *("gradient_accumulation_steps", "gradient_checkpointing", "max_length"),
    ):
        given.pop(field, None)
    every = spec.checkpoint.every
    return msgspec.convert(
        {
            "model": spec.model,
            "dataset": spec.dataset,
            "method": chosen.method,
            "max_steps": chosen.total_steps,
            "per_device_train_batch_size": chosen.microbatch,
            "gradient_accumulation_steps": chosen.accumulation,
            "global_batch": chosen.global_batch,
            "max_length": chosen.max_length,
            "bf16": chosen.precision == "bf16",
            "fp16": chosen.precision == "fp16",
            "gradient_checkpointing": chosen.gradient_checkpointing,
            "checkpoint_every_s": every.total_seconds() if isinstance(every, timedelta) else None,
            "emulated_microbatch_s": chosen.emulated_microbatch_s,
            **given,
        },
        TrainingTask,
    )


def _check_finishable(spec: JobSpec, quote: Quote) -> None:
    """A job that ends unfinished in every scenario only costs money."""
    document = quote.document
    if document.chosen.finished > 0:
        return
    if spec.budget is not None:
        likely = "" if document.bound is None else f"; about ${document.bound.cost:.2f} is likely"
        allowed = f"more: it is spent before the work is done in every scenario{likely}"
        raise InvalidInput("budget", spec.budget, allowed)
    if spec.max_price is not None:
        allowed = "more: in no scenario is there enough spot at that price"
        raise InvalidInput("max_price", spec.max_price, allowed)


def _check_model(spec: JobSpec) -> None:
    if spec.model is None or not is_path(spec.model):
        return
    if not (Path(spec.model) / "config.json").is_file():
        raise InvalidInput("model", spec.model, "a folder with a config.json, as models are saved")


def _dataset(spec: JobSpec) -> DatasetSummary | None:
    """None where it is not on this machine."""
    if spec.training.eval_dataset is not None and is_path(spec.training.eval_dataset):
        check_dataset(spec.training.eval_dataset)
    if spec.dataset is None or not is_path(spec.dataset):
        return None
    return check_dataset(spec.dataset)


def _chosen(
    spec: JobSpec, terms: Terms, desk: Submitter, scenarios: NDArray[np.float64], store: Store
) -> tuple[str, str]:
    """The policy and how it came to be chosen."""
    if terms.policy is not None:
        return terms.policy, terms.policy_reason
    if spec.policy != "auto":
        return desk.policy_named(spec.policy).name, "named in the spec"
    names = [policy.name for policy in desk.pool]
    learnt = learnt_utilities(store.selector, names)
    learner = desk.learner(len(names))
    learner.warm_start(scenarios, trust=TRUST)
    for row in learnt:
        learner.learn(row)
    best = int(learner.weights.argmax())
    jobs = "no job yet" if not len(learnt) else f"{len(learnt)} finished jobs"
    return names[best], f"best of {len(names)} on {len(scenarios)} scenarios and {jobs}"


def _outlook(desk: Submitter) -> Outlook:
    from duetune.core.decision import Outlook  # noqa: PLC0415

    if desk.history is None:
        return Outlook(float(desk.market.slot.available), desk.market.slot.spot_price)
    return outlook_at(desk.history, desk.history.slots - 1)


def _past(desk: Submitter) -> Past:
    if desk.history is None:
        return Past()
    return Past(
        spot_price=tuple(desk.history.spot_price[0].tolist()),
        available=tuple(desk.history.available[0].tolist()),
    )


def _identifier(name: str) -> str:
    suffix = "".join(randomness.choice(_LETTERS) for _ in range(5))
    return f"{name[:40].lower().strip('-._')}-{suffix}"


def _node_task(spec: JobSpec, folder: Path) -> Task:
    environment = {
        name: os.environ[name] if value is None else value for name, value in spec.envs.items()
    }
    if spec.checkpoint.dir is not None:
        # A folder of its own: two jobs must not take each other's checkpoints for theirs.
        environment[CHECKPOINT_DIR] = str(Path(spec.checkpoint.dir) / folder.name)
    environment[CHECKPOINT_KEEP] = str(spec.checkpoint.keep)
    if spec.run is None:
        return Task(folder=str(folder), module=TRAINER, environment=environment, coordinated=True)
    start = f"cd {shlex.quote(spec.workdir)}\n" if spec.workdir else ""
    # Without the trap a notice would end the shell before the command has said that it left.
    script = f"set -e\ntrap : TERM\n{start}{spec.setup or ''}\n{spec.run}\n"
    return Task(folder=str(folder), command=("bash", "-c", script), environment=environment)


def _check_environment(spec: JobSpec, environ: Mapping[str, str]) -> None:
    for name, value in spec.envs.items():
        if value is None and name not in environ:
            raise InvalidInput(f"envs.{name}", None, "a value, or one in your environment")
    for name in spec.secrets:
        if name not in environ:
            raise InvalidInput(f"secrets.{name}", "not set", "a value in your environment")


def _write_secrets(folder: Path, spec: JobSpec, environ: Mapping[str, str]) -> None:
    """Beside the job, for its owner alone; neither the journal nor a log ever has them."""
    if not spec.secrets:
        return
    path = folder / SECRETS_FILE
    secrets = msgspec.json.encode({name: environ[name] for name in spec.secrets})
    write_whole(path, secrets, mode=OWNER)

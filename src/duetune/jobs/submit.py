"""From a spec to a job in the journal: plan, quote, choose a policy, and write it down.

``prepare`` changes nothing and finds everything that is wrong; ``submit`` writes the job.
"""

from __future__ import annotations

import secrets as randomness
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.control.crash_points import journal_with_crash_points
from duetune.control.learning import learnt_utilities
from duetune.core.decision import Outlook
from duetune.core.events import Past, Submitted
from duetune.core.fleet import MarketReport
from duetune.core.market import MarketTrace
from duetune.core.ports import Policy
from duetune.errors import InvalidInput
from duetune.jobs.configure import TrainingPlan, configure, held_out_rows
from duetune.jobs.data_check import eval_dataset_rows, local_dataset
from duetune.jobs.job_folder import write_job_folder
from duetune.jobs.measured_runs import measured_paces, ran_out_of_memory
from duetune.jobs.preflight import Machine, Preflight, hub_repos, job_environment, preflight
from duetune.jobs.quote import Quote, make_quote
from duetune.jobs.site import Site
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.spec.sections import AUTO
from duetune.jobs.spec.values import is_path
from duetune.jobs.terms import Terms, job_terms, seconds_until
from duetune.jobs.training_settings import TrainingSetting, training_settings, training_task
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.observation import Origin
from duetune.knowledge.sources.knowledge_source import KnowledgeSource
from duetune.market.forecast.simple import outlook_at
from duetune.notebook import html_table
from duetune.policies.select.hedge import Learner
from duetune.settings import QueueSettings
from duetune.storage import place_below
from duetune.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from duetune.jobs.hub import Repo
    from duetune.knowledge.facts.model_facts import ModelFacts
    from duetune.settings import Settings

TRUST = 0.9
"""Weight of the quote's scenarios before any finished job was learnt from."""

SCENARIOS = 100
_LETTERS = "bcdfghjkmnpqrstvwxz23456789"


class PreparedJob(msgspec.Struct, frozen=True):
    """A job that could be submitted; nothing has been written or spent.

    The deadline in ``terms`` counts from when the job was prepared; ``submit`` computes it again.
    ``chosen`` says why ``policy`` was chosen. ``settings`` are all training settings with where
    they come from; ``preflight`` is what was found to be wrong.
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
    settings: tuple[TrainingSetting, ...] = ()
    preflight: Preflight = Preflight()

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
            f"{self.plan.max_gpus * self.plan.gpus_per_member} x {self.plan.accelerator}; "
            f"policy {self.policy}"
            + "".join(f"; {each.severity}: {each}" for each in self.preflight.findings),
        )


class Submitter(msgspec.Struct, frozen=True):
    """Everything ``prepare`` needs besides the spec: the site, its market and the policies.

    - ``market`` is the market now, ``history`` its past (None: unknown).
    - ``pool`` are the policies to choose from; ``policy_named`` makes one by name.
    - ``learner`` makes a selector for a number of policies.
    - ``knowledge`` returns configuration knowledge. It takes seconds, so it is called only if
      needed.
    - ``machine`` says where jobs are kept and run.
    - ``queue`` limits how many GPUs one job can hold.
    - ``by_priority`` says that the fleet serves requests by the priority of their jobs.
    """

    site: Site
    market: MarketReport
    history: MarketTrace | None
    pool: tuple[Policy, ...]
    policy_named: Callable[[str], Policy]
    learner: Callable[[int], Learner]
    knowledge: Callable[[Store], KnowledgeSource]
    machine: Machine
    queue: QueueSettings = QueueSettings()
    by_priority: bool = False

    def in_members(self, gpus: int) -> Submitter:
        """Return the market for a job that buys members of ``gpus`` GPUs.

        Terms, quote, outlook and past follow from it, so policies never see single GPUs.
        """
        slot, history = self.market.slot.in_members(gpus), self.history
        return msgspec.structs.replace(
            self,
            market=msgspec.structs.replace(self.market, slot=slot),
            history=None if history is None else history.in_members(gpus),
        )


def prepare(spec: JobSpec, submitter: Submitter, store: Store, *, seed: int = 0) -> PreparedJob:
    """Return the planned and quoted job. ``plan`` and ``launch`` call it; everything that can be
    wrong with a job is refused here, before anything is spent.
    """
    environ = job_environment(spec)  # refuses variables and secrets that are not set
    if submitter.machine.own:
        _check_model(spec)
    summary = local_dataset(spec)
    repos = hub_repos(spec, environ)
    sizes = [each.rows for each in repos if each.name == spec.dataset]
    rows = summary.rows if summary is not None else next(iter(sizes), None)
    facts = _model_facts(spec, repos)
    site = _site(spec, submitter)
    earlier = store.observations.history(origin=Origin.PRODUCTION)
    plan = configure(
        spec,
        site,
        rows,
        facts,
        measured_paces(earlier, spec),
        source=lambda: submitter.knowledge(store),
        ran_out=ran_out_of_memory(earlier),
        tokens_per_row=None if summary is None else summary.tokens_per_row,
        eval_rows=eval_dataset_rows(spec),
    )
    task = None if spec.run is not None else training_task(spec, plan)
    checked = preflight(spec, plan, task, facts, summary, repos, submitter.machine, environ)
    held_out = None if rows is None else held_out_rows(spec, rows)
    submitter = submitter.in_members(plan.gpus_per_member)
    terms = _terms(spec, plan, site, submitter.market)
    terms = msgspec.structs.replace(terms, notes=(*terms.notes, *_priority_notes(spec, submitter)))
    quote = make_quote(
        terms,
        submitter.pool,
        market_history=submitter.history,
        now=submitter.market,
        scenarios=SCENARIOS,
        seed=seed,
    )
    policy, chosen = _chosen(spec, terms, submitter, quote.utilities, store)
    quote = quote.with_policy(submitter.policy_named(policy))
    _check_finishable(spec, quote)
    return PreparedJob(
        spec=spec,
        plan=plan,
        terms=terms,
        quote=quote,
        policy=policy,
        chosen=chosen,
        rows=rows,
        outlook=_outlook(submitter),
        past=_past(submitter),
        settings=() if task is None else training_settings(spec, plan, task, held_out),
        preflight=checked,
    )


def submit(
    prepared: PreparedJob,
    settings: Settings,
    store: Store,
    *,
    site: Site,
    market: MarketReport,
    storage: str = "",
) -> str:
    """Write a job for the fleet of ``settings`` to its folder and to the journal; return its id.

    The folder is written before the journal, so that no controller finds a job without one. With a
    ``storage``, what its nodes need is put there, too; if that fails, there is no job.
    """
    gpus = prepared.plan.gpus_per_member
    market = msgspec.structs.replace(market, slot=market.slot.in_members(gpus))
    terms = _terms(prepared.spec, prepared.plan, site, market)
    job = _identifier(prepared.spec.name)
    task = write_job_folder(
        settings.folder(job),
        prepared.spec,
        prepared.plan,
        storage=place_below(storage, job) if storage else "",
        without=settings.own_paths,
    )
    event = Submitted(
        at=market.at,
        spec=msgspec.json.encode(prepared.spec.document()).decode(),
        job=terms.job,
        task=task,
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
        soft=terms.soft,
        slowdown=terms.slowdown,
        fleet=settings.fleet_name,
    )
    journal_with_crash_points(store.journal).append(job, [event], expected=0)
    return job


def _site(spec: JobSpec, submitter: Submitter) -> Site:
    """Return the site with no more GPUs than a job of this project can ever hold."""
    limit = submitter.queue.limit(spec.project)
    if limit is None:
        return submitter.site
    if limit[0] < 1:
        raise InvalidInput(
            "project", spec.project, f"a project with a quota above 0; {limit[1]} is 0"
        )
    return submitter.site.within(*limit)


def _priority_notes(spec: JobSpec, submitter: Submitter) -> list[str]:
    """Return a note if the priority has no effect, because jobs never compete."""
    limited = submitter.queue.limit(spec.project) is not None
    if spec.priority == 0 or limited or submitter.by_priority:
        return []
    return [
        "priority has no effect, because nothing limits the GPUs: set gpus or a quota in [queue]"
    ]


def _terms(spec: JobSpec, plan: TrainingPlan, site: Site, market: MarketReport) -> Terms:
    """Return the terms of the job, with the deadline counted from now by the market's clock."""
    left = timedelta(seconds=seconds_until(spec.deadline, site.speed))
    relative = spec.model_copy(update={"deadline": left})
    return job_terms(relative, plan, site, market, market.at)


def _check_finishable(spec: JobSpec, quote: Quote) -> None:
    """Refuse a job that its policy finishes in no scenario."""
    document = quote.document
    if document.chosen.finished > 0:
        return
    if spec.budget is not None:
        likely = "" if document.bound is None else f"; about ${document.bound.cost:.2f} is needed"
        allowed = f"more: in every scenario it is spent before the work is done{likely}"
        raise InvalidInput("budget", spec.budget, allowed)
    if spec.max_price is not None:
        allowed = "more: no scenario has enough spot capacity at that price"
        raise InvalidInput("max_price", spec.max_price, allowed)
    if spec.policy != AUTO:
        raise InvalidInput("policy", spec.policy, "another: it finishes the job in no scenario")


def _check_model(spec: JobSpec) -> None:
    """Refuse a model folder without a configuration."""
    if spec.run is not None or spec.model is None or not is_path(spec.model):
        return
    if not (Path(spec.model) / "config.json").is_file():
        raise InvalidInput("model", spec.model, "a folder with a config.json")


def _model_facts(spec: JobSpec, repos: Sequence[Repo]) -> ModelFacts | None:
    """Return the sizes of the model, from its cached copy if it is on the hub and was fetched."""
    if spec.run is not None or spec.model is None:
        return None
    folders = [str(each.folder) for each in repos if each.name == spec.model and each.folder]
    return model_facts(folders[0] if folders else spec.model)


def _chosen(
    spec: JobSpec, terms: Terms, submitter: Submitter, scenarios: NDArray[np.float64], store: Store
) -> tuple[str, str]:
    """Return the policy and why it was chosen."""
    if terms.policy is not None:
        return terms.policy, terms.policy_reason
    if spec.policy != "auto":
        return submitter.policy_named(spec.policy).name, "given in the spec"
    names = [policy.name for policy in submitter.pool]
    learnt = learnt_utilities(store.selector, names)
    learner = submitter.learner(len(names))
    learner.warm_start(scenarios, trust=TRUST)
    for row in learnt:
        learner.learn(row)
    best = int(learner.weights.argmax())
    jobs = "1 finished job" if len(learnt) == 1 else f"{len(learnt) or 'no'} finished jobs"
    return names[best], f"best of {len(names)} policies on {len(scenarios)} scenarios and {jobs}"


def _outlook(submitter: Submitter) -> Outlook:
    """Return the typical spot price and availability, from the history if there is one."""
    if submitter.history is None:
        return Outlook(float(submitter.market.slot.available), submitter.market.slot.spot_price)
    return outlook_at(submitter.history, submitter.history.slots - 1)


def _past(submitter: Submitter) -> Past:
    """Return the market history that the journal keeps with the job."""
    if submitter.history is None:
        return Past()
    return Past(
        spot_price=tuple(submitter.history.spot_price[0].tolist()),
        available=tuple(submitter.history.available[0].tolist()),
    )


def _identifier(name: str) -> str:
    """Return a new job id: the name and five random letters."""
    suffix = "".join(randomness.choice(_LETTERS) for _ in range(5))
    return f"{name[:40].lower().strip('-._')}-{suffix}"

"""A duetune home: its settings, store, fleets and controllers, and what a user asks of them.

``duetune.api`` and the command line both call ``Home``, so that they give the same answers. What
the parts are made of is in ``duetune.wiring``.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import FleetError, InvalidInput, MissingExtra, StoreError, StoreLost
from duetune.settings import HOME, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duetune.core.events import UserRequest
    from duetune.fleets.host import Connected
    from duetune.jobs.advice_request import Wanted
    from duetune.jobs.amendment import Amendment
    from duetune.jobs.explain import Explanation
    from duetune.jobs.fit_question import FitQuestion
    from duetune.jobs.site import Site
    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.jobs.status import JobStatus
    from duetune.jobs.submit import PreparedJob
    from duetune.jobs.trainer_knowledge import Packing, TrainerKnowledge
    from duetune.knowledge.advice import Advice, Fit
    from duetune.knowledge.advisor import Advisor
    from duetune.knowledge.history import History
    from duetune.settings import Settings
    from duetune.store.rows import JobRow
    from duetune.store.store import Store
    from duetune.training.metrics import MetricRow

TRAINING_PACKAGES = ("torch", "torchft", "peft")
REFRESH_S = 0.5
MOST_STARTS = 3
"""``follow`` gives up after it has started a controller this many times."""


class Home:
    """One home: by default the folder in ``DUETUNE_HOME``, else ``~/.duetune``.

    Each part is opened when it is first needed. Nothing is created by asking a question.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = folder

    @cached_property
    def settings(self) -> Settings:
        """The home's folder and its ``config.toml``."""
        if self._folder is None:
            return load_settings()
        return load_settings({**os.environ, HOME: str(self._folder)})

    @property
    def store(self) -> Store:
        """The home's database, for questions; an empty one in memory if there is none."""
        from duetune.store.store import has_store, readable_store

        if "writable_store" in self.__dict__ or has_store(self.settings):
            return self.writable_store
        return readable_store(self.settings)

    @cached_property
    def writable_store(self) -> Store:
        """The home's database, created if there is none."""
        from duetune.store.store import opened_store

        return opened_store(self.settings)

    def on(self, fleet: str = "") -> Settings:
        """Return the settings as seen from a fleet, which users name; "" is the default fleet.

        Refuses a name that is no fleet of the home.
        """
        from duetune.registry.fleets import check_fleet

        if fleet:
            check_fleet(self.settings, fleet)
        return self.settings.on(fleet)

    @property
    def fleet(self) -> Connected | None:
        """The default fleet of the home, or None if it is not running."""
        return self.connected()

    def connected(self, fleet: str = "") -> Connected | None:
        """Return a fleet of the home, or None if it is not running; "" is the default fleet."""
        from duetune.wiring import running_fleet

        return running_fleet(self.settings.on(fleet))

    @property
    def controller(self) -> int | None:
        """The process id of the default fleet's controller, or None if none is running."""
        return self.controller_of()

    def controller_of(self, fleet: str = "") -> int | None:
        """Return the process id of a fleet's controller, or None if none is running."""
        from duetune.jobs.controller_process import controller_pid

        return controller_pid(self.settings.on(fleet))

    def controller_note(self, fleet: str = "") -> str:
        """Return what to tell a user who waits for a job if no controller runs; else empty.

        ``fleet`` is that of the job.
        """
        from duetune.jobs.controller_process import controller_files, supervisor_of

        settings = self.settings.on(fleet)
        if self.controller_of(fleet) is not None:
            return ""
        if supervisor_of(settings) is not None:
            log = controller_files(settings).log
            return f"The controller has died and will be started again; see {log}."
        return "No controller is running: 'duetune controller start' continues unfinished jobs."

    def busy_fleets(self) -> list[str]:
        """Return the fleets that have unfinished jobs, sorted.

        Of a home whose database is lost, these are all fleets that had a controller.
        """
        from duetune.jobs.controller_process import fleets_with_locks

        try:
            named = self.store.busy_fleets()
        except StoreLost:
            named = ["", *fleets_with_locks(self.settings.home)]
        return sorted({self.settings.on(name).fleet_name for name in named})

    def check_settings(self, fleet: str = "") -> None:
        """Refuse settings that would stop a new controller; one that runs is left alone."""
        from duetune.wiring import check_names

        if self.controller_of(fleet) is None:
            check_names(self.settings.on(fleet))

    def start_controller(self, fleet: str = "") -> int:
        """Return the process id of a fleet's controller; start one if there is none."""
        from duetune.jobs.controller_process import start_controller

        self.check_settings(fleet)
        return start_controller(self.settings.on(fleet))

    def spec(self, spec: JobSpec | str | Path, *, fleet: str | None = None) -> JobSpec:
        """Return a checked job spec with absolute paths, from a spec or from a YAML file.

        Relative paths in a file start at the file's folder, those of a ``JobSpec`` at the current
        folder. ``fleet`` replaces the fleet of the spec.
        """
        from duetune.jobs.spec.load import check_paths, load_resolved
        from duetune.wiring import runs_here

        if isinstance(spec, str | Path):
            resolved = load_resolved(spec)
        else:
            resolved = spec.resolved(Path.cwd())
        if fleet is not None:
            resolved = resolved.amended(fleet=fleet)
        check_paths(resolved, own=runs_here(self.on(resolved.fleet)))
        return resolved

    def plan(self, spec: JobSpec | str | Path, *, seed: int = 0) -> PreparedJob:
        """Return how the job would be trained, what it would cost and when it would be done.

        Nothing is started or spent. ``seed`` draws the market scenarios of the quote.
        """
        from duetune.jobs.submit import prepare
        from duetune.wiring import desk

        job = self.spec(spec)
        return prepare(job, desk(self.on(job.fleet)), self.store, seed=seed)

    def launch(self, prepared: PreparedJob) -> str:
        """Submit a planned job to its fleet and return its id; starts the fleet and its controller
        if needed.

        Refuses a job of which the plan says that it would certainly fail.
        """
        from duetune.jobs.submit import submit
        from duetune.wiring import desk_site, start_fleet, storage_of

        self.require_training(prepared.spec)
        prepared.preflight.refuse()
        settings = self.on(prepared.spec.fleet)
        fleet = start_fleet(settings)
        self.start_controller(prepared.spec.fleet)
        return submit(
            prepared,
            settings,
            self.writable_store,
            site=desk_site(settings),
            market=fleet.feed.now(),
            storage=storage_of(settings),
        )

    def require_training(self, spec: JobSpec) -> None:
        """Refuse a job for duetune's trainer that would run on this machine if the trainer's
        packages are not installed here.
        """
        from duetune.wiring import runs_here

        absent = any(importlib.util.find_spec(name) is None for name in TRAINING_PACKAGES)
        if spec.run is None and absent and runs_here(self.on(spec.fleet)):
            raise MissingExtra("training", "train")

    def status(self, job: str) -> JobStatus:
        """Return how a job is doing now; ``job`` is its id or the start of it."""
        from duetune.jobs.status import job_status

        row = self.store.job(job)
        # A job that is over can be read even if its fleet was removed.
        fleet = None if row.status.final else self.connected(row.fleet)
        return job_status(
            row,
            self.settings.on(row.fleet),
            self.store,
            fleet,
            controller=self.controller_of(row.fleet),
        )

    def metrics(self, job: str) -> list[MetricRow]:
        """Return the metrics of every step of a job, from the file in its folder."""
        from duetune.training.metrics import METRICS, read_metrics

        return read_metrics(self.settings.folder(self.store.job(job).id) / METRICS)

    def fleet_silent_s(self, job: str) -> float | None:
        """Return for how many real seconds the job's fleet has not answered, by its journal."""
        from duetune.jobs.status import silent_s
        from duetune.simulate.journal_replay import state_of

        state = state_of(self.store.journal.read(job), stream=job)
        if state.silent_since is None:
            return None
        return silent_s(state, self.connected(state.submitted.fleet))

    def follow(self, job: str) -> Iterator[JobStatus]:
        """Yield a job's status twice a second until the job is over.

        A controller that has ended is started again, at most ``MOST_STARTS`` times.
        """
        from duetune.jobs.controller_process import controller_files

        starts = 0
        while True:
            found = self.status(job)
            yield found
            if found.job.status.final:
                return
            if found.controller is None:
                if starts == MOST_STARTS:
                    log = controller_files(self.settings.on(found.job.fleet)).log
                    raise FleetError(f"the controller keeps ending; see {log}", retry=False)
                starts += 1
                self.start_controller(found.job.fleet)
            time.sleep(REFRESH_S)

    def amendment(
        self,
        job: str,
        *,
        deadline: str | None = None,
        budget: str | None = None,
        value: str | None = None,
        priority: int | None = None,
        force: bool = False,
        seed: int = 0,
    ) -> Amendment:
        """Return new terms for a job with a new quote; nothing is changed yet.

        Refuses terms that cannot be met, unless ``force`` is set.
        """
        from duetune.jobs.amendment import amendment
        from duetune.jobs.user_requests import active_job, amended_terms
        from duetune.wiring import desk

        row = active_job(self.store, job)
        request = amended_terms(row, self.connected(row.fleet), deadline, budget, value, priority)
        submitter = desk(self.settings.on(row.fleet))
        return amendment(row, request, submitter, self.store, force=force, seed=seed)

    def ask(self, job: str, request: UserRequest) -> tuple[JobRow, int, int]:
        """Store a request about a job; return the job, the request's number and the controller."""
        from duetune.jobs.user_requests import active_job, asked

        fleet = active_job(self.store, job).fleet
        self.check_settings(fleet)
        row, number = asked(self.store, job, request)
        return row, number, self.start_controller(fleet)

    def explain(self, job: str, slot: int | None = None) -> Explanation:
        """Return why a job held what it held: every decision, or one slot in full."""
        from duetune.jobs.explain import explained
        from duetune.registry.policies import policy_named

        row = self.store.job(job)
        return explained(row.id, self.store.journal.read(row.id), policy_named, slot=slot)

    def advisor(self, source: str = "hybrid") -> tuple[Advisor, tuple[str, ...]]:
        """Return the advisor on duetune's trainer, and notes on what could not be read."""
        from duetune.knowledge.advisor import Advisor

        trainer, history, notes = self._knowledge(source)
        return Advisor(trainer, history), notes

    def _knowledge(
        self, source: str = "hybrid", packing: Packing | None = None
    ) -> tuple[TrainerKnowledge, History, tuple[str, ...]]:
        """Return what is known about duetune's trainer and the runs behind it. ``packing`` says how
        the rows of a job fill a microbatch.
        """
        from duetune.jobs.measured_runs import ran_out_of_memory
        from duetune.jobs.trainer_facts import trainer_software
        from duetune.jobs.trainer_knowledge import PLAIN, TrainerKnowledge
        from duetune.registry.sources import site_history, site_source
        from duetune.store.store import existing_store

        notes: tuple[str, ...] = ()
        try:
            history = site_history(existing_store(self.settings))
        except StoreError as error:
            history = site_history(None)
            notes = (f"only the runs that come with duetune are known: {error}",)
        known = site_source(self.settings, history, source)
        ran_out = ran_out_of_memory(history)
        return (
            TrainerKnowledge(known, trainer_software(), ran_out, packing or PLAIN),
            history,
            notes,
        )

    def fits(self, question: FitQuestion) -> Fit:
        """Return whether one configuration fits on its GPU, with what takes the memory."""
        from duetune.jobs.fit_question import asked_configuration
        from duetune.knowledge.advisor import Advisor

        known = functools.cache(self._knowledge)
        configuration, assumed = asked_configuration(question, lambda: known()[0])
        trainer, history, notes = known()
        fit = Advisor(trainer, history).fit(configuration)
        return msgspec.structs.replace(fit, assumptions=(*assumed, *fit.assumptions, *notes))

    def recommend(
        self, wanted: Wanted, spec: JobSpec | str | Path | None = None, *, source: str = "hybrid"
    ) -> Advice:
        """Return the best configurations for a job spec or a model, with the reasons."""
        from duetune.jobs.advice_request import request
        from duetune.jobs.data_check import local_dataset
        from duetune.jobs.trainer_knowledge import PLAIN, Packing
        from duetune.knowledge.advisor import Advisor

        if spec is None and wanted.model is None:
            raise InvalidInput("model", None, "a model, or a job spec that names one")
        job = None if spec is None else self.spec(spec)
        data = None if job is None else local_dataset(job)
        length = None if data is None else data.tokens_per_row
        packing = PLAIN if job is None else Packing.of(job, length)
        known = functools.cache(lambda: self._knowledge(source, packing))
        site = self._site("" if job is None else job.fleet)
        asked = request(wanted, job, *site, data, lambda: known()[0])
        trainer, history, notes = known()
        advice = Advisor(trainer, history).recommend(asked)
        return msgspec.structs.replace(advice, assumptions=(*advice.assumptions, *notes))

    def _site(self, fleet: str) -> tuple[Site | None, float | None]:
        """Return the site of a fleet and the hourly price of its GPUs, if they are named."""
        from duetune.jobs.site import Site
        from duetune.jobs.trainer_facts import trainer_software
        from duetune.registry.fleets import fleet_named
        from duetune.wiring import on_demand_usd_h, runs_here

        settings = self.on(fleet)
        site = settings.site if runs_here(settings) else fleet_named(settings).site()
        if site.accelerator is None:
            return None, None
        return Site.of(site, trainer_software()), on_demand_usd_h(settings)

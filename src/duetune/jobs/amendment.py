"""New terms for a running job: read, checked and quoted before anything changes.

The quote simulates the rest of the job with the same code as ``plan``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from duetune.core.events import Amend
from duetune.errors import InvalidInput
from duetune.jobs.quote import make_quote
from duetune.jobs.quote_document import QuoteDocument
from duetune.jobs.submit import SCENARIOS
from duetune.jobs.terms import ON_DEMAND, SPOT_ONLY, Terms, written_up
from duetune.simulate.journal_replay import state_of
from duetune.store.rows import JobRow

if TYPE_CHECKING:
    from duetune.engine.state import JobState
    from duetune.jobs.submit import Submitter
    from duetune.store.store import Store

LEAST_WORK = 1e-6
"""Work that is left of a job whose last step was just done."""


class Amendment(msgspec.Struct, frozen=True, kw_only=True):
    """New terms for a job; nothing has been changed yet.

    ``quote`` is about the rest of the job on these terms, its budget included. It is None if terms
    that cannot be met were forced, or if only the priority changes, which has no price.
    """

    job: JobRow
    request: Amend
    quote: QuoteDocument | None


def amendment(
    row: JobRow,
    request: Amend,
    submitter: Submitter,
    store: Store,
    *,
    force: bool = False,
    seed: int = 0,
) -> Amendment:
    """Return the amendment with its quote. ``duetune amend`` calls it before it asks.

    Refuses a deadline that all GPUs on demand cannot meet, and terms on which the job's policy
    finishes in no scenario, unless ``force`` is set.
    """
    if request == Amend(priority=request.priority):
        return Amendment(job=row, request=request, quote=None)
    state = state_of(store.journal.read(row.id), stream=row.id)
    try:
        quote = _quote(state, request, submitter, seed)
    except InvalidInput:
        if not force:
            raise
        quote = None
    return Amendment(job=row, request=request, quote=quote)


def _quote(state: JobState, request: Amend, submitter: Submitter, seed: int) -> QuoteDocument:
    """Return the quote of the rest of the job on the new terms, or raise what is wrong."""
    submitter = submitter.in_members(state.submitted.task.gpus)
    terms = _terms(state, request, submitter)
    policy = submitter.policy_named(state.submitted.policy)
    try:
        quote = make_quote(
            terms,
            (policy,),
            market_history=submitter.history,
            now=submitter.market,
            scenarios=SCENARIOS,
            seed=seed,
        )
    except InvalidInput as error:
        if error.field != "budget":
            raise
        allowed = f"more: {_spent(state)}, and the rest needs {error.allowed}"
        raise InvalidInput("budget", _whole_budget(state, terms), allowed) from None
    document = quote.document
    if document.chosen.finished == 0:
        raise _unfinished(state, terms, document)
    return document


def _terms(state: JobState, request: Amend, submitter: Submitter) -> Terms:
    """Return the terms of the rest of the job, whose first slot is the present one."""
    market, submitted = submitter.market, state.submitted
    slot_s = submitted.slot_s
    left = max(LEAST_WORK, state.job.work - state.progress.step)
    needed = state.job.fewest_slots(left)
    due_at = state.deadline_at if request.deadline is None else request.deadline
    slots = math.floor((due_at - market.slot_began) / slot_s + 1e-9)
    if request.deadline is not None and slots < needed:
        earliest = market.slot_began + needed * slot_s - market.at
        given = written_up(max(0.0, request.deadline - market.at))
        gpus = state.job.max_gpus * submitted.task.gpus
        group = f"all {gpus} GPUs need" if gpus > 1 else "the one GPU needs"
        allowed = f"at least {written_up(earliest)}: {group} that long on demand for the rest"
        raise InvalidInput("deadline", given, allowed)
    budget = state.job.budget if request.budget is None else request.budget
    # A deadline that is lost and was not changed is no reason to refuse a budget.
    job = msgspec.structs.replace(
        state.job,
        work=left,
        deadline=max(slots, needed),
        value=state.job.value if request.value is None else request.value,
        budget=None if budget is None else max(0.0, budget - state.spent),
    )
    forced = submitted.policy if submitted.policy in {ON_DEMAND, SPOT_ONLY} else None
    return Terms(
        job=job,
        origin=market.slot_began,
        slot_s=slot_s,
        deadline_at=due_at,
        stop_at=submitted.stop_at,
        max_price=submitted.max_price,
        gpus_per_member=submitted.task.gpus,
        policy=forced,
        soft=submitted.soft,
        notes=() if slots >= needed else ("the deadline can no longer be met",),
    )


def _unfinished(state: JobState, terms: Terms, document: QuoteDocument) -> InvalidInput:
    """Return the error for terms on which no scenario finishes the job."""
    on_demand = document.lines[1].cost
    if terms.job.budget is not None and terms.job.budget < on_demand:
        allowed = f"more: {_spent(state)}, and the rest costs up to ${on_demand:.2f}"
        return InvalidInput("budget", _whole_budget(state, terms), allowed)
    if terms.job.value < on_demand:
        allowed = f"more: the rest costs up to ${on_demand:.2f}, so finishing would not be worth it"
        return InvalidInput("value", terms.job.value, allowed)
    return InvalidInput("terms", "these", "others: the job finishes in no scenario")


def _whole_budget(state: JobState, terms: Terms) -> float:
    """Return the budget of the whole job, as the user wrote it."""
    return round((terms.job.budget or 0.0) + state.spent, 2)


def _spent(state: JobState) -> str:
    return f"${state.spent:.2f} is already spent"

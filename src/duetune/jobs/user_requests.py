"""Requests of users about running jobs (cancel, pause, amend), checked before they are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.events import Amend
from duetune.errors import FleetError, InvalidInput
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.terms import seconds_until

if TYPE_CHECKING:
    from duetune.core.events import UserRequest
    from duetune.fleets.host import Connected
    from duetune.store.rows import JobRow
    from duetune.store.store import Store


def active_job(store: Store, name: str) -> JobRow:
    """Return a job that is not finished; refuses any other."""
    row = store.job(name)
    if row.status.final:
        raise InvalidInput("job", row.id, f"a job that is still active; this one is {row.status}")
    return row


def asked(store: Store, name: str, request: UserRequest) -> tuple[JobRow, int]:
    """Store a request and return the job and the request's number; refuses a finished job."""
    row = active_job(store, name)
    return row, store.requests.ask(row.id, request)


def amended_terms(
    row: JobRow,
    fleet: Connected | None,
    deadline: str | None,
    budget: str | None,
    value: str | None = None,
    priority: int | None = None,
) -> Amend:
    """Return the amendment, with fields read as in a spec. Durations count from now by the fleet's
    clock.
    """
    terms = {"deadline": deadline, "budget": budget, "value": value, "priority": priority}
    given = {field: term for field, term in terms.items() if term is not None}
    if not given:
        raise InvalidInput("amend", "nothing", "a new deadline, budget, value or priority")
    spec = JobSpec.model_validate({"deadline": "1h", "run": "true", **given})
    moment = None
    if deadline is not None:
        if fleet is None:
            raise FleetError(
                "a deadline needs a running fleet, because its clock counts", retry=False
            )
        moment = fleet.clock.now() + seconds_until(spec.deadline, fleet.speed)
    if spec.budget is not None and spec.budget < row.spent:
        raise InvalidInput("budget", budget, f"at least ${row.spent:.2f}, which is already spent")
    return Amend(
        deadline=moment,
        budget=spec.budget,
        value=spec.value,
        priority=None if priority is None else spec.priority,
    )

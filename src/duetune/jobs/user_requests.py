"""Wishes about running jobs, checked before they are written down."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from duetune.core.events import Amend
from duetune.errors import FleetError, InvalidInput
from duetune.jobs.spec.job_spec import JobSpec

if TYPE_CHECKING:
    from datetime import datetime

    from duetune.core.events import UserRequest
    from duetune.fleets.host import Connected
    from duetune.store.rows import JobRow
    from duetune.store.store import Store


def asked(store: Store, name: str, wish: UserRequest) -> tuple[JobRow, int]:
    """The job meant and the wish's number; a job that is over grants none."""
    row = store.job(name)
    if row.status.final:
        raise InvalidInput("job", row.id, f"a job that is not over; this one is {row.status}")
    return row, store.requests.ask(row.id, wish)


def amended_terms(
    row: JobRow, fleet: Connected | None, deadline: str | None, budget: str | None
) -> Amend:
    """Read as a spec's fields are. Durations count from now, by the fleet's clock."""
    given = {"deadline": deadline or "1h", "run": "true"}
    spec = JobSpec.model_validate(given if budget is None else {**given, "budget": budget})
    moment = None
    if deadline is not None:
        if fleet is None:
            raise FleetError("no fleet is running to tell the time", retry=False)
        moment = fleet.clock.now() + seconds_until(spec.deadline, fleet.speed)
    if spec.budget is not None and spec.budget < row.spent:
        raise InvalidInput("budget", budget, f"at least what was spent, ${row.spent:.2f}")
    return Amend(deadline=moment, budget=spec.budget)


def seconds_until(deadline: timedelta | datetime, speed: float) -> float:
    """From now, by a clock that runs ``speed`` times as fast as the wall's, whose moments are."""
    if isinstance(deadline, timedelta):
        return deadline.total_seconds()
    left = (deadline.timestamp() - time.time()) * speed
    if left <= 0:
        raise InvalidInput("deadline", deadline.isoformat(), "a moment to come")
    return left

"""What a policy comes to over all scenarios: one line of a quote."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.jobs.quote_document import LineRole, QuoteLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.job import Job
    from duetune.core.ledger import Outcome
    from duetune.jobs.terms import Terms


class Settled(NamedTuple):
    """``elapsed`` is in slots, and infinite where the job is never finished."""

    cost: float
    elapsed: float


def settled(job: Job, outcome: Outcome) -> Settled:
    """A simulated run as it will be billed: GPUs are given back when the work is done, not when
    the slot is over.
    """
    if outcome.finished is None:
        return Settled(outcome.cost, math.inf)
    last = outcome.entries[-1]
    unused = unused_share(job, outcome.progress, last.allocation.total)
    return Settled(outcome.cost - unused * last.charge, outcome.finished - unused)


def unused_share(job: Job, progress: float, gpus: int) -> float:
    """Of the slot in which ``gpus`` GPUs finished the work and went beyond."""
    return max(0.0, progress - job.work) / job.throughput[gpus]


def line_of(terms: Terms, role: LineRole, outcomes: Sequence[Outcome]) -> QuoteLine:
    runs = [settled(terms.job, outcome) for outcome in outcomes]
    costs = np.array([run.cost for run in runs])
    low, high = np.quantile(costs, [0.1, 0.9])
    elapsed = np.array([run.elapsed for run in runs])
    middle, late = (_quantile(elapsed, share) for share in (0.5, 0.9))
    entries = [entry for outcome in outcomes for entry in outcome.entries]
    spot = sum(entry.allocation.spot for entry in entries)
    held = sum(entry.allocation.total for entry in entries)
    return QuoteLine(
        role=role,
        policy=outcomes[0].policy,
        cost=float(costs.mean()),
        cost_low=float(low),
        cost_high=float(high),
        finish_slot=None if middle is None else math.ceil(middle),
        finish_slot_late=None if late is None else math.ceil(late),
        finish_at=None if middle is None else terms.moment(middle) + terms.late_s,
        finish_late_at=None if late is None else terms.moment(late) + terms.late_s,
        on_time=float(np.mean([outcome.on_time for outcome in outcomes])),
        finished=float(np.isfinite(elapsed).mean()),
        gpus=held / len(entries),
        spot_share=spot / held if held else 0.0,
        utility=float(np.mean([outcome.value for outcome in outcomes]) - costs.mean()),
    )


def _quantile(elapsed: NDArray[np.float64], share: float) -> float | None:
    """One that occurs, so that never is later than any slot and nothing is between the two."""
    value = float(np.quantile(elapsed, share, method="inverted_cdf"))
    return value if math.isfinite(value) else None

"""Replay of a journal: the same decisions again, and what other policies would have earned.

The journal is that of a live job or of a simulated episode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.decision import Allocation
from duetune.core.events import Decided, Observed, Submitted
from duetune.core.job import MAX_SLOTS
from duetune.core.market import MarketTrace
from duetune.core.physics import job_physics, unused_share
from duetune.core.progress import Phase
from duetune.engine.effects import after
from duetune.engine.engine import Engine
from duetune.engine.state import offered
from duetune.errors import InvalidInput, NotFound
from duetune.policies.solve.dynamic import offline_optimum
from duetune.simulate.cases import Case
from duetune.simulate.episode import LAST_VALUE, simulate
from duetune.simulate.summary import replay
from duetune.simulate.tournament import run_tournament

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.core.events import Recorded
    from duetune.core.job import Job
    from duetune.core.ledger import Outcome
    from duetune.core.ports import Policy
    from duetune.engine.state import JobState


_STEPS = 4000
"""Largest number of grid steps of the optimum, so that an explanation takes at most seconds."""


class Redecided(msgspec.Struct, frozen=True):
    """A decision as it is recorded in the journal and as the replay takes it."""

    slot: int
    recorded: Allocation
    again: Allocation
    same: bool


def redecided(
    story: Sequence[Recorded], policy_named: Callable[[str], Policy], *, stream: str = "replay"
) -> tuple[Redecided, ...]:
    """Return every decision of a journal, taken again by the same engine from the same events."""
    engine = Engine(stream, policy_named)
    again: Decided | None = None
    decisions = []
    for recorded in story:
        event = recorded.event
        if isinstance(event, Decided) and again is not None:
            same = again == event
            decisions.append(Redecided(event.slot, event.allocation, again.allocation, same))
        engine.handle(event)
        again = engine.decide(event) if isinstance(event, Observed) else None
    return tuple(decisions)


def job_lived(story: Sequence[Recorded]) -> Job:
    """Return the job with its latest terms, its measured throughput, and the work it really was.

    A job that stopped training early was less work than planned, also for other policies.
    """
    state = state_of(story)
    done = state.progress.total_steps
    if state.progress.phase is Phase.FINISHED and 0 < done < state.job.work:
        return msgspec.structs.replace(state.job, work=float(done))
    return state.job


def state_of(story: Sequence[Recorded], *, stream: str = "replay") -> JobState:
    """Return the state of the job at the end of its journal."""
    state: JobState | None = None
    for recorded in story:
        state = after(state, recorded.event, stream=stream)
    if state is None:
        raise NotFound("job", stream)
    return state


def market_lived(story: Sequence[Recorded], *, slots: int = 0) -> MarketTrace:
    """Return the market that the job saw, from its first slot on, at least ``slots`` long.

    A slot without an observation repeats the slot before it; so do the slots after the last one.
    Spot above the job's maximum price counts as not available.
    """
    submitted = _submitted(story)
    seen = {
        each.event.slot: offered(each.event, submitted)[0]
        for each in story
        if isinstance(each.event, Observed)
    }
    if not seen:
        raise InvalidInput("journal", "no slot observed", "a job that has started")
    # A clock that jumped may have observed one slot far after the end of the job.
    length = max(slots, min(max(seen), MAX_SLOTS))
    last = seen[min(seen)]
    columns = []
    for slot in range(1, length + 1):
        last = seen.get(slot, last)
        columns.append(last)
    return MarketTrace.single(
        np.array([market.spot_price for market in columns]),
        np.array([market.available for market in columns]),
        np.array([market.on_demand_price for market in columns]),
        slot_hours=submitted.slot_s / 3600,
        name="recorded market",
    )


def counterfactual_utilities(
    story: Sequence[Recorded], pool: Sequence[Policy]
) -> tuple[float, ...]:
    """Return what every policy of ``pool`` would have earned on the job's market; used for
    learning.
    """
    job = job_lived(story)
    market = market_lived(story, slots=job.hard_deadline)
    played = run_tournament(pool, [Case(job, 0, 0)], [market], LAST_VALUE, workers=1)
    return tuple(played.utility[0].tolist())


def alternatives(story: Sequence[Recorded], policies: Sequence[Policy]) -> tuple[Outcome, ...]:
    """Return the outcomes of the offline optimum and of each policy on the job's market.

    The last slot is charged by the second, as a fleet charges it, and the optimum is the best plan
    under that charge. Measured amounts of work seldom fit a grid, so the optimum's plan may miss
    the best one by a trifle; if a policy earned that trifle, its run is the best plan known.
    """
    job = job_lived(story)
    market = market_lived(story, slots=job.hard_deadline)
    runs = [_by_second(simulate(job, market, policy, LAST_VALUE), job) for policy in policies]
    window = market.window(0, job.hard_deadline)
    found = offline_optimum(job, window, max_steps=_STEPS, by_second=True)
    planned = _by_second(replay(found, job, market, start=0), job)
    best = max(planned, *runs, key=lambda run: run.utility)
    return (msgspec.structs.replace(best, policy=planned.policy), *runs)


def _by_second(run: Outcome, job: Job) -> Outcome:
    """Return the outcome with the last slot charged only until the work is finished."""
    if run.finished is None:
        return run
    last = run.entries[-1]
    saved = last.charge * unused_share(job_physics(job), run.progress, last.allocation.total)
    return msgspec.structs.replace(run, cost=run.cost - saved, utility=run.utility + saved)


def _submitted(story: Sequence[Recorded]) -> Submitted:
    if not story or not isinstance(story[0].event, Submitted):
        raise InvalidInput("journal", "no submission", "a stream that begins with one")
    return story[0].event

"""One job's engine: ``handle`` is the only door through which its state changes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.decision import Allocation, Decision, Forecast, View
from duetune.core.events import Decided, Ended, Observed, Status
from duetune.core.fleet import Launch, Limit, NodeKind, NodeState, Release
from duetune.core.physics import value_of_finishing
from duetune.engine.deciding import decide
from duetune.engine.effects import after, job_observed, time_is_up
from duetune.engine.market_history import highest_price, seen_by
from duetune.engine.node_requests import requested
from duetune.errors import Bug, DuetuneError, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.decision import Outlook
    from duetune.core.events import Event, Requested, Submitted
    from duetune.core.fleet import Command
    from duetune.core.job import Job
    from duetune.core.market import Slot
    from duetune.core.ports import Policy
    from duetune.engine.node_requests import Room
    from duetune.engine.state import JobState


STORY = 12
"""How many of the last events the message of a bug tells."""

FALLBACK = "on_demand"
"""The policy that decides where the chosen one fails: it needs no forecast and no memory."""


class Engine:
    """The state of job ``stream``. ``policy_named`` turns the chosen policy's name into it.

    The policy named ``fallback`` decides where the chosen one fails. None: the failure is raised,
    as a simulation wants it.
    """

    def __init__(
        self,
        stream: str,
        policy_named: Callable[[str], Policy],
        *,
        fallback: str | None = FALLBACK,
    ) -> None:
        self.stream = stream
        self._policy_named = policy_named
        self._fallback = fallback
        self._state: JobState | None = None
        self._story: deque[str] = deque(maxlen=STORY)

    @property
    def state(self) -> JobState:
        if self._state is None:
            raise NotFound("job", self.stream)
        return self._state

    @property
    def position(self) -> int:
        return 0 if self._state is None else self._state.position

    def is_over(self) -> bool:
        return self.state.status.final

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Let ``event`` take effect; returns all that the fleet should now be told."""
        status = None if self._state is None else self._state.status
        self._state = after(self._state, event, stream=self.stream, story=self._story)
        self._story.append(f"{type(event).__name__} ({status})")
        return self.outstanding()

    def outstanding(self) -> tuple[Command, ...]:
        """Everything asked for that the fleet has not confirmed. Saying it again is harmless."""
        state = self.state
        task, highest = state.submitted.task, state.submitted.max_price
        launches = [
            Launch(
                node=node.id,
                job=state.stream,
                kind=node.kind,
                epoch=state.epochs[node.id],
                task=task,
                max_price=highest if node.kind is NodeKind.SPOT else None,
            )
            for node in state.nodes.values()
            if node.state is NodeState.REQUESTED
            and node.id not in state.confirmed
            and node.id not in state.releasing
        ]
        releases = [
            Release(node=node, job=state.stream)
            for node in sorted(state.releasing)
            if state.nodes[node].state.alive
        ]
        limits = [Limit(state.stream, state.job.budget)] if self._limited else []
        return (*limits, *releases, *launches)

    def observed(
        self,
        *,
        at: float,
        market: Slot,
        forecast: Forecast,
        outlook: Outlook,
        pace: dict[int, float],
    ) -> Observed:
        """The slot that ``at`` is in, as the policy will be shown it."""
        state = self.state
        return Observed(
            at=at,
            slot=state.slot_at(at),
            progress=float(state.progress.step),
            held=state.held(),
            market=_after_refusal(state, market, at),
            forecast_price=tuple(forecast.spot_price.tolist()),
            forecast_available=tuple(forecast.available.tolist()),
            spent=state.spent,
            outlook=outlook,
            pace=pace,
        )

    def decide(self, observed: Observed) -> Decided | None:
        """The decision on a slot whose observation was handled, None if the job is stopping. The
        caller handles it; nothing changes here.
        """
        state = self.state
        if state.ending is not None:
            return None
        if state.status is Status.PAUSED:
            decision = Decision(Allocation(), "paused", state.memo)
        elif observed.share is not None and observed.share < state.job.min_gpus:
            decision = Decision(Allocation(), f"waits: {observed.share_reason}")
        else:
            decision = self._decision(self.view(observed))
            if observed.share_reason:
                share = observed.share
                plural = "" if share == 1 else "s"
                most = "" if share is None else f"at most {share} GPU{plural}: "
                reason = f"{decision.reason}; {most}{observed.share_reason}"
                decision = msgspec.structs.replace(decision, reason=reason)
        return Decided(
            at=observed.at,
            slot=observed.slot,
            allocation=decision.allocation,
            reason=decision.reason,
            memo=decision.memo,
        )

    def wish(self, observed: Observed) -> Allocation:
        """What the job would hold if it were alone, by an observation that need not have been
        handled; changes nothing.
        """
        state = self.state
        if state.status is Status.PAUSED or time_is_up(state, observed):
            return Allocation()
        alone = msgspec.structs.replace(observed, share=None)
        return self._decision(self.view(alone)).allocation

    def _decision(self, view: View) -> Decision:
        """A policy that fails must not cost the deadline: on-demand can hold it without one."""
        name = self.state.submitted.policy
        try:
            return decide(self._policy_named(name), view)
        except DuetuneError as error:
            if self._fallback is None:
                raise
            safe = decide(self._policy_named(self._fallback), view)
            reason = f"{name} failed ({error}); {self._fallback} instead: {safe.reason}"
            return Decision(safe.allocation, reason)

    def view(self, observed: Observed) -> View:
        """What the policy sees of an observation: a job that can use no more than its share."""
        state = self.state
        market, forecast = offered(observed, state.submitted)
        job = job_within(job_observed(state, observed), observed.share)
        return View(
            job=job,
            slot=observed.slot,
            progress=min(observed.progress, job.work),
            held=_held_within(observed.held, job.max_gpus),
            market=market,
            forecast=forecast,
            outlook=observed.outlook,
            spent=observed.spent,
            # Plans for another number of GPUs are no use, and may be for more than there are.
            memo=state.memo if state.memo_gpus == job.max_gpus else (),
            seen=seen_by(state.submitted, state.watched, observed.slot, market),
        )

    def request(self, at: float, *, room: Room | None = None) -> Requested | None:
        """What to ask of the fleet now, to be written down first."""
        return requested(self.state, at, room=room)

    def end(self, at: float) -> Ended | None:
        """The end, once the job is stopping and its last node is gone and billed."""
        state = self.state
        if state.ending is None or any(node.state.alive for node in state.nodes.values()):
            return None
        finished = state.ending.status is Status.SUCCEEDED
        finished_at = (state.progress_at or at) if finished else None
        return Ended(
            at=at,
            status=state.ending.status,
            reason=state.ending.reason,
            cost=state.spent,
            value=self._value(finished_at),
            finished_at=finished_at,
            output=state.progress.output if finished else "",
        )

    def validate(self) -> None:
        """What must hold after every event; on in tests."""
        state = self.state
        names = tuple(self._story)
        if state.status.final and any(node.state.alive for node in state.nodes.values()):
            raise Bug(f"job {self.stream} is over and holds nodes", names)
        if (state.status is Status.STOPPING) != (
            state.ending is not None and not state.status.final
        ):
            raise Bug(f"job {self.stream}: {state.status} with ending {state.ending}", names)
        if not set(state.releasing) <= set(state.nodes):
            raise Bug(f"job {self.stream} releases nodes it never had", names)
        if state.wanted.total > state.job.max_gpus:
            raise Bug(f"job {self.stream} wants {state.wanted}", names)

    @property
    def _limited(self) -> bool:
        state = self.state
        return state.job.budget is not None or state.submitted.job.budget is not None

    def _value(self, finished_at: float | None) -> float:
        if finished_at is None:
            return 0.0
        return value_of_finishing(self.state.job, self.state.slot_at(finished_at))


def offered(observed: Observed, submitted: Submitted) -> tuple[Slot, Forecast]:
    """The market as far as this job can use it: spot above its highest price is not there."""
    highest = highest_price(submitted)
    market = observed.market
    if market.spot_price > highest:
        market = msgspec.structs.replace(market, available=0)
    price = np.array(observed.forecast_price, dtype=np.float64)
    available = np.array(observed.forecast_available, dtype=np.int64)
    available[price > highest] = 0
    return market, Forecast(spot_price=price, available=available)


def job_within(job: Job, share: int | None) -> Job:
    """The job with at most ``share`` GPUs; as it is if it cannot run on so few."""
    if share is None or not job.min_gpus <= share < job.max_gpus:
        return job
    return msgspec.structs.replace(job, throughput=job.throughput[: share + 1])


def _held_within(held: Allocation, most: int) -> Allocation:
    """What could be kept of it: spot first, which is the cheaper."""
    if held.total <= most:
        return held
    spot = min(held.spot, most)
    return Allocation(spot=spot, on_demand=most - spot)


def _after_refusal(state: JobState, market: Slot, at: float) -> Slot:
    """What the fleet has just refused is not for sale in this slot, whatever the feed says."""
    if state.refused_in != state.slot_at(at):
        return market
    available = min(market.available, len(state.alive(NodeKind.SPOT)))
    return msgspec.structs.replace(market, available=available)

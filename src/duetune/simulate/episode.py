"""One job on one market, slot by slot, with a reason for every decision.

The engine is the same as in the live controller. An episode feeds it ``Submitted``, ``Observed``,
``Decided``, ``Reported`` and ``Ended``, and ``Episode.tick`` has the verbs of ``Controller.tick``.
The world is simulated: the clock counts slots, the market is a trace, and the fleet grants every
decision at once and in full. GPUs held, progress and costs reach the engine in ``Observed``. Nodes
are not simulated: they only cover the time between a request to a fleet and its answer, which is
zero here. They would change no decision and make an episode several times slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.decision import Allocation
from duetune.core.events import Observed, Recorded, Reported, Submitted
from duetune.core.fleet import Task
from duetune.core.ledger import Entry, Outcome
from duetune.core.physics import job_physics, step
from duetune.core.progress import Phase, Progress
from duetune.engine.consultation import horizon
from duetune.engine.engine import Engine
from duetune.errors import Bug
from duetune.market.forecast.forecast_source import ForecastKind, ForecastSource
from duetune.market.forecast.simple import outlook_at, past_before

if TYPE_CHECKING:
    from duetune.core.decision import Forecast
    from duetune.core.events import Decided, Event
    from duetune.core.job import Job
    from duetune.core.market import MarketTrace, Slot
    from duetune.core.physics import SlotStep
    from duetune.core.ports import Forecaster, Policy

LAST_VALUE = ForecastSource(kind=ForecastKind.LAST)


def simulate(
    job: Job,
    trace: MarketTrace,
    policy: Policy,
    source: ForecastSource | Forecaster = LAST_VALUE,
    *,
    start: int = 0,
) -> Outcome:
    """Run ``job`` from trace slot ``start`` until it finishes or its hard deadline passes.

    Returns the outcome with one entry per slot. A forecaster object must have observed the slots
    before ``start`` already if it is to know them; a ``ForecastSource`` does this itself.
    """
    return Episode(job, trace, policy, source, start=start).run()


class Episode:
    """A job in a simulated world. ``run`` plays it to its end; ``story`` is then its journal."""

    def __init__(
        self,
        job: Job,
        trace: MarketTrace,
        policy: Policy,
        source: ForecastSource | Forecaster = LAST_VALUE,
        *,
        start: int = 0,
    ) -> None:
        trace.window(start, job.hard_deadline)  # rejects a trace that is too short before any work
        self.job, self.policy, self._trace, self._start = job, policy, trace, start
        self._forecaster = (
            source.forecaster(trace, start) if isinstance(source, ForecastSource) else source
        )
        self._horizon = horizon(policy)
        self._physics = job_physics(job)
        self._held, self._progress, self._spent = Allocation(), 0.0, 0.0
        self._entries: list[Entry] = []
        self._events: list[Event] = []
        # No fallback: a failing policy is the caller's own, so its error must reach the caller.
        self.engine = Engine("episode", lambda _: policy, fallback=None)
        self._happened(
            Submitted(
                at=0.0,
                spec="",
                job=job,
                task=Task(folder=""),
                policy=policy.name,
                origin=0.0,
                slot_s=3600 * trace.slot_hours,
                outlook=outlook_at(trace, start),
                past=past_before(trace, start),
            )
        )

    @property
    def story(self) -> tuple[Recorded, ...]:
        """Return all events so far in the form of a live job's journal."""
        return tuple(Recorded(place, event) for place, event in enumerate(self._events, 1))

    def run(self) -> Outcome:
        """Play all remaining slots and return the outcome."""
        state = self.engine.state
        while state.ending is None and len(self._entries) < self.job.hard_deadline:
            self.tick()
        return self._outcome()

    def tick(self) -> None:
        """Play one slot, with the verbs of ``Controller.tick`` in the same order."""
        market = self._observe()
        forecast = self._forecast(market)
        observed = self._share(market, forecast)
        decided = self._decide(observed)
        self._write(decided)
        did = self._act(market, decided)
        self._account(market, decided, did)
        self._learn()

    @property
    def _slot(self) -> int:
        """Return the number of the slot that is played next, counted from 1."""
        return len(self._entries) + 1

    def _observe(self) -> Slot:
        """Return the market of the slot."""
        return self._trace.slot(self._start + self._slot - 1)

    def _forecast(self, market: Slot) -> Forecast:
        """Show the market to the forecaster and return its forecast."""
        self._forecaster.observe(market)
        return self._forecaster.forecast(self._horizon)

    def _share(self, market: Slot, forecast: Forecast) -> Observed:
        """Return what the policy is shown. A single job may have all available GPUs."""
        return self._observed(
            market, tuple(forecast.spot_price.tolist()), tuple(forecast.available.tolist())
        )

    def _observed(
        self, market: Slot, prices: tuple[float, ...] = (), available: tuple[int, ...] = ()
    ) -> Observed:
        state = self.engine.state
        return Observed(
            at=state.moment(self._slot - 1),
            slot=self._slot,
            progress=self._progress,
            held=self._held,
            market=market,
            forecast_price=prices,
            forecast_available=available,
            spent=self._spent,
            outlook=state.submitted.outlook,
        )

    def _decide(self, observed: Observed) -> Decided:
        """Tell the engine what was observed and return its decision."""
        self._happened(observed)
        decided = self.engine.decide(observed)
        if decided is None:
            raise Bug(f"the engine is stopping, but slot {observed.slot} of its episode is played")
        return decided

    def _write(self, decided: Decided) -> None:
        """Record the decision; the journal is a list in memory."""
        self._happened(decided)

    def _act(self, market: Slot, decided: Decided) -> SlotStep:
        """Grant the decision and run the training to the end of the slot."""
        now = decided.allocation
        return step(
            self._physics,
            self._progress,
            self._held.spot,
            self._held.on_demand,
            now.spot,
            now.on_demand,
            market.spot_price,
            market.available,
            market.on_demand_price,
        )

    def _account(self, market: Slot, decided: Decided, did: SlotStep) -> None:
        """Record charge and progress; tell the engine when the work is finished."""
        entry = Entry(
            slot=decided.slot,
            spot_price=market.spot_price,
            available=market.available,
            on_demand_price=market.on_demand_price,
            allocation=decided.allocation,
            preempted=max(0, self._held.spot - market.available),
            efficiency=did.efficiency,
            work=did.work,
            progress=did.progress,
            charge=did.charge,
            reason=decided.reason,
        )
        self._held, self._progress = decided.allocation, did.progress
        self._spent += did.charge
        self._entries.append(entry)
        if did.done:
            # The middle of the slot: the physics has no finer time.
            state = self.engine.state
            at = state.moment(entry.slot) - state.submitted.slot_s / 2
            self._happened(Reported(at, progress=Progress(phase=Phase.FINISHED)))

    def _learn(self) -> None:
        """Do nothing: a tournament learns from the outcomes of its episodes."""

    def _outcome(self) -> Outcome:
        """End the job in the engine and return the outcome."""
        state = self.engine.state
        if state.ending is None:
            # An observation of the slot after the last one shows the passed hard deadline.
            self._happened(self._observed(self._trace.slot(self._start + self._slot - 2)))
        ended = self.engine.end(state.moment(len(self._entries)))
        if ended is None:
            raise Bug("the episode is over, but the engine does not end the job")
        self._happened(msgspec.structs.replace(ended, cost=self._spent))
        finished = None if ended.finished_at is None else len(self._entries)
        return Outcome(
            policy=self.policy.name,
            finished=finished,
            on_time=finished is not None and finished <= self.job.deadline,
            progress=self._progress,
            cost=self._spent,
            value=ended.value,
            utility=ended.value - self._spent,
            entries=tuple(self._entries),
        )

    def _happened(self, event: Event) -> None:
        """Apply an event to the engine and keep it; every event passes through here."""
        self.engine.handle(event)
        self._events.append(event)

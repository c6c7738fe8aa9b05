"""What can be plugged in: two verbs each. Conformance suites are in ``duetune.testing``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from duetune.core.decision import Decision, Forecast, View
    from duetune.core.events import Event, Recorded
    from duetune.core.fleet import Command, FleetReport, MarketReport
    from duetune.core.market import MarketTrace, Slot
    from duetune.core.planning import JobView, Plan, Stock


@runtime_checkable
class Policy(Protocol):
    """A value without clock, input or output; called once at the start of every slot."""

    @property
    def name(self) -> str: ...

    def decide(self, view: View) -> Decision: ...


@runtime_checkable
class Planner(Protocol):
    """Shares a finite stock of GPUs among jobs: called in every round with all of them, in the
    order in which they came. A value, as a policy is: what it knows is in the views. One that has
    ``as_submitted`` set serves a job with the configuration that it came with, where nothing is
    known by which to choose another.
    """

    @property
    def name(self) -> str: ...

    def plan(self, views: Sequence[JobView], stock: Stock) -> Plan: ...


@runtime_checkable
class Forecaster(Protocol):
    """``observe`` is called once per slot with the market as it is, then ``forecast``."""

    def observe(self, slot: Slot) -> None: ...

    def forecast(self, horizon: int) -> Forecast: ...


@runtime_checkable
class Selector(Protocol):
    """``choose`` before a job, ``learn`` after it, with every policy's (counterfactual) utility."""

    def choose(self, random: np.random.Generator) -> int: ...

    def learn(self, utilities: NDArray[np.float64]) -> None: ...


@runtime_checkable
class Fleet(Protocol):
    """Where nodes come from. Both verbs return at once.

    ``apply`` asks, ``observe`` tells what has become of it; a refused or lost node is a state in
    the report, not an exception, and every node that has ended says why (``NodeEnd``): a job with
    its own command ends by that. A call that fails altogether raises ``FleetError``: whether it
    had an effect is then unknown, and applying the same commands again is always safe.
    """

    def apply(self, commands: Sequence[Command]) -> None: ...

    def observe(self, job: str) -> FleetReport: ...


@runtime_checkable
class MarketFeed(Protocol):
    """``now`` is the present slot; ``history`` the slots before it, oldest first, None if none."""

    def now(self) -> MarketReport: ...

    def history(self, slots: int) -> MarketTrace | None: ...


@runtime_checkable
class Clock(Protocol):
    """The only source of time, in seconds since the epoch."""

    def now(self) -> float: ...

    def wait_until(self, moment: float) -> None: ...


@runtime_checkable
class Journal(Protocol):
    """What happened, one stream of events per job, append-only.

    ``append`` succeeds only if the stream has exactly ``expected`` events, else it raises
    ``StaleController`` and writes nothing; all events of one call are written, or none. Returns
    the new length. ``read`` gives the events from position ``after`` on, in order.
    """

    def append(self, stream: str, events: Sequence[Event], *, expected: int) -> int: ...

    def read(self, stream: str, *, after: int = 0) -> list[Recorded]: ...

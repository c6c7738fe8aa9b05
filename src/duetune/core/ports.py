"""Ports: the protocols that plug-ins implement, with at most two methods each.

Conformance suites for them are in ``duetune.testing``; ``duetune.registry`` loads plug-ins.
"""

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
    """Decides how many GPUs a job holds. A policy is a value: it uses no clock, input or output."""

    @property
    def name(self) -> str:
        """The name under which the registry finds the policy."""

    def decide(self, view: View) -> Decision:
        """Return the GPUs to hold in this slot; called once at the start of every slot."""


@runtime_checkable
class Planner(Protocol):
    """Shares a finite stock of GPUs among jobs. A planner is a value, like a policy.

    A planner with an attribute ``as_submitted`` that is true runs a job with the configuration it
    was submitted with, where nothing is known about other configurations.
    """

    @property
    def name(self) -> str:
        """The name under which the registry finds the planner."""

    def plan(self, views: Sequence[JobView], stock: Stock) -> Plan:
        """Return the shape of each job; called in every round with all jobs, oldest first."""


@runtime_checkable
class Forecaster(Protocol):
    """Forecasts prices and availability from the slots that it was shown."""

    def observe(self, slot: Slot) -> None:
        """Take in the market of the present slot; called once per slot, before ``forecast``."""

    def forecast(self, horizon: int) -> Forecast:
        """Return the expected market of the next ``horizon`` slots."""


@runtime_checkable
class Selector(Protocol):
    """Learns which policy of a pool to use."""

    def choose(self, random: np.random.Generator) -> int:
        """Return the number of the policy for the next job; called before the job."""

    def learn(self, utilities: NDArray[np.float64]) -> None:
        """Take in the utility that each policy had or would have had; called after the job."""


@runtime_checkable
class Fleet(Protocol):
    """Launches and releases nodes. Both methods return at once.

    A refused or lost node is a state in the report, not an exception. Every node that has ended
    says why (``NodeEnd``); a job with its own command ends by that. A call that fails raises
    ``FleetError``. It is then unknown whether the call had an effect.
    """

    def apply(self, commands: Sequence[Command]) -> None:
        """Start to carry out ``commands``; applying the same commands again is safe."""

    def observe(self, job: str) -> FleetReport:
        """Return all nodes that the job ever had; called in every turn."""


@runtime_checkable
class MarketFeed(Protocol):
    """Reports the prices and availability of a market."""

    def now(self) -> MarketReport:
        """Return the present slot."""

    def history(self, slots: int) -> MarketTrace | None:
        """Return up to ``slots`` slots before the present one, oldest first; None if none."""


@runtime_checkable
class Clock(Protocol):
    """The only source of time, in seconds since the epoch."""

    def now(self) -> float:
        """Return the present moment."""

    def wait_until(self, moment: float) -> None:
        """Block until ``moment``."""


@runtime_checkable
class Journal(Protocol):
    """An append-only log with one stream of events per job."""

    def append(self, stream: str, events: Sequence[Event], *, expected: int) -> int:
        """Append ``events`` and return the new length; all events are written, or none.

        If the stream does not have exactly ``expected`` events, ``StaleController`` is raised and
        nothing is written.
        """

    def read(self, stream: str, *, after: int = 0) -> list[Recorded]:
        """Return the events behind position ``after``, in order."""

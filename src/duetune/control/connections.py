"""What the controller is connected to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.core.events import Learned, Recorded, UserRequest
    from duetune.core.ports import Clock, Fleet, Journal, MarketFeed
    from duetune.core.progress import Progress


class Reports(Protocol):
    """``read`` is the latest report of a job's workers and when it was made, by the fleet's clock;
    ``hazard`` tells the workers how long nodes lived in all, in the fleet's seconds, and how many
    were lost.
    """

    def read(self, job: str) -> tuple[Progress, float] | None: ...

    def hazard(self, job: str, lived_s: float, losses: int) -> None: ...


class RequestInbox(Protocol):
    """What other processes ask for. A wish is pending until the journal has it; ``taken`` is for
    those that it will never have.
    """

    def pending(self) -> Sequence[tuple[int, str, UserRequest]]: ...

    def taken(self, ids: Sequence[int]) -> None: ...


class Learning(Protocol):
    """Called with the whole story of a job that is over, again if a crash came between."""

    def learn(self, job: str, story: Sequence[Recorded]) -> Learned: ...


class World(NamedTuple):
    """Outside. ``speed`` is how many seconds of ``clock`` pass in one on the wall; ``revive`` is
    called when the fleet does not answer.
    """

    fleet: Fleet
    feed: MarketFeed
    clock: Clock
    reports: Reports
    speed: float = 1.0
    revive: Callable[[], None] = lambda: None


class Books(NamedTuple):
    """What is written down. ``active`` names the jobs that are not over, or of which nothing was
    learnt yet.
    """

    journal: Journal
    wishes: RequestInbox
    active: Callable[[], Sequence[str]]

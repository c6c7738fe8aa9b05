"""Which node runs the coordinator of a job: an election over a list to which anyone may append.

Every node of a job has a candidate. A candidate that cannot reach the newest coordinator starts one
and takes the next *seat*: a number that only one can take, with the address of its coordinator. A
coordinator whose seat is no longer the newest ends, and so do its connections. Members always dial
the newest one. Two coordinators may serve at the same time for about a second, or for as long as
one of them cannot read the list. That does no harm to the result: a new coordinator knows nothing
(``membership``), and only one leader can publish checkpoints (``fence``).
"""

from __future__ import annotations

import logging
import math
import re
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from duetune.training.authentication import dial

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.storage import Storage
    from duetune.training.group_times import SeatTimes

_log = logging.getLogger(__name__)

_NUMBER = re.compile(r"\d{6,15}")


class Seat(NamedTuple):
    """One entry of the list: its number, from 1 on, and the address of a coordinator."""

    number: int
    address: str


class SeatList(Protocol):
    """The list of a job's seats, which all its nodes share. Nothing is ever removed from it."""

    def newest(self) -> Seat | None:
        """Return the seat with the greatest number; None if there is none."""

    def take(self, number: int, address: str) -> bool:
        """Add a seat and return true; return false if the number is taken."""


class Served(Protocol):
    """A running coordinator."""

    @property
    def address(self) -> str:
        """Return the address at which members reach it."""

    def close(self) -> None:
        """End it and its connections."""


class CoordinatorSeat:
    """One node's candidate. Call ``tick`` every ``times.look_s``.

    - ``start``: starts a coordinator on this node.
    - ``reach``: returns whether the coordinator at an address answers.
    """

    def __init__(
        self,
        seats: SeatList,
        start: Callable[[], Served],
        reach: Callable[[str], bool],
        times: SeatTimes,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seats = seats
        self._start = start
        self._reach = reach
        self._times = times
        self._now = now
        self._own: Seat | None = None
        self._served: Served | None = None
        self._failing: tuple[Seat, float] | None = None
        self._failures = 0

    @property
    def serving(self) -> bool:
        """Return whether this node runs a coordinator."""
        return self._served is not None

    def tick(self) -> str | None:
        """Do what is due and return the address that members should dial; None if unknown.

        ``OSError`` is raised if the list cannot be read. A coordinator that runs continues then.
        """
        newest = self._seats.newest()
        if self._own is not None:
            if newest is not None and newest.number < self._own.number:
                newest = self._own  # An old view of the list, as network file systems give.
            elif newest != self._own:
                self.close()
        if newest is None:
            return self._stand(1)
        if self._reach(newest.address):
            self._failing = None
        elif self._given_up(newest):
            return self._stand(newest.number + 1)
        return newest.address

    def close(self) -> None:
        """End the coordinator if this node runs one. Called when the node leaves the job."""
        served, self._served, self._own = self._served, None, None
        if served is not None:
            served.close()

    def _given_up(self, seat: Seat) -> bool:
        """Return whether the holder of ``seat`` has failed often and long enough."""
        now = self._now()
        if self._failing is None or self._failing[0] != seat:
            self._failing, self._failures = (seat, now), 0
        self._failures += 1
        long = now - self._failing[1] >= self._times.over_s
        return long and self._failures >= self._times.failures

    def _stand(self, number: int) -> str | None:
        """Start a coordinator and take a seat for it; close it if another was first."""
        self.close()
        self._failing = None
        served = self._start()
        seat = Seat(number, served.address)
        won = False
        try:
            # If the answer to ``take`` was lost, a second try finds its own seat.
            won = self._seats.take(*seat) or self._seats.newest() == seat
        finally:
            if not won:
                served.close()
        if not won:
            newest = self._seats.newest()
            return newest.address if newest is not None else None
        _log.warning("this node runs the coordinator now: seat %d, %s", *seat)
        self._own, self._served = seat, served
        return seat.address


class StorageSeats:
    """The list as files of a storage that all nodes share: ``000001`` holds the first address.

    A look asks only for the number after the newest one that is known, because listing a bucket
    costs more. ``fresh_s``: what was found is not asked for again for so many seconds.
    """

    def __init__(self, storage: Storage, *, fresh_s: float = 0.0) -> None:
        self._storage = storage
        self._fresh_s = fresh_s
        self._newest: Seat | None = None
        self._looked_at = -math.inf

    def newest(self) -> Seat | None:
        """Return the seat with the greatest number; None if there is none."""
        if self._newest is None:
            numbers = [int(name) for name in self._storage.sizes() if _NUMBER.fullmatch(name)]
            self._newest = self._seat(max(numbers)) if numbers else None
            self._looked_at = time.monotonic()
        elif time.monotonic() - self._looked_at >= self._fresh_s:
            while (found := self._seat(self._newest.number + 1)) is not None:
                self._newest = found
            self._looked_at = time.monotonic()
        return self._newest

    def take(self, number: int, address: str) -> bool:
        """Add a seat and return true; return false if the number is taken."""
        self._looked_at = -math.inf
        return self._storage.create(f"{number:06d}", address.encode())

    def _seat(self, number: int) -> Seat | None:
        content = self._storage.read(f"{number:06d}")
        return None if content is None else Seat(number, content.decode().strip())


def answers(address: str, secret: bytes, timeout_s: float) -> bool:
    """Return whether a process that knows the job's secret answers at ``address``."""
    try:
        dial(address, secret, timeout_s).close()
    except OSError:
        return False
    return True

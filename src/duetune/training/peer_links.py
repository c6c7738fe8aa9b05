"""One process's connections to its counterparts in the other members of the group.

A member of several processes has one set of connections per process: each sums and copies its own
shard. Any failure raises ``GroupBroken`` and closes the connections at once, so that nobody waits
for this process. Who the members are is decided in ``group`` and ``membership``.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from duetune.training.collective import LinkedCollective, NcclCollective
from duetune.training.group_store import GroupStore
from duetune.training.group_times import GroupSettings
from duetune.training.membership import GroupBroken
from duetune.training.transfer import MemberDoor, TransferFailed, alive, fetch_state

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from duetune.training.collective import Collective
    from duetune.training.membership import Arrangement, Member
    from duetune.training.transfer import State

_T = TypeVar("_T")


class GroupPlace(NamedTuple):
    """Where a group meets.

    - ``coordinator``: returns the coordinator's present address; ``OSError`` if there is none.
    - ``secret``: the job's secret, which every door of the group asks for.
    """

    coordinator: Callable[[], str]
    secret: bytes


class PeerLinks:
    """One process's door and its connections to the same process of the other members.

    - ``restore``: loads a checkpoint of that name into ``state``; ``OSError`` if it is gone.
    - ``touched``: called whenever the main thread is active.
    - ``number``: the place of this process among those of its member.

    Only ``touch`` may be called from any thread.
    """

    def __init__(
        self,
        place: GroupPlace,
        state: State,
        *,
        restore: Callable[[str], None],
        touched: Callable[[], None] = lambda: None,
        settings: GroupSettings | None = None,
        number: int = 0,
    ) -> None:
        self.settings = settings or GroupSettings()
        self._place = place
        self._state = state
        self._restore = restore
        self._touched = touched
        self._number = number
        self._alive_at = time.monotonic()
        self._door = MemberDoor(self.settings.interface, place.secret, state, self.active)
        self._collective: Collective | None = None
        self.arrangement: Arrangement | None = None

    @property
    def address(self) -> str:
        """Return the address of this process's door."""
        return self._door.address

    def enter(self, arrangement: Arrangement) -> None:
        """Connect to the other members, and copy the state if this member is behind."""
        if arrangement.connect:
            self.drop()
            if arrangement.world > 1:
                self._collective = self._watched(lambda: self._connected(arrangement), arrangement)
        if arrangement.source is not None:
            self._take_state(arrangement.source, arrangement)
        self.arrangement = arrangement

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return every member's ``part``, in the order of ranks."""
        return self._together(lambda collective: collective.gather(part), [part])

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        """Replace ``part`` by the sum over all members and return it."""
        self._together(lambda collective: collective.add_up(part), None)
        return part

    def touch(self) -> None:
        """Record that the main thread is active."""
        self._alive_at = time.monotonic()
        self._touched()

    def active(self) -> bool:
        """Return whether the main thread was active lately."""
        return time.monotonic() - self._alive_at < self.settings.hang_s

    def drop(self) -> None:
        """Close the connections, in a thread because closing may wait for a running operation."""
        collective, self._collective, self.arrangement = self._collective, None, None
        if collective is not None:
            threading.Thread(target=collective.abort, name="abandon", daemon=True).start()

    def close(self) -> None:
        """Close the connections and the door."""
        self.drop()
        self._door.close()

    def _connected(self, arrangement: Arrangement) -> Collective:
        """Connect to the other members; raise if one is missing after ``connect_s``."""
        rank, limit_s = arrangement.rank, self.settings.operation_s
        addresses = [member.door(self._number) for member in arrangement.members]
        # NCCL cannot encrypt, and all members must choose the same.
        nccl = arrangement.accelerators_differ and not any(map(_encrypted, addresses))
        links = self._door.links(
            arrangement.group, rank, addresses, self.settings.connect_s, first_only=nccl
        )
        if nccl:
            return NcclCollective(GroupStore(links, limit_s), rank, arrangement.world, limit_s)
        return LinkedCollective(rank, links, limit_s)

    def _together(self, work: Callable[[Collective], _T], alone: _T) -> _T:
        collective, arrangement = self._collective, self.arrangement
        if arrangement is not None and arrangement.world == 1:
            return alone
        if arrangement is None or collective is None:
            raise GroupBroken("not connected")
        return self._watched(lambda: work(collective), arrangement)

    def _take_state(self, source: Member, arrangement: Arrangement) -> None:
        """Take the group's state: from a member that has it, or from the checkpoint it names."""
        if source.fresh and source.restored:
            self._watched(lambda: self._restore(source.restored), arrangement)
            return
        address, secret = source.door(self._number), self._place.secret
        arrays, document = self._watched(
            lambda: fetch_state(address, secret, arrangement.step), arrangement
        )
        with self._state.lock:
            self._state.load(arrays, document)

    def _watched(self, work: Callable[[], _T], arrangement: Arrangement) -> _T:
        """Run ``work`` in a thread and ping the others; a dead or stopped one breaks the round."""
        call = in_background(work)
        missed = dict.fromkeys((member.id for member in arrangement.members), 0)
        next_ping = time.monotonic() + self.settings.patience_s
        try:
            while not wait([call], 0.05).done:
                self.touch()
                if time.monotonic() < next_ping:
                    continue
                for rank, member in enumerate(arrangement.members):
                    if rank != arrangement.rank:
                        self._ping(member, missed)
                next_ping = time.monotonic() + self.settings.ping_pause_s
            return call.result()
        except (RuntimeError, OSError, TransferFailed, GroupBroken) as error:
            self.drop()
            raise GroupBroken(_short_reason(error)) from error

    def _ping(self, member: Member, missed: dict[str, int]) -> None:
        address = member.door(self._number)
        answer = alive(address, self._place.secret, self.settings.ping_s)
        missed[member.id] = 0 if answer else missed[member.id] + 1
        if answer is False or missed[member.id] >= self.settings.missed_pings:
            raise GroupBroken(f"{member.id} does not answer")


def in_background(work: Callable[[], _T]) -> Future[_T]:
    """Run ``work`` in its own thread; the caller may stop waiting for it."""
    call: Future[_T] = Future()

    def run() -> None:
        try:
            call.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised again by ``result``
            call.set_exception(error)

    # A pool would wait for its threads when the process exits; a daemon thread does not.
    threading.Thread(target=run, name="group-call", daemon=True).start()
    return call


def _encrypted(address: str) -> bool:
    return address.startswith("tls:")


def _short_reason(error: BaseException) -> str:
    if "closed by peer" in str(error) or "reset by peer" in str(error):
        return "a member has closed its connection"
    return " ".join(str(error).split())[:160] or type(error).__name__

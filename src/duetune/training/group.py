"""The elastic group: members may join and leave between steps, and all share one state.

``form`` starts every step. It asks the coordinator for the members, reconnects if they have
changed, and takes the group's state if this member has another one. Any failure raises
``GroupBroken`` and closes the connections at once, so that no other member waits for this one. The
step is then repeated with the remaining members.
"""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec

from duetune.training.collective import LinkedCollective, NcclCollective, device_name
from duetune.training.coordinator_client import CoordinatorClient
from duetune.training.membership import Arrangement, Member, arrange
from duetune.training.transfer import MemberDoor, TransferFailed, alive, fetch_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

    from duetune.training.collective import Collective
    from duetune.training.transfer import State

_T = TypeVar("_T")

BIND = "DUETUNE_BIND"
"""Environment variable: the address of the network interface for all traffic of the group."""


class GroupSettings(msgspec.Struct, frozen=True):
    """The network interface of a group (``bind``) and its times in seconds.

    - ``heartbeat_s``: time between two heartbeats to the coordinator.

    - ``connect_s``: limit for connecting to all members.
    - ``operation_s``: limit for a sum or gather; dead peers are noticed much earlier, by pings.
    - ``hang_s``: a member whose main thread is inactive for this long counts as dead.
    - ``patience_s``: how long an operation runs before the other members are pinged.
    - ``ping_s``, ``ping_pause_s``, ``missed_pings``: timeout of a ping, time between pings, and the
      number of unanswered pings after which a member counts as dead.
    """

    bind: str = "127.0.0.1"
    heartbeat_s: float = 0.1
    connect_s: float = 15.0
    operation_s: float = 600.0
    hang_s: float = 300.0
    patience_s: float = 1.0
    ping_s: float = 0.5
    ping_pause_s: float = 0.25
    missed_pings: int = 3

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> GroupSettings:
        """Return the defaults with the network interface of ``DUETUNE_BIND``."""
        return cls(bind=environ.get(BIND) or "127.0.0.1")


class GroupPlace(NamedTuple):
    """Where a group meets.

    - ``coordinator``: returns the coordinator's present address.
    - ``secret``: the job's secret, which every door of the group asks for.
    - ``folder``: a folder for files through which NCCL's members meet.
    """

    coordinator: Callable[[], str]
    secret: bytes
    folder: Path


class GroupBroken(Exception):
    """This round has failed. The caller forms the group again and repeats the step."""


class Left(Exception):
    """This member was asked to leave while it waited for the others."""


class Group(Protocol):
    """One member's view of its group."""

    def form(self) -> Arrangement:
        """Agree on the members of the next step and connect to them."""

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return every member's ``part``, in the order of ranks."""

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        """Replace ``part`` by the sum over all members and return it."""

    def touch(self) -> None:
        """Record that the main thread is active. Any thread may call this."""

    def hush(self) -> None:
        """Stop the heartbeats. Called before the last step of a member that leaves."""

    def close(self) -> None:
        """Leave the group and close all connections."""


class ElasticGroup:
    """A member of a group with a coordinator. Only ``touch`` may be called from any thread.

    - ``restored``: the checkpoint from which ``state`` was loaded, or "".
    - ``restore``: loads a checkpoint of that name into ``state``; ``OSError`` if it is gone.
    - ``leaving``: checked while waiting for others; ``Left`` is raised once it returns true.
    - ``touched``: called whenever the main thread is active.
    - ``pace``: returns this member's tokens per second, or 0.
    """

    def __init__(
        self,
        place: GroupPlace,
        name: str,
        state: State,
        device: torch.device,
        *,
        restored: str = "",
        restore: Callable[[str], None],
        leaving: Callable[[], bool],
        touched: Callable[[], None] = lambda: None,
        pace: Callable[[], float] = lambda: 0.0,
        settings: GroupSettings | None = None,
    ) -> None:
        self._settings = settings or GroupSettings()
        self._id = f"{name}.{uuid.uuid4().hex[:12]}"
        self._state = state
        self._device = device_name(device)
        self._leaving = leaving
        self._touched = touched
        self._pace = pace
        self._alive_at = time.monotonic()
        self._place = place
        self._restored = restored
        self._restore = restore
        self._door = MemberDoor(self._settings.bind, place.secret, state, self._active)
        self._coordinator = CoordinatorClient(
            place.coordinator, place.secret, self._id, self._active, self._settings.heartbeat_s
        )
        self._formations = 0
        self._fresh = True
        self._arrangement: Arrangement | None = None
        self._collective: Collective | None = None

    def form(self) -> Arrangement:
        """Agree on the members, connect to them, and copy the state if this member is behind."""
        own = Member(
            id=self._id,
            address=self._door.address,
            step=self._state.step,
            device=self._device,
            formations=self._formations,
            group=self._arrangement.group if self._arrangement is not None else "",
            fresh=self._fresh,
            restored=self._restored if self._fresh else "",
            pace=self._pace(),
        )
        members = self._unless_leaving(lambda: self._coordinator.quorum(own))
        arrangement = arrange(members, self._id)
        if arrangement.connect:
            self._drop()
            self._formations += 1
            if arrangement.world > 1:
                self._collective = self._watched(lambda: self._connected(arrangement), arrangement)
        if arrangement.source is not None:
            self._take_state(arrangement.source, arrangement)
        self._arrangement = arrangement
        self._fresh = False
        return arrangement

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

    def hush(self) -> None:
        """Stop the heartbeats, so that the others need not wait for them to time out."""
        self._coordinator.hush()

    def close(self) -> None:
        """Leave the group and close all connections."""
        self._coordinator.close()
        self._drop()
        self._door.close()

    def _connected(self, arrangement: Arrangement) -> Collective:
        """Connect to the other members; raise if one is missing after ``connect_s``."""
        rank, limit_s = arrangement.rank, self._settings.operation_s
        if arrangement.accelerators_differ:
            file = self._place.folder / arrangement.group
            return NcclCollective(file, rank, arrangement.world, limit_s)
        addresses = [member.address for member in arrangement.members]
        connect_s = self._settings.connect_s
        links = self._door.links(arrangement.group, rank, addresses, connect_s)
        return LinkedCollective(rank, links, limit_s)

    def _together(self, work: Callable[[Collective], _T], alone: _T) -> _T:
        collective, arrangement = self._collective, self._arrangement
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
        secret = self._place.secret
        arrays, document = self._watched(
            lambda: fetch_state(source.address, secret, arrangement.step), arrangement
        )
        with self._state.lock:
            self._state.load(arrays, document)

    def _active(self) -> bool:
        return time.monotonic() - self._alive_at < self._settings.hang_s

    def _unless_leaving(self, work: Callable[[], _T]) -> _T:
        """Run ``work`` in a thread; raise ``Left`` if this member is asked to leave meanwhile."""
        call, since = _in_background(work), time.monotonic()
        while not wait([call], 0.05 if time.monotonic() - since < 1 else 0.2).done:
            self.touch()
            if self._leaving() and time.monotonic() - since > self._settings.patience_s:
                raise Left
        return call.result()

    def _watched(self, work: Callable[[], _T], arrangement: Arrangement) -> _T:
        """Run ``work`` in a thread and ping the others; a dead or stopped one breaks the round."""
        call = _in_background(work)
        missed = dict.fromkeys((member.id for member in arrangement.members), 0)
        next_ping = time.monotonic() + self._settings.patience_s
        try:
            while not wait([call], 0.05).done:
                self.touch()
                if time.monotonic() < next_ping:
                    continue
                for member in arrangement.members:
                    if member.id != self._id:
                        self._ping(member, missed)
                next_ping = time.monotonic() + self._settings.ping_pause_s
            return call.result()
        except (RuntimeError, OSError, TransferFailed, GroupBroken) as error:
            self._drop()
            raise GroupBroken(_short_reason(error)) from error

    def _ping(self, member: Member, missed: dict[str, int]) -> None:
        answer = alive(member.address, self._place.secret, self._settings.ping_s)
        missed[member.id] = 0 if answer else missed[member.id] + 1
        if answer is False or missed[member.id] >= self._settings.missed_pings:
            raise GroupBroken(f"{member.id} does not answer")

    def _drop(self) -> None:
        """Close the connections, in a thread because closing may wait for a running operation."""
        collective, self._collective, self._arrangement = self._collective, None, None
        if collective is not None:
            threading.Thread(target=collective.abort, name="abandon", daemon=True).start()


class SoloGroup:
    """The group of a job without a coordinator: one member, always alone."""

    def __init__(self, name: str, state: State, touched: Callable[[], None]) -> None:
        self._name = name
        self._state = state
        self._touched = touched
        self._group = ""

    def form(self) -> Arrangement:
        """Return the arrangement with this member alone."""
        own = Member(
            id=self._name, address="", step=self._state.step, group=self._group, fresh=False
        )
        arrangement = arrange([own], self._name)
        self._group = arrangement.group
        return arrangement

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return the only part."""
        return [part]

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        """Return the only part, which is the sum."""
        return part

    def touch(self) -> None:
        """Record that the main thread is active."""
        self._touched()

    def hush(self) -> None:
        """Do nothing: there is no heartbeat."""

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _in_background(work: Callable[[], _T]) -> Future[_T]:
    """Run ``work`` in its own thread, which the caller may stop waiting for."""
    call: Future[_T] = Future()

    def run() -> None:
        try:
            call.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised again by ``result``
            call.set_exception(error)

    # A pool would wait for its threads when the process exits; a daemon thread does not.
    threading.Thread(target=run, name="group-call", daemon=True).start()
    return call


def _short_reason(error: BaseException) -> str:
    if "closed by peer" in str(error) or "reset by peer" in str(error):
        return "a member has closed its connection"
    return " ".join(str(error).split())[:160] or type(error).__name__

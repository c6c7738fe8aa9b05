"""The elastic group: members come and go, those that are there work on one state.

``form`` begins every step. It agrees on the members with the coordinator (torchft's lighthouse),
connects anew if they have changed, and takes over the state of another member if this one is
behind. Whatever fails raises ``GroupBroken``: the connections are dropped at once, so that nobody
waits for this member in vain, and the same step is tried again with whoever is left.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from duetune.training.collective import Rendezvous, connect, device_name
from duetune.training.lighthouse import Lighthouse
from duetune.training.membership import Arrangement, Member, arrange
from duetune.training.transfer import StateServer, TransferFailed, alive, fetch_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from duetune.training.collective import Collective
    from duetune.training.transfer import State

_T = TypeVar("_T")

BIND = "DUETUNE_BIND"
"""The address of the network interface that the group uses, all of it."""


class GroupSettings(msgspec.Struct, frozen=True):
    """``operation_s`` bounds how long members wait for each other; peers that are dead or stopped
    are noticed long before. A member whose main thread does nothing for ``hang_s`` counts as dead.
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
        return cls(bind=environ.get(BIND) or "127.0.0.1")


class GroupBroken(Exception):
    """This round came to nothing; form again and repeat the step."""


class Left(Exception):
    """This member was told to leave while it waited for others."""


class Group(Protocol):
    """``gather`` gives every member's part in the order of ranks; ``add_up`` sums in place."""

    def form(self) -> Arrangement: ...

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]: ...

    def add_up(self, part: torch.Tensor) -> torch.Tensor: ...

    def touch(self) -> None: ...

    def hush(self) -> None: ...

    def close(self) -> None: ...


class ElasticGroup:
    """One member's view. All of it is used from one thread; only ``touch`` may be called by any.

    ``leaving`` is asked while waiting for others: once it holds, ``Left`` is raised.
    """

    def __init__(
        self,
        lighthouse: str,
        name: str,
        state: State,
        device: torch.device,
        *,
        leaving: Callable[[], bool],
        touched: Callable[[], None] = lambda: None,
        settings: GroupSettings | None = None,
    ) -> None:
        self._settings = settings or GroupSettings()
        self._id = f"{name}.{uuid.uuid4().hex[:12]}"
        self._state = state
        self._device = device_name(device)
        self._leaving = leaving
        self._touched = touched
        self._alive_at = time.monotonic()
        self._server = StateServer(self._settings.bind, state, self._lively)
        self._rendezvous = Rendezvous(self._settings.bind)
        self._lighthouse = Lighthouse(
            lighthouse, self._id, self._lively, self._settings.heartbeat_s
        )
        self._formations = 0
        self._fresh = True
        self._arrangement: Arrangement | None = None
        self._collective: Collective | None = None

    def form(self) -> Arrangement:
        own = Member(
            id=self._id,
            address=self._server.address,
            store=self._rendezvous.address,
            step=self._state.step,
            device=self._device,
            formations=self._formations,
            group=self._arrangement.group if self._arrangement is not None else "",
            fresh=self._fresh,
        )
        members = self._patiently(lambda: self._lighthouse.quorum(own))
        arrangement = arrange(members, self._id)
        if arrangement.connect:
            self._drop()
            self._formations += 1
            if arrangement.world > 1:
                self._collective = self._watched(lambda: self._connected(arrangement), arrangement)
        if arrangement.source is not None:
            self._take_over(arrangement)
        self._arrangement = arrangement
        self._fresh = False
        return arrangement

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        return self._together(lambda collective: collective.gather(part), [part])

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        self._together(lambda collective: collective.add_up(part), None)
        return part

    def touch(self) -> None:
        """The main thread is at work."""
        self._alive_at = time.monotonic()
        self._touched()

    def hush(self) -> None:
        """This is the last step here: the others need not wait for the heartbeat to run out."""
        self._lighthouse.hush()

    def close(self) -> None:
        self._lighthouse.hush()
        self._drop()
        self._server.close()

    def _connected(self, arrangement: Arrangement) -> Collective:
        return connect(
            nccl=arrangement.accelerators_differ,
            store=arrangement.members[0].store,
            group=arrangement.group,
            rank=arrangement.rank,
            world=arrangement.world,
            bind=self._settings.bind,
            connect_s=self._settings.connect_s,
            operation_s=self._settings.operation_s,
        )

    def _together(self, work: Callable[[Collective], _T], alone: _T) -> _T:
        collective, arrangement = self._collective, self._arrangement
        if arrangement is not None and arrangement.world == 1:
            return alone
        if arrangement is None or collective is None:
            raise GroupBroken("not connected")
        return self._watched(lambda: work(collective), arrangement)

    def _take_over(self, arrangement: Arrangement) -> None:
        source, step = arrangement.source, arrangement.step
        if source is None:
            return
        arrays, document = self._watched(lambda: fetch_state(source.address, step), arrangement)
        with self._state.lock:
            self._state.load(arrays, document)

    def _lively(self) -> bool:
        return time.monotonic() - self._alive_at < self._settings.hang_s

    def _patiently(self, work: Callable[[], _T]) -> _T:
        """Run what may take long beside the main thread, which stays open to signals."""
        task = _Beside(work)
        since = time.monotonic()
        while not task.done.wait(0.05 if time.monotonic() - since < 1 else 0.2):
            self.touch()
            if self._leaving() and time.monotonic() - since > self._settings.patience_s:
                raise Left
        return task.result()

    def _watched(self, work: Callable[[], _T], arrangement: Arrangement) -> _T:
        """The same while the others must live: who is seen dead or stopped breaks the round."""
        task = _Beside(work)
        missed = dict.fromkeys((member.id for member in arrangement.members), 0)
        next_ping = time.monotonic() + self._settings.patience_s
        try:
            while not task.done.wait(0.05):
                self.touch()
                if time.monotonic() < next_ping:
                    continue
                for member in arrangement.members:
                    if member.id != self._id:
                        self._ping(member, missed)
                next_ping = time.monotonic() + self._settings.ping_pause_s
            return task.result()
        except (RuntimeError, OSError, TransferFailed, GroupBroken) as error:
            self._drop()
            raise GroupBroken(_in_short(error)) from error

    def _ping(self, member: Member, missed: dict[str, int]) -> None:
        answer = alive(member.address, self._settings.ping_s)
        missed[member.id] = 0 if answer else missed[member.id] + 1
        if answer is False or missed[member.id] >= self._settings.missed_pings:
            raise GroupBroken(f"{member.id} does not answer")

    def _drop(self) -> None:
        """Give up the connections. Closing may block on what is under way, so elsewhere."""
        collective, self._collective, self._arrangement = self._collective, None, None
        if collective is not None:
            threading.Thread(target=collective.abort, name="abandon", daemon=True).start()


class SoloGroup:
    """A member without a coordinator: always alone."""

    def __init__(self, name: str, state: State, touched: Callable[[], None]) -> None:
        self._name = name
        self._state = state
        self._touched = touched
        self._group = ""

    def form(self) -> Arrangement:
        own = Member(id=self._name, address="", store="", step=self._state.step, group=self._group)
        arrangement = arrange([own], self._name)
        self._group = arrangement.group
        return arrangement

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        return [part]

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        return part

    def touch(self) -> None:
        self._touched()

    def hush(self) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing is open."""


class _Beside(Generic[_T]):
    """A call in a thread of its own, which may be left to itself."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self.done = threading.Event()
        self._answers: list[_T] = []
        self._error: Exception | None = None
        threading.Thread(target=self._run, args=(work,), name="beside", daemon=True).start()

    def result(self) -> _T:
        if self._error is not None:
            raise self._error
        return self._answers[0]

    def _run(self, work: Callable[[], _T]) -> None:
        try:
            self._answers.append(work())
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error
        finally:
            self.done.set()


def _in_short(error: BaseException) -> str:
    if "closed by peer" in str(error) or "reset by peer" in str(error):
        return "a member has gone"
    return " ".join(str(error).split())[:160] or type(error).__name__

"""The processes of one member that holds its model on several GPUs: how they start, talk and end.

The worker forks the others, one per GPU. The worker has place 0: it talks to the coordinator,
decides, and tells the others what to do (``together``); ``follower`` obeys. All connections are
socket pairs made before the fork, so they have no address that anyone else could reach. If one
process ends, all end. How the model is split is in ``sharding``.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from itertools import combinations
from typing import TYPE_CHECKING, TypeVar

import msgspec
import torch

from duetune.training.authentication import receive, send
from duetune.training.collective import LinkedCollective
from duetune.training.evaluation import EvaluationHistory
from duetune.training.membership import Arrangement, GroupBroken

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_STALL_S = 600.0
_TOUCH_S = 0.2
_END_S = 5.0
_TEXT_BYTES = 128


class Meet(msgspec.Struct, frozen=True, tag="meet"):
    """Exchange the addresses of the doors of all processes."""


class Join(msgspec.Struct, frozen=True, tag="join"):
    """Connect to the same place of the other members, and take their state if told to."""

    arrangement: Arrangement


class Contribute(msgspec.Struct, frozen=True, tag="contribute"):
    """Compute the gradients of this process's part of the step."""

    rank: int
    paces: tuple[float, ...]


class AddUp(msgspec.Struct, frozen=True, tag="add_up"):
    """Sum the gradients of this shard over all members."""


class Update(msgspec.Struct, frozen=True, tag="update"):
    """Do the optimiser step; ``evaluated`` includes the evaluation before it."""

    evaluated: EvaluationHistory | None


class Copy(msgspec.Struct, frozen=True, tag="copy"):
    """Copy this shard of the state into the member's shared memory."""


class Restore(msgspec.Struct, frozen=True, tag="restore"):
    """Load this shard of a checkpoint."""

    checkpoint: str


class Evaluate(msgspec.Struct, frozen=True, tag="evaluate"):
    """Take part in measuring the evaluation loss."""

    rank: int
    paces: tuple[float, ...]


class EvaluateBase(msgspec.Struct, frozen=True, tag="evaluate_base"):
    """Take part in measuring the evaluation loss before training."""


class End(msgspec.Struct, frozen=True, tag="end"):
    """End this process."""


Call = Meet | Join | Contribute | AddUp | Update | Copy | Restore | Evaluate | EvaluateBase | End


class Reply(msgspec.Struct, frozen=True):
    """The answer to a call; ``broken`` says why it failed, if the round can be repeated."""

    broken: str = ""


class Siblings:
    """One process's connections to the other processes of its member.

    - ``place``: the number of this process, 0 for the worker; ``count``: all processes.
    - ``channels``: to the followers, or from a follower to place 0.
    - ``memory``: a file without a name, which all processes map.
    - ``touched``: called while place 0 waits for the others.
    """

    def __init__(
        self,
        place: int = 0,
        links: dict[int, socket.socket] | None = None,
        channels: list[socket.socket] | None = None,
        memory: int = -1,
        children: tuple[int, ...] = (),
    ) -> None:
        self.place = place
        self.count = len(links or {}) + 1
        self.collective = LinkedCollective(place, links or {}, _STALL_S)
        self.touched: Callable[[], None] = lambda: None
        self._channels = channels or []
        self._memory = memory
        self._ending = False
        self._busy = False
        self._watches = [
            threading.Thread(target=self._watch, args=(child,), name="sibling", daemon=True)
            for child in children
        ]
        for watch in self._watches:
            watch.start()

    def together(self, call: Call, work: Callable[[], _T]) -> _T:
        """Do ``work`` here while the followers obey ``call``; return its result once all are done.

        ``GroupBroken`` is raised if it was raised in any of the processes. In a follower this only
        does the work, and so does a call inside another one.
        """
        if self.place or self._busy:
            return work()
        self._busy = True
        try:
            return self._together(call, work)
        except OSError:
            # A sibling has ended. The watch will end this process with the right status.
            time.sleep(2 * _END_S)
            raise
        finally:
            self._busy = False

    def _together(self, call: Call, work: Callable[[], _T]) -> _T:
        for channel in self._channels:
            send(channel, msgspec.json.encode(call))
        broken = ""
        try:
            result = work()
        except GroupBroken as error:
            # The answers must be read all the same: the next call has its own.
            broken = str(error)
        until = time.monotonic() + _STALL_S
        for channel in self._channels:
            while not select.select([channel], [], [], _TOUCH_S)[0]:
                if time.monotonic() > until:
                    raise TimeoutError(f"a process of this member is {_STALL_S:g} s behind")
                self.touched()
            reply = msgspec.json.decode(receive(channel), type=Reply)
            broken = broken or reply.broken
        if broken:
            raise GroupBroken(broken)
        return result

    def obey(self, do: Callable[[Call], None]) -> None:
        """Do what place 0 asks for until it says ``End``. Only followers call this."""
        (channel,) = self._channels
        while not isinstance(call := msgspec.json.decode(receive(channel), type=Call), End):
            broken = ""
            try:
                do(call)
            except GroupBroken as error:
                broken = str(error)
            send(channel, msgspec.json.encode(Reply(broken)))

    def texts(self, own: str) -> tuple[str, ...]:
        """Return a short text of every process, in the order of places; all call this at once."""
        if self.count == 1:
            return (own,)
        content = torch.zeros(_TEXT_BYTES, dtype=torch.uint8)
        content[: len(own)] = torch.tensor(list(own.encode()), dtype=torch.uint8)
        found = self.collective.gather(content)
        return tuple(bytes(text.tolist()).rstrip(b"\0").decode() for text in found)

    def sums(self, *own: float) -> tuple[float, ...]:
        """Return the sums of these numbers over all processes; all call this at once."""
        if self.count == 1:
            return own
        numbers = self.collective.gather(torch.tensor(own, dtype=torch.float64))
        # Added in the order of places, so that all processes of all members get the same bits.
        return tuple(sum(number.tolist()[index] for number in numbers) for index in range(len(own)))

    def shared_memory(self, size: int) -> mmap.mmap:
        """Return the first ``size`` bytes of the memory that all processes of the member share."""
        if os.fstat(self._memory).st_size < size:
            os.ftruncate(self._memory, size)
        return mmap.mmap(self._memory, size)

    def free_memory(self) -> None:
        """Give the shared memory back to the machine; what others still read there becomes 0."""
        size = os.fstat(self._memory).st_size
        if size and hasattr(mmap, "MADV_REMOVE"):
            mmap.mmap(self._memory, size).madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        """Tell the followers to end and wait for them. Called by place 0 when its work is over."""
        self._ending = True
        for channel in self._channels:
            with contextlib.suppress(OSError):
                send(channel, msgspec.json.encode(End()))
        for watch in self._watches:
            watch.join(_END_S)

    def _watch(self, child: int) -> None:
        """End this process if a follower ends too early: without it there is no model."""
        _, status = os.waitpid(child, 0)
        if self._ending:
            return
        code = os.waitstatus_to_exitcode(status)
        if code > 0:
            # What went wrong there mostly goes wrong here too, and is reported first.
            time.sleep(_END_S)
        _log.error("a process of this member has ended with code %d; the member ends too", code)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if code == -signal.SIGKILL:
            # The node's agent must see that the process was killed, not that it failed.
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(code if code > 0 else 1)


def born(count: int) -> Siblings:
    """Fork ``count`` - 1 processes and return each process's siblings. The worker calls this once,
    before it has threads or uses a GPU.
    """
    if count == 1:
        return Siblings()
    pairs = {pair: socket.socketpair() for pair in combinations(range(count), 2)}
    channels = [socket.socketpair() for _ in range(1, count)]
    memory = _nameless_file()
    parent, children = os.getpid(), []
    for place in range(1, count):
        if (child := os.fork()) == 0:
            _tie_to(parent)
            own = [channels[place - 1][1]]
            links = _taken(pairs, place)
            for ours, theirs in channels:
                ours.close()
                if theirs not in own:
                    theirs.close()
            return Siblings(place, links, own, memory)
        children.append(child)
    for _, theirs in channels:
        theirs.close()
    followers = [ours for ours, _ in channels]
    return Siblings(0, _taken(pairs, 0), followers, memory, tuple(children))


def _taken(
    pairs: dict[tuple[int, int], tuple[socket.socket, socket.socket]], place: int
) -> dict[int, socket.socket]:
    """Return this process's ends by the other's place, and close all other ends."""
    found = {}
    for (low, high), ends in pairs.items():
        for owner, other, end in ((low, high, ends[0]), (high, low, ends[1])):
            if owner == place:
                found[other] = end
            else:
                end.close()
    return found


def _tie_to(parent: int) -> None:
    """Make this process end with its parent, and leave notices to the parent."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("duetune-member")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

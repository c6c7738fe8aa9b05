"""The elastic group: members may join and leave between steps, and all share one state.

``form`` starts every step. It asks the coordinator for the members, reconnects if they have
changed, and takes the group's state if this member has another one. Any failure raises
``GroupBroken`` and closes the connections at once, so that no other member waits for this one. The
step is then repeated with the remaining members.
"""

from __future__ import annotations

import time
import uuid
from concurrent.futures import wait
from typing import TYPE_CHECKING, Protocol, TypeVar

from duetune.training.collective import device_name
from duetune.training.coordinator_client import CoordinatorClient
from duetune.training.group_times import GroupSettings
from duetune.training.membership import Arrangement, GroupBroken, Member, arrange
from duetune.training.peer_links import GroupPlace, PeerLinks, in_background
from duetune.training.siblings import AddUp, Join, Meet, Siblings

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from duetune.training.siblings import Call
    from duetune.training.transfer import State

__all__ = [
    "ElasticGroup",
    "Group",
    "GroupBroken",
    "GroupPlace",
    "GroupSettings",
    "Left",
    "SoloGroup",
]

_T = TypeVar("_T")


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
    - ``siblings``: the other processes of this member; each has its shard of the model.
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
        siblings: Siblings | None = None,
    ) -> None:
        self._id = f"{name}.{uuid.uuid4().hex[:12]}"
        self._state = state
        self._device = device_name(device)
        self._leaving = leaving
        self._pace = pace
        self._restored = restored
        self._links = PeerLinks(place, state, restore=restore, touched=touched, settings=settings)
        self._coordinator = CoordinatorClient(
            place.coordinator,
            place.secret,
            self._id,
            self._links.active,
            self._links.settings.heartbeat_s,
        )
        self._siblings = siblings or Siblings()
        address = self._links.address
        self._doors = self._siblings.together(Meet(), lambda: self._siblings.texts(address))
        self._formations = 0
        self._fresh = True

    def form(self) -> Arrangement:
        """Agree on the members, connect to them, and copy the state if this member is behind."""
        held = self._links.arrangement
        own = Member(
            id=self._id,
            address=self._links.address,
            doors=self._doors,
            step=self._state.step,
            device=self._device,
            formations=self._formations,
            group=held.group if held is not None else "",
            fresh=self._fresh,
            restored=self._restored if self._fresh else "",
            pace=self._pace(),
        )
        members = self._unless_leaving(lambda: self._coordinator.quorum(own))
        arrangement = arrange(members, self._id)
        self._formations += arrangement.connect
        self._all(Join(arrangement), lambda: self._links.enter(arrangement))
        self._fresh = False
        return arrangement

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return every member's ``part``, in the order of ranks. Members of several processes never
        call this: their parts are sums already.
        """
        return self._links.gather(part)

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        """Replace ``part`` by the sum over all members and return it."""
        return self._all(AddUp(), lambda: self._links.add_up(part))

    def touch(self) -> None:
        """Record that the main thread is active."""
        self._links.touch()

    def hush(self) -> None:
        """Stop the heartbeats, so that the others need not wait for them to time out."""
        self._coordinator.hush()

    def close(self) -> None:
        """Leave the group and close all connections."""
        self._coordinator.close()
        self._links.close()

    def _all(self, call: Call, work: Callable[[], _T]) -> _T:
        """Do ``work`` in all processes of this member; if it fails in one, all connect again."""
        try:
            return self._siblings.together(call, work)
        except GroupBroken:
            self._links.drop()
            raise

    def _unless_leaving(self, work: Callable[[], _T]) -> _T:
        """Run ``work`` in a thread; raise ``Left`` if this member is asked to leave meanwhile."""
        call, since = in_background(work), time.monotonic()
        while not wait([call], 0.05 if time.monotonic() - since < 1 else 0.2).done:
            self.touch()
            if self._leaving() and time.monotonic() - since > self._links.settings.patience_s:
                raise Left
        return call.result()


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

"""Decides what each member of the group does, as a pure function of what the members report.

The coordinator sends every member of a quorum the same list. It keeps nothing that matters: after
a restart without memory, members that agree continue, and others connect again under a new, unused
name.

A state is believed if the group gave it to the member, if it is that of a checkpoint whose presence
the coordinator has confirmed, or if nothing is trained yet. A member that merely says it is ahead
is given the group's state like any other newcomer.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class GroupBroken(Exception):
    """This round has failed. The caller forms the group again and repeats the step."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What one process reports about itself.

    - ``id``: unique and never reused; members are ranked in the order of their ids.
    - ``address``: its door, where it serves its state.
    - ``doors``: the doors of all its processes, if it has several; the first is ``address``.
    - ``device``: its GPU, or "" for the CPU.
    - ``formations``: how often it has tried to connect.
    - ``group``: the name of its working connections, or "" if it has none.
    - ``fresh``: the group has not given or confirmed its state yet.
    - ``restored``: the name of the checkpoint from which it has loaded its state, or "".
    - ``pace``: its tokens per second; 0 if not known.
    """

    id: str
    address: str
    step: int
    device: str = ""
    formations: int = 0
    group: str = ""
    fresh: bool = True
    restored: str = ""
    pace: float = 0.0
    doors: tuple[str, ...] = ()

    def door(self, number: int) -> str:
        """Return the door of one of its processes; "" if it has fewer."""
        doors = self.doors or (self.address,)
        return doors[number] if number < len(doors) else ""

    @property
    def believed(self) -> bool:
        """Return whether others may take this member's state."""
        return not self.fresh or bool(self.restored) or self.step == 0


class Arrangement(msgspec.Struct, frozen=True, kw_only=True):
    """What one member does in this round.

    - ``connect``: make new connections under the name ``group``.
    - ``source``: the member whose state this one takes first, if any. The state of a ``fresh``
      source that has ``restored`` a checkpoint is read from that checkpoint, not from the member.
    """

    members: tuple[Member, ...]
    rank: int
    step: int
    group: str
    connect: bool
    source: Member | None

    @property
    def world(self) -> int:
        """Return the number of members."""
        return len(self.members)

    @property
    def paces(self) -> tuple[float, ...]:
        """Return the pace of every member, in the order of ranks."""
        return tuple(member.pace for member in self.members)

    @property
    def leads(self) -> bool:
        """Return whether this member reports progress and saves checkpoints."""
        return self.rank == 0

    @property
    def accelerators_differ(self) -> bool:
        """Return whether every member has its own GPU, as NCCL requires."""
        devices = {member.device for member in self.members}
        return "" not in devices and len(devices) == len(self.members)


def arrange(members: Sequence[Member], own_id: str) -> Arrangement:
    """Return the arrangement of one member. All members compute the same group, ranks and step.

    The valid states are the believed ones at the latest step that are not fresh. If all of these
    are fresh, the newest checkpoint among them is used, or the first member's state at step 0.
    ``LookupError`` is raised if no state is believed.
    """
    ordered = tuple(sorted(members, key=lambda member: member.id))
    (rank,) = (place for place, member in enumerate(ordered) if member.id == own_id)
    believed = [member for member in ordered if member.believed]
    if not believed:
        raise LookupError("no member's state comes from the group or from a checkpoint that exists")
    step = max(member.step for member in believed)
    latest = [member for member in believed if member.step == step]
    sources = [member for member in latest if not member.fresh] or _restored_alike(latest)
    behind = [member for member in ordered if member not in sources]
    source = None
    if ordered[rank] in behind:
        source = sources[behind.index(ordered[rank]) % len(sources)]
    present = _digest(member.id for member in ordered)
    held = {member.group for member in ordered}
    whole = len(held) == 1 and ordered[0].group.startswith(f"{present}.")
    if whole:
        group = ordered[0].group
    else:
        # The name is unused: a member that tries again has a greater count of formations.
        attempt = _digest(f"{member.id} {member.formations}" for member in ordered)
        group = f"{present}.{attempt}"
    return Arrangement(
        members=ordered, rank=rank, step=step, group=group, connect=not whole, source=source
    )


def _restored_alike(fresh: list[Member]) -> list[Member]:
    """Return the members with the newest checkpoint; only the first one if there is none."""
    newest = max((member.restored for member in fresh), key=lambda name: (len(name), name))
    return [member for member in fresh if member.restored == newest] if newest else fresh[:1]


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:24]

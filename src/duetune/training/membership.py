"""Decides what each member of the group does, as a pure function of what the members report.

The coordinator (torchft's lighthouse) sends every member of a quorum the same list. Nothing else of
it is used, not even the quorum's number. A restarted coordinator that has lost its memory therefore
does no harm: members that agree continue, others connect again under a new, unused name.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What one process reports about itself.

    - ``id``: unique and never reused; members are ranked in the order of their ids.
    - ``address``, ``store``: where it serves its state, and its rendezvous store.
    - ``device``: its GPU, or "" for the CPU.
    - ``formations``: how often it has tried to connect.
    - ``group``: the name of its working connections, or "" if it has none.
    - ``fresh``: its state has not been compared with that of another member yet.
    """

    id: str
    address: str
    store: str
    step: int
    device: str = ""
    formations: int = 0
    group: str = ""
    fresh: bool = True


class Arrangement(msgspec.Struct, frozen=True, kw_only=True):
    """What one member does in this round.

    - ``connect``: make new connections under the name ``group``.
    - ``source``: the member whose state this one copies first, if any.
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

    The valid states are those at the latest step that are not fresh. If all of these are fresh, the
    state of the first member is used.
    """
    ordered = tuple(sorted(members, key=lambda member: member.id))
    (rank,) = (place for place, member in enumerate(ordered) if member.id == own_id)
    step = max(member.step for member in ordered)
    latest = [member for member in ordered if member.step == step]
    sources = [member for member in latest if not member.fresh] or latest[:1]
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


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:24]

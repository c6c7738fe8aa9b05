"""Who is in the group and what each member does: a pure function of what the members say.

The coordinator (torchft's lighthouse) hands every member of a quorum the same list. Nothing else is
taken from it, not even the quorum's number, so one that was restarted and has forgotten everything
does no harm: members that agree go on, others form anew under a name that was never used.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One process. ``id`` is never used twice; the order of ids is the order of ranks.

    ``device`` is the accelerator it computes on, "" if none.
    ``group`` names the connections it holds and believes whole, "" if none: who is in it, and which
    attempt it was; ``formations`` counts how often it has tried to connect. ``fresh``: its state
    has not been compared with anybody's.
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

    ``connect``: connect anew as ``group``. ``source``: whose state to take over first, if any.
    """

    members: tuple[Member, ...]
    rank: int
    step: int
    group: str
    connect: bool
    source: Member | None

    @property
    def world(self) -> int:
        return len(self.members)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def accelerators_differ(self) -> bool:
        """Whether every member has one to itself, as NCCL wants it."""
        devices = {member.device for member in self.members}
        return "" not in devices and len(devices) == len(self.members)


def arrange(members: Sequence[Member], own_id: str) -> Arrangement:
    """All members get the same list and so come to the same group, ranks and step.

    A state is right if it is at the latest step and has been in use; where all are new, that of
    the first counts for all.
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
        # Never used before: whoever tries again has counted up its formations.
        attempt = _digest(f"{member.id} {member.formations}" for member in ordered)
        group = f"{present}.{attempt}"
    return Arrangement(
        members=ordered, rank=rank, step=step, group=group, connect=not whole, source=source
    )


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:24]

"""How a node of an engine ended, from what the engine and the node's own process say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import NodeEnd, NodeState, end_of_exit
from duetune.fleets.driver import EngineState

if TYPE_CHECKING:
    from duetune.fleets.driver import EngineNode
    from duetune.fleets.node_files import NodeReport
    from duetune.fleets.node_ledger import LedgerEntry


class NodeOver(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is over.

    - ``at``: when it ended, as far as anyone knows.
    - ``started_at``: since when it has run, by its own report.
    - ``code``: the exit status of its work; None if it did not report one.
    - ``reported``: its process has reported at all.
    - ``limited``: it left because its lease was over.
    - ``end``, ``said``: what the engine says.
    - ``gone``: the engine has ended it.
    """

    at: float
    started_at: float | None
    code: int | None
    reported: bool
    limited: bool
    end: NodeEnd | None
    said: str
    gone: bool

    @classmethod
    def of(cls, there: EngineNode | None, report: NodeReport | None, now: float) -> NodeOver:
        """Return what the engine (None if it has forgotten the node) and the last report say."""
        moments = [now]
        if report is not None and report.ended_at is not None:
            moments.append(report.ended_at)
        if there is not None and there.ended_at is not None:
            moments.append(there.ended_at)
        finished = report is not None and report.code is not None
        return cls(
            at=min(moments),
            started_at=report.started_at if report is not None and finished else None,
            code=None if report is None else report.code,
            reported=report is not None,
            limited=report is not None and report.limited,
            end=None if there is None else there.end,
            said="" if there is None else there.reason,
            gone=there is None or there.state is EngineState.ENDED,
        )

    def ended(self, entry: LedgerEntry, at: float) -> LedgerEntry:
        """Return the entry with its end; the first of these that is known counts."""
        state, end, reason = self._verdict(entry)
        return ended(entry, state, end, at, reason, gone=self.gone)

    def _verdict(self, entry: LedgerEntry) -> tuple[NodeState, NodeEnd, str]:
        if (end := end_of_exit(self.code)) is not None:
            return NodeState.RELEASED, end, ""
        if self.limited:
            return NodeState.LOST, NodeEnd.LIMIT, ""
        said = f" ({self.said})" if self.said else ""
        if entry.node.started_at is None:
            return NodeState.REFUSED, NodeEnd.CAPACITY, f"{NodeEnd.CAPACITY}{said}"
        if self.end in {NodeEnd.CAPACITY, NodeEnd.PRICE, NodeEnd.DIED}:
            return NodeState.LOST, self.end, f"{self.end}{said}"
        if self.code is not None and entry.node.notice_at is not None:
            reason = f"{NodeEnd.CAPACITY}, worker left after notice"
            return NodeState.LOST, NodeEnd.CAPACITY, reason
        if self.code is not None:
            return NodeState.RELEASED, NodeEnd.RELEASED, ""
        if self.reported:
            reason = f"{NodeEnd.DIED} (its process ended without a last report)"
            return NodeState.LOST, NodeEnd.DIED, reason
        reason = f"{NodeEnd.CRASHED} (duetune did not start on the node; see its log)"
        return NodeState.RELEASED, NodeEnd.CRASHED, reason


def granted(entry: LedgerEntry, at: float) -> LedgerEntry:
    """Return the entry of a node that runs since ``at``, unless that is known already."""
    node = entry.node
    if node.started_at is not None:
        return entry
    started = max(at, node.requested_at)
    node = msgspec.structs.replace(node, state=NodeState.RUNNING, started_at=started)
    return msgspec.structs.replace(entry, node=node)


def ended(
    entry: LedgerEntry,
    state: NodeState,
    end: NodeEnd,
    at: float,
    reason: str = "",
    *,
    gone: bool = False,
) -> LedgerEntry:
    """Return the entry of a node that has ended; ``gone`` if nothing is left to stop."""
    node = msgspec.structs.replace(
        entry.node, state=state, end=end, ended_at=at, reason=reason or end.value
    )
    return msgspec.structs.replace(entry, node=node, gone=gone)

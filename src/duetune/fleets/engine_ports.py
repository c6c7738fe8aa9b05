"""What the fleet of an engine needs besides its driver: prices, and an exchange with its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from duetune.core.fleet import Launch, NodeKind
    from duetune.fleets.driver import NodeOrder
    from duetune.fleets.node_files import NodeReport


class Prices(Protocol):
    """What nodes cost."""

    def dollars(self, kind: NodeKind, since: float, until: float) -> float:
        """Return the dollars for one GPU from ``since`` to ``until``."""
        ...

    def rate(self, kind: NodeKind) -> float:
        """Return the dollars for one GPU in a second, as of now."""
        ...


class NodeFiles(Protocol):
    """The exchange with the nodes' own processes, through the job's folder or storage."""

    def order(self, launch: Launch, name: str, withdraw_at: float) -> NodeOrder:
        """Write what the node needs to know, and return the order for the driver."""
        ...

    def report(self, launch: Launch, name: str) -> NodeReport | None:
        """Return the last report of a node's process; None if there is none."""

    def settled(self, launch: Launch, name: str) -> bool:
        """Return whether all that an ended node had to say has arrived; it is kept until then."""
        ...

    def withdraw(self, launch: Launch, name: str) -> None:
        """Take the order back. A node whose order is gone ends by itself, or never begins."""

    def lease(self, launch: Launch, until: float) -> None:
        """Let the nodes of a job run until this wall time."""

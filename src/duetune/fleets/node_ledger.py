"""The ledger of a fleet that others run: every node ever asked for, kept when the engine forgets.

An entry is written before the engine is called, so no node can be started that nobody knows of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from duetune.core.fleet import Launch, LedgerPage, Limit, Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Pages(Protocol):
    """Where the ledger is kept: in the database, or in memory in tests."""

    def read(self, job: str | None = None, *, only_open: bool = False) -> Sequence[LedgerPage]:
        """Return the pages of a job, or of all jobs; ``only_open`` leaves out what has ended."""
        ...

    def write(self, pages: Sequence[LedgerPage]) -> None:
        """Write the next version of all pages, or of none; ``FleetError`` if one is outdated."""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one node.

    - ``name``: its name in the engine; "" if it was released before it was launched.
    - ``withdraw_at``: when its request is withdrawn if it was not granted.
    - ``seen``: the engine has listed it. ``missing_since``: since when the engine no longer does.
    - ``billed_until``: until when ``node.billed`` counts.
    - ``gone``: the engine is known to have ended it, so nothing is left to stop.
    """

    node: Node
    name: str = ""
    launch: Launch | None = None
    withdraw_at: float | None = None
    seen: bool = False
    missing_since: float | None = None
    billed_until: float | None = None
    gone: bool = False
    version: int = msgspec.field(default=0)

    @property
    def open(self) -> bool:
        """Return whether the node is alive, or may still be running in the engine."""
        return self.node.state.alive or not self.gone


_LIMIT = ""
"""The node name of the page with a job's limit."""


class NodeLedger:
    """The entries of one fleet. Every process reads them anew, because another may have written."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def of_job(self, job: str) -> list[LedgerEntry]:
        """Return every node that the job ever had, in the order in which they were requested."""
        return _entries(self._pages.read(job))

    def open(self) -> list[LedgerEntry]:
        """Return the nodes of all jobs that are alive or may still be running."""
        return _entries(self._pages.read(only_open=True))

    def nodes(self) -> list[Node]:
        """Return every node that any job ever had on this fleet."""
        return [entry.node for entry in _entries(self._pages.read()) if entry.launch is not None]

    def write(self, entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
        """Write changed entries, all or none, and return them as they can be changed next.

        ``FleetError`` is raised if another process was faster.
        """
        changed = list(entries)
        pages = [
            LedgerPage(
                job=entry.node.job,
                node=entry.node.id,
                version=entry.version,
                open=entry.open,
                body=msgspec.json.encode(msgspec.structs.replace(entry, version=0)).decode(),
            )
            for entry in changed
        ]
        if pages:
            self._pages.write(pages)
        return [msgspec.structs.replace(entry, version=entry.version + 1) for entry in changed]

    def limit(self, job: str) -> float | None:
        """Return the most dollars that the job may cost; None means no limit."""
        for page in self._pages.read(job):
            if page.node == _LIMIT:
                return msgspec.json.decode(page.body, type=Limit).dollars
        return None

    def set_limit(self, limit: Limit) -> None:
        """Replace the limit of a job."""
        version = next(
            (page.version for page in self._pages.read(limit.job) if page.node == _LIMIT), 0
        )
        body = msgspec.json.encode(limit).decode()
        self._pages.write(
            [LedgerPage(job=limit.job, node=_LIMIT, version=version, open=False, body=body)]
        )


def _entries(pages: Iterable[LedgerPage]) -> list[LedgerEntry]:
    found = [
        msgspec.structs.replace(
            msgspec.json.decode(page.body, type=LedgerEntry), version=page.version
        )
        for page in pages
        if page.node != _LIMIT
    ]
    return sorted(found, key=lambda entry: (entry.node.requested_at, _natural(entry.node.id)))


def _natural(name: str) -> tuple[int, str]:
    """Return a key that sorts n2 before n10."""
    return len(name), name

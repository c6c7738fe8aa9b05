"""The store itself cannot be used just now: disk full, locked, gone, not reachable."""

from __future__ import annotations

from typing import ClassVar

from duetune.errors import DuetuneError


class StoreError(DuetuneError):
    """A database call failed altogether. Nothing is ever half-written; but if the connection broke
    during a commit, whether it had an effect is unknown: read before writing again.
    """

    code: ClassVar[str] = "store"
    exit_code: ClassVar[int] = 4

    def __init__(self, store: str, reason: str) -> None:
        self.store = store
        self.reason = reason
        super().__init__(f"the store {store} cannot be used: {reason}")

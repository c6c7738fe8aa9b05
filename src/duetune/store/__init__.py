"""Where the journal is kept, and what can be asked of it: SQLite or PostgreSQL."""

from duetune.errors import StoreError
from duetune.store.inbox import PendingWish
from duetune.store.memory_journal import MemoryJournal
from duetune.store.rows import Charge, CostBy, CostLine, JobRow
from duetune.store.selector import SelectorState
from duetune.store.store import Store, open_store

__all__ = [
    "Charge",
    "CostBy",
    "CostLine",
    "JobRow",
    "MemoryJournal",
    "PendingWish",
    "SelectorState",
    "Store",
    "StoreError",
    "open_store",
]

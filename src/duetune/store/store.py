"""The store: one object for everything that outlives a process.

``opened_store``, ``readable_store`` and ``existing_store`` find the store of a home folder. It is
created when something is written, not when something is asked.
"""

from __future__ import annotations

import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from duetune.errors import InvalidInput, StoreLost
from duetune.settings import HOME
from duetune.store.database import memory_database, postgres_database, sqlite_database
from duetune.store.database_journal import DatabaseJournal, rebuild
from duetune.store.database_schema import migrate
from duetune.store.inbox import Inbox
from duetune.store.ledger_pages import LedgerPages
from duetune.store.measured_runs_table import Observations
from duetune.store.queries import Queries
from duetune.store.selector import SelectorStates
from duetune.wall_clock import wall_now

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from duetune.settings import Settings
    from duetune.store.database import Database

RESCUED = "duetune-rescued-{}.db"
"""The name of a copy that a controller saves when the database was deleted."""

ALLOWED = "a file, sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"

# Alembic keeps the running migration in a global variable, and an SQLite file must not be closed
# by one thread while another opens it.
_opening = threading.Lock()


class Store(Queries):
    """An open store. Threads may share it; every process opens its own.

    ``journal``: the events of all jobs.
    ``clock``: wall time at which rows are recorded; no decision depends on it.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = wall_now) -> None:
        super().__init__(database)
        self._clock = clock
        self.name = database.name
        self.journal = DatabaseJournal(database, clock)

    @cached_property
    def requests(self) -> Inbox:
        """User requests that wait for the controller."""
        return Inbox(self._database, self._clock)

    def requests_of(self, fleets: Collection[str]) -> Inbox:
        """Return the user requests for jobs of these fleets; one controller reads them."""
        return Inbox(self._database, self._clock, fleets)

    @cached_property
    def selector(self) -> SelectorStates:
        """The states of the policy selector."""
        return SelectorStates(self._database, self._clock)

    @cached_property
    def observations(self) -> Observations:
        """Measured runs."""
        return Observations(self._database)

    def ledger(self, fleet: str) -> LedgerPages:
        """Return the ledger pages of a fleet that others run."""
        return LedgerPages(self._database, fleet)

    def rebuild(self) -> int:
        """Compute the read models again from the journal; return the number of jobs."""
        with self._database.writing() as connection:
            return rebuild(connection, at=self._clock())

    def rescue(self, folder: Path) -> Path:
        """Save the whole store to a new file and return it; called when its file was deleted."""
        path = folder / RESCUED.format(f"{self._clock():.0f}")
        self._database.save_copy(path)
        return path

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_store(url_or_path: str | Path, *, clock: Callable[[], float] = wall_now) -> Store:
    """Return the store in an SQLite file or a PostgreSQL database; creates or migrates it."""
    with _opening:
        database = _database(url_or_path)
        try:
            migrate(database)
            database.identify()
        except BaseException:
            database.close()
            raise
    return Store(database, clock)


def _database(url_or_path: str | Path) -> Database:
    if isinstance(url_or_path, Path) or "://" not in url_or_path:
        if not str(url_or_path):
            raise InvalidInput("database", url_or_path, ALLOWED)
        return sqlite_database(Path(url_or_path))
    try:
        url = make_url(url_or_path)
    except (ArgumentError, ValueError):
        # The text may contain a password, so it is not shown.
        scheme = url_or_path.partition("://")[0]
        raise InvalidInput("database", f"{scheme}://...", ALLOWED) from None
    kind = url.get_backend_name()
    if kind == "sqlite" and url.database and url.database != ":memory:":
        return sqlite_database(Path(url.database))
    if kind == "postgresql":
        return postgres_database(url)
    raise InvalidInput("database", url.render_as_string(hide_password=True), ALLOWED)


def opened_store(settings: Settings) -> Store:
    """Return the store of the home; creates both if they do not exist.

    ``StoreLost`` is raised if the file is missing although the home has jobs.
    """
    made_home(settings)
    if "://" not in settings.database:
        _refuse_empty(settings, Path(settings.database))
    return open_store(settings.database)


def _refuse_empty(settings: Settings, database: Path) -> None:
    """Refuse to create a database where there are jobs: it would forget them."""
    if database.exists() or not settings.jobs.is_dir():
        return
    jobs = sorted(path.name for path in settings.jobs.iterdir() if path.is_dir())
    if jobs:
        copies = sorted(settings.home.glob(RESCUED.format("*")))
        restore = f"'mv {copies[-1]} {database}'" if copies else "a backup"
        reason = (
            f"the file is missing, but jobs exist ({', '.join(jobs[:3])}); restore it by {restore}"
            f" and run 'duetune controller start', or move {settings.jobs} away to begin anew"
        )
        raise StoreLost(str(database), reason)


def has_store(settings: Settings) -> bool:
    """Return whether the home has a database: one on a server, or a file that exists."""
    return "://" in settings.database or Path(settings.database).exists()


def readable_store(settings: Settings) -> Store:
    """Return the store of the home for a question; an empty one in memory if there is none.

    ``StoreLost`` is raised as by ``opened_store``.
    """
    if has_store(settings):
        return opened_store(settings)
    _refuse_empty(settings, Path(settings.database))
    return Store(memory_database())


def existing_store(settings: Settings) -> Store | None:
    """Return the store of the home; None if there is none. Called by commands that only read."""
    if "://" not in settings.database and not Path(settings.database).is_file():
        return None
    return opened_store(settings)


def made_home(settings: Settings) -> None:
    """Create the home folder if it does not exist; only its owner may read it."""
    try:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInput(
            HOME, str(settings.home), f"a folder that can be created ({reason})"
        ) from None

"""A PostgreSQL server of the test run's own, for ``pytest_plugins``; tests skip if there is none.

The first worker that needs it starts it, the last one that is done stops it; what a run that was
killed left behind is swept up by the next. It listens on a Unix socket in its own folder only, so
it needs no port and disturbs nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

import pytest

PLACES = ("usr/lib/postgresql/*/bin", "usr/local/bin", "usr/local/pgsql/bin")
OPTIONS = ("listen_addresses=", "fsync=off", "full_page_writes=off", "max_connections=60")
# Short, and open to the server's own account: a socket's path has at most 107 characters.
PARENT, PREFIX = Path(tempfile.gettempdir()), "duetune-pg-"


def program(name: str) -> str | None:
    """Debian keeps the server's programs out of PATH."""
    found = [place for pattern in PLACES for place in Path("/").glob(f"{pattern}/{name}")]
    return shutil.which(name) or (str(max(found)) if found else None)


class Server:
    """``folder`` has the cluster, the socket, and the processes that use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = str(folder / "data")

    @property
    def account(self) -> pwd.struct_passwd | None:
        """Who runs it: PostgreSQL refuses to be root."""
        if os.geteuid() != 0:
            return None
        known = {each.pw_name: each for each in pwd.getpwall()}
        return known.get("postgres", known["nobody"])

    @property
    def users(self) -> list[int]:
        file = self.folder / "users"
        return [int(word) for word in file.read_text().split()] if file.exists() else []

    @users.setter
    def users(self, processes: list[int]) -> None:
        (self.folder / "users").write_text("\n".join(map(str, processes)))

    def run(self, name: str, *arguments: str) -> None:
        account = self.account
        log = self.folder / f"{name}.log"
        # The server inherits what it is given, so a pipe would never end.
        with log.open("wb") as file:
            done = subprocess.run(
                [str(program(name)), "-D", self.data, *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
                user=account and account.pw_uid,
                group=account and account.pw_gid,
                extra_groups=None if account is None else [],
            )
        assert done.returncode == 0, log.read_text()

    def start(self) -> None:
        self.folder.mkdir(mode=0o700)
        if self.account is not None:
            os.chown(self.folder, self.account.pw_uid, self.account.pw_gid)
        options = " ".join(f"-c {each}" for each in OPTIONS)
        self.run("initdb", "-U", "duetune", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        self.run(
            "pg_ctl", "-w", "-l", f"{self.data}/log", "-o", f"{options} -k {self.folder}", "start"
        )

    def stop(self) -> None:
        self.run("pg_ctl", "-w", "-m", "immediate", "stop")
        shutil.rmtree(self.folder)

    def enter(self) -> None:
        if not self.users:
            self.start()
        self.users = [*self.users, os.getpid()]

    def leave(self) -> None:
        self.users = [each for each in self.users if each != os.getpid()]
        if not self.users:
            self.stop()

    def create(self, prefix: str) -> str:
        """The URL of a new, empty database."""
        psycopg = pytest.importorskip("psycopg")
        name = f"{prefix}_{uuid.uuid4().hex}"
        with psycopg.connect(
            host=str(self.folder), user="duetune", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://duetune@/{name}?host={self.folder}"


def sweep() -> None:
    """Stop servers whose users are all dead."""
    for folder in PARENT.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, AssertionError):
            left = Server(folder)
            if left.users and not any(Path(f"/proc/{each}").exists() for each in left.users):
                left.stop()


@contextlib.contextmanager
def alone(path: Path):
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def postgres_server(testrun_uid, worker_id, tmp_path_factory):
    if program("initdb") is None or program("pg_ctl") is None:
        pytest.skip("no PostgreSQL on this machine: 'make postgres' installs it")
    pytest.importorskip("psycopg")
    run = tmp_path_factory.getbasetemp()
    lock = (run if worker_id == "master" else run.parent) / "postgres.lock"
    server = Server(PARENT / f"{PREFIX}{testrun_uid[:12]}")
    with alone(lock):
        sweep()
        server.enter()
    yield server
    with alone(lock):
        server.leave()


@pytest.fixture
def postgres_url(postgres_server):
    """A new, empty database."""
    return postgres_server.create("test")

"""The files of a new job, in its folder and in its storage."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from types import SimpleNamespace

import pytest

from duetune.jobs.job_folder import write_job_folder
from duetune.jobs.spec.job_spec import JobSpec
from duetune.settings import load_settings
from duetune.storage import open_storage


@pytest.fixture
def settings(tmp_path):
    """A home and its database, both inside the folder in which the user works."""
    work = tmp_path / "work"
    home = work / "duetune"
    home.mkdir(parents=True)
    (home / "config.toml").write_text(f'database = "{work}/jobs.db"\n')
    (work / "train.py").write_text("print()")
    return load_settings({"DUETUNE_HOME": str(home)})


def sent(settings, tmp_path, storage):
    work = tmp_path / "work"
    spec = JobSpec(name="own", run="python train.py", workdir=str(work), deadline="2h")
    write_job_folder(
        settings.folder("own-1"),
        spec,
        SimpleNamespace(gpus_per_member=1),
        storage=f"{storage}/own-1",
        without=settings.own_paths,
    )
    return set(open_storage(f"{storage}/own-1").sizes("inputs/workdir"))


@pytest.mark.parametrize("inside", [False, True])
def test_neither_the_home_nor_the_database_nor_the_storage_is_sent(settings, tmp_path, inside):
    storage = tmp_path / "work" / "storage" if inside else tmp_path / "storage"
    storage.mkdir()
    (storage / "of-another-job").write_text("large")
    assert sent(settings, tmp_path, storage) == {"inputs/workdir/train.py"}


def test_a_database_in_use_keeps_its_locks(settings, tmp_path):
    """A process that opens and closes a file of its own database loses its locks on it."""
    with sqlite3.connect(settings.database) as ours:
        ours.execute("pragma journal_mode=wal")
        ours.execute("create table t (x)")
        ours.execute("begin immediate")
        sent(settings, tmp_path, tmp_path / "storage")
        code = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=0);"
            "c.execute('begin immediate')"
        )
        other = subprocess.run(
            [sys.executable, "-c", code, settings.database],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "database is locked" in other.stderr

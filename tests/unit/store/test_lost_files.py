"""A database whose file is deleted or replaced while it is in use."""

from __future__ import annotations

import shutil

import pytest

from duetune.errors import StoreError, StoreLost
from duetune.settings import load_settings
from duetune.store.store import open_store, opened_store
from duetune.testing.sample_events import submission


@pytest.fixture
def file(tmp_path):
    return tmp_path / "a%20 b?#.db"


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_it_is_noticed_before_the_next_read_or_write_and_can_be_saved(file, tmp_path, how):
    other = tmp_path / "other.db"
    open_store(other).close()
    with open_store(file) as store:
        store.journal.append("tuning", [submission()], expected=0)
        if how == "deleted":
            file.unlink()
        else:
            other.replace(file)
        with pytest.raises(StoreLost, match=f"its file was {how}"):
            store.journal.append("more", [submission()], expected=0)
        with pytest.raises(StoreError):
            store.active()
        saved = store.rescue(tmp_path)
    assert file.exists() == (how == "replaced")
    saved.replace(file)
    with open_store(file) as again:
        assert again.job("tuning").name == "tuning"
        assert again.journal.length("more") == 0
        again.journal.append("more", [submission()], expected=0)


def test_no_empty_one_is_created_where_jobs_are(tmp_path):
    settings = load_settings({"DUETUNE_HOME": str(tmp_path)})
    opened_store(settings).close()
    settings.folder("tuning-1").mkdir(parents=True)
    opened_store(settings).close()
    (tmp_path / "duetune.db").unlink()
    with pytest.raises(StoreLost, match=r"the file is missing, but jobs exist \(tuning-1\)"):
        opened_store(settings)
    assert not (tmp_path / "duetune.db").exists()
    shutil.rmtree(settings.jobs)
    opened_store(settings).close()

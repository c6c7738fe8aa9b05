"""A question never creates a database; only a job or an imported run does."""

from __future__ import annotations

import pytest

from duetune.cli.app import main
from duetune.errors import NotFound, StoreLost
from duetune.home import Home


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (3, ["status", "nobody"]),
        (3, ["logs", "nobody"]),
        (3, ["explain", "nobody"]),
        (3, ["cancel", "nobody"]),
        (3, ["amend", "nobody", "--budget=5", "--yes"]),
        (0, ["queue"]),
        (0, ["cost-report"]),
        (0, ["fleet", "stop"]),
        (2, ["plan", "missing.yaml"]),
    ],
)
def test_a_question_in_a_new_home_creates_nothing(tmp_path, monkeypatch, status, words):
    monkeypatch.setenv("DUETUNE_HOME", str(tmp_path / "home"))
    assert main(words) == status
    assert not (tmp_path / "home").exists()


def test_a_home_finds_the_database_that_it_made_after_a_question(tmp_path):
    home = Home(tmp_path)
    with pytest.raises(NotFound):
        home.store.job("nobody")
    assert home.writable_store is home.store
    assert home.store.jobs() == []


def test_a_missing_database_of_jobs_is_not_answered_with_an_empty_one(tmp_path):
    home = Home(tmp_path)
    (home.settings.jobs / "job").mkdir(parents=True)
    with pytest.raises(StoreLost):
        _ = home.store

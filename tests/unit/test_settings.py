from __future__ import annotations

from pathlib import Path

import pytest

from duetune.errors import InvalidInput
from duetune.settings import load_settings


def test_a_home_without_config_has_the_defaults(tmp_path):
    settings = load_settings({"DUETUNE_HOME": str(tmp_path / "home")})
    assert settings.home == tmp_path / "home"
    assert settings.database == str(tmp_path / "home" / "duetune.db")
    assert settings.folder("job-1") == tmp_path / "home" / "jobs" / "job-1"
    assert not settings.home.exists()


def test_the_usual_home_is_the_users():
    assert load_settings({}).home == Path.home() / ".duetune"


def test_config_says_where_the_journal_is_and_what_the_site_is_like(tmp_path):
    (tmp_path / "config.toml").write_text(
        'database = "postgresql+psycopg://me@there/duetune"\n[site]\nspeed = 60\nmax_gpus = 8\n'
    )
    settings = load_settings({"DUETUNE_HOME": str(tmp_path)})
    assert settings.database == "postgresql+psycopg://me@there/duetune"
    assert settings.site.speed == 60
    assert settings.site.max_gpus == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "speed = 3",
            "config.toml field: 'speed' is not allowed; expected one of database, forecast, sel",
        ),
        ("[site]\nspeed = 'fast'", "site.speed: 'fast' is not allowed; expected a number"),
        ("site = ", "valid TOML"),
    ],
)
def test_a_bad_config_is_refused_by_name(tmp_path, text, words):
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(InvalidInput, match=r"^config\.toml[: ]") as refused:
        load_settings({"DUETUNE_HOME": str(tmp_path)})
    assert words in str(refused.value)


def test_a_trace_is_beside_the_config_that_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    for said, found in (("market.csv", tmp_path / "market.csv"), ("/data/m.csv", "/data/m.csv")):
        (tmp_path / "config.toml").write_text(f'[site]\ntrace = "{said}"\n')
        assert load_settings({"DUETUNE_HOME": str(tmp_path)}).site.trace == str(found)


def test_a_home_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "home").touch()
    with pytest.raises(InvalidInput, match="DUETUNE_HOME"):
        load_settings({"DUETUNE_HOME": str(tmp_path / "home")})


def test_settings_as_seen_from_another_fleet_and_back(tmp_path):
    (tmp_path / "config.toml").write_text(
        '[site]\nfleet = "campus"\nfeed = "aws:eu-west-1:p4d.24xlarge"\nmax_gpus = 8\n'
    )
    settings = load_settings({"DUETUNE_HOME": str(tmp_path)})
    assert settings.fleet_name == "campus"
    assert settings.names_in_rows == ("campus", "")
    for same in ("", "campus", " campus "):
        assert settings.on(same) == settings
    there = settings.on("embedded")
    # The feed was chosen for the fleet beside it.
    assert (there.fleet_name, there.site.feed, there.site.max_gpus) == ("embedded", "fleet", 8)
    assert there.names_in_rows == ("embedded",)
    for back in ("", "campus"):
        assert there.on(back) == settings
    assert there.on("other").on("embedded") == there

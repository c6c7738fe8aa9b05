"""A home with several fleets: every job is asked about, quoted and run on its own one."""

from __future__ import annotations

import msgspec
import pytest

from duetune.cli import main
from duetune.core.events import Pause
from duetune.errors import InvalidInput
from duetune.home import Home
from duetune.registry.fleets import SITE_FILE, fleet_named
from duetune.settings import SiteSettings
from duetune.testing.sample_events import story, submission
from duetune.wiring import (
    desk_site,
    make_controller,
    on_demand_usd_h,
    runs_here,
    start_fleet,
    storage_of,
)
from support.process_driver import register


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The embedded fleet is the default, ``lab`` is an engine."""
    monkeypatch.syspath_prepend(register(tmp_path / "plugin"))
    monkeypatch.setenv("DUETUNE_HOME", str(tmp_path / "home"))
    given = (f"folder={tmp_path / 'engine'}", "accelerator=H100", "max_gpus=6", "on_demand_usd_h=7")
    flags = [word for each in given for word in ("--set", each)]
    assert main(["fleet", "add", "lab", "--engine", "processes", *flags]) == 0
    return Home()


def submit(home, job, fleet, *, over=False):
    events = story() if over else (submission(name=job),)
    first = msgspec.structs.replace(events[0], fleet=fleet)
    home.writable_store.journal.append(job, [first, *events[1:]], expected=0)


def test_a_job_is_quoted_with_the_gpus_and_the_prices_of_its_fleet(home):
    site = desk_site(home.on("lab"))
    assert (site.accelerator, site.max_gpus, runs_here(home.on("lab"))) == ("H100", 6, False)
    assert on_demand_usd_h(home.on("lab")) == pytest.approx(7.0)
    assert (desk_site(home.on()).accelerator, runs_here(home.on())) == ("CPU", True)
    assert on_demand_usd_h(home.on()) != pytest.approx(7.0)


def test_a_job_goes_through_the_storage_of_its_fleet(home, tmp_path):
    place = str(tmp_path / "storage")
    given = ("--set", f"folder={tmp_path}", "--set", f"storage={place}")
    assert main(["fleet", "add", "far", "--engine", "processes", *given]) == 0
    assert [storage_of(home.on(name)) for name in ("", "lab", "far")] == ["", "", place]


@pytest.mark.parametrize("name", ["lob", "Lab", "lab:x", "processed", "em bedded"])
def test_a_name_that_is_no_fleet_is_refused(home, name):
    allowed = "expected one of embedded, lab, processes"
    with pytest.raises(InvalidInput, match=allowed):
        home.on(name)


def test_a_fleet_is_busy_as_long_as_a_job_on_it_is_not_over(home):
    assert home.busy_fleets() == []
    submit(home, "over", "lab", over=True)
    submit(home, "old", "")
    assert home.busy_fleets() == ["embedded"]
    submit(home, "new", "embedded")
    submit(home, "there", "lab")
    assert home.busy_fleets() == ["embedded", "lab"]


def test_a_controller_has_the_jobs_and_requests_of_its_fleet_alone(home):
    for job, fleet in (("old", ""), ("here", "embedded"), ("there", "lab")):
        submit(home, job, fleet)
        home.writable_store.requests.ask(job, Pause())
    settings = home.on("lab")
    books = make_controller(settings, home.writable_store, start_fleet(settings)).books
    assert books.active() == ["there"]
    assert [job for _, job, _ in books.requests.pending()] == ["there"]


def test_jobs_on_another_fleet_do_not_keep_the_embedded_one_on_its_last_site(home):
    submit(home, "there", "lab")
    host = fleet_named(home.settings)
    home.settings.fleet.mkdir()
    last = SiteSettings(max_gpus=3)
    (home.settings.fleet / SITE_FILE).write_bytes(msgspec.json.encode(last))
    assert host.site() == home.settings.site
    submit(home, "here", "")
    assert host.site() == last


def test_a_job_that_is_over_can_be_read_without_its_fleet(home, capsys):
    submit(home, "tuning", "lab", over=True)
    assert main(["fleet", "remove", "lab"]) == 0
    assert home.status("tuning").job.fleet == "lab"
    assert main(["queue", "--all"]) == 0
    assert "tuning" in capsys.readouterr().out


def test_a_fleet_with_unfinished_jobs_is_not_removed(home, capsys):
    submit(home, "there", "lab")
    submit(home, "old", "")
    assert main(["fleet", "remove", "lab"]) == 2
    assert "a fleet without unfinished jobs; cancel there" in capsys.readouterr().err


def test_a_fleet_that_cannot_be_used_does_not_hide_the_jobs_of_another(home, capsys):
    submit(home, "there", "lab")
    submit(home, "here", "embedded")
    (home.settings.home / "fleets" / "lab.toml").write_text("engine = 3\n")
    assert main(["queue"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "here" in out
    assert "lab: lab.toml engine: 3 is not allowed" in out


def test_controllers_are_shown_by_fleet(home, capsys):
    assert main(["controller", "status"]) == 0
    assert "No controller is running" in capsys.readouterr().out
    assert main(["controller", "status", "--fleet", "lab"]) == 0
    assert "lab: No controller is running" in capsys.readouterr().out
    assert main(["controller", "stop"]) == 0
    assert "No controller was running." in capsys.readouterr().out
    assert main(["controller", "status", "--fleet", "lob"]) == 2
    assert not (home.settings.home / "duetune.db").exists()

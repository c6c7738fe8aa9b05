"""A fleet that misbehaves, with real processes. Each test states the outcome."""

from __future__ import annotations

import json
import os
import signal

import msgspec
import pytest

from duetune.core.fleet import NodeEnd, NodeState
from duetune.fleets.embedded import FleetSettings, start_provider
from duetune.fleets.embedded.cloud_settings import FleetFaults
from duetune.registry.fleets import SITE_FILE, site_market
from duetune.settings import SiteSettings
from support.accounts import accounted, never_two_at_once
from support.live_home import LEFT_RUNNING, LiveHome

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings(LEFT_RUNNING)]


@pytest.fixture
def home(tmp_path):
    home = LiveHome(tmp_path)
    yield home
    home.close()


def start_faulty(home, faults, *, slot_wall_s=1.6):
    """As ``duetune fleet start`` does, with faults that the command line does not offer."""
    site = SiteSettings(
        trace=str(home.market((0.9, 2))), speed=home.speed(slot_wall_s), history_slots=0, warm=False
    )
    home.settings.fleet.mkdir(parents=True, mode=0o700)
    settings = FleetSettings(
        speed=site.speed, wrap=True, grant_delay_s=0.2, preload="", faults=faults
    )
    start_provider(home.settings.fleet, settings, site_market(site))
    (home.settings.fleet / SITE_FILE).write_bytes(msgspec.json.encode(site))


@pytest.mark.more
def test_replies_that_are_lost_make_no_second_node(home):
    """The fleet did what it was told and the answer was lost: it is told again, and no node is
    made twice, left over or unbilled.
    """
    start_faulty(home, FleetFaults(lost_replies=(1, 2, 4)))
    job = home.launch(home.spec(steps=20))
    assert home.until_over(job).status == "SUCCEEDED"
    nodes = accounted(home, job)
    assert never_two_at_once(nodes)
    assert "reply was lost" in home.logs() or "does not answer" in home.logs()


def test_jobs_go_on_where_they_were_when_the_fleet_has_died_or_was_stopped(home, monkeypatch):
    """On the market that was named, from wherever, when it was started: not on the usual one."""
    home.market((0.9, 1))
    monkeypatch.chdir(home.folder)
    home.start_fleet("market.csv", max_gpus=1)
    monkeypatch.chdir("/")
    job = home.launch(home.spec(steps=30, policy="on_demand"))
    home.until_step(job, 2)
    first = home.json("fleet", "status")
    os.kill(first["pid"], signal.SIGKILL)
    home.until_step(job, 8)
    again = home.json("fleet", "status")
    home.run("fleet", "stop", "--force")
    assert "Controller" in home.run("controller", "start").stdout
    home.until(lambda: home.fleet() is not None, "the fleet")
    last = home.json("fleet", "status")
    assert len({each["pid"] for each in (first, again, last)}) == 3
    assert len({(each["market"], each["speed"]) for each in (first, again, last)}) == 1
    assert home.until_over(job).status == "SUCCEEDED"
    accounted(home, job)


def test_grants_that_never_come_cost_nothing_and_end_at_the_hard_deadline(home):
    """Requests are given up and made again; the job fails at its hard deadline, unbilled."""
    start_faulty(home, FleetFaults(never_grant=True))
    job = home.launch(home.spec(steps=4, deadline="90m", hard_deadline="true"))
    row = home.until_over(job)
    assert row.status == "FAILED"
    assert row.reason.startswith("the hard deadline has passed")
    assert row.cost == 0
    nodes = accounted(home, job)
    assert len(nodes) > 1
    assert not [node for node in nodes if node.state is NodeState.RUNNING]


@pytest.mark.more
def test_a_notice_that_never_comes_costs_at_most_what_was_not_saved(home):
    """All nodes are taken silently at every third slot; the job finishes by its deadline."""
    home.start_fleet(home.market((0.9, 2), (0.9, 2), (0.9, 0)), silent=1)
    job = home.launch(home.spec(steps=25))
    row = home.until_over(job)
    assert row.status == "SUCCEEDED"
    assert row.finished_at <= row.deadline_at
    lost = [node for node in accounted(home, job) if node.state is NodeState.LOST]
    assert lost
    assert all(node.notice_at is None for node in lost)
    # The pretend trainer saves every step.
    assert home.json("status", job)["status"]["lost_steps"] <= 1 * len(lost)


def test_workers_that_are_killed_or_find_a_full_disk_never_fail_the_job(home):
    """Seven SIGKILLs and three exits for lack of space, all before the first step: the job moves
    from node to node, ``status`` says why, and in the end it succeeds with an exact bill.
    """
    home.start_fleet(home.market((0.9, 1)), slot_wall_s=3.0)
    counter = home.folder / "starts"
    script = (
        f"echo x >> {counter}; starts=$(wc -l < {counter}); "
        "if [ $starts -le 7 ]; then kill -9 $$; fi; "
        "if [ $starts -le 10 ]; then echo 'cp: No space left on device' >&2; exit 1; fi; "
        f"exec {home.command(2, 0.1)}"
    )
    job = home.launch(home.spec(steps=2, run=json.dumps(script)))
    told = home.until(lambda: home.json("status", job)["status"]["trouble"], "the trouble")
    assert "killed or the disk is full" in told
    shown = home.run("status", job).stdout
    assert "killed by SIGKILL, 3 times; leaving this node" in shown
    assert home.until_over(job).status == "SUCCEEDED"
    nodes = accounted(home, job)
    assert [node.end for node in nodes].count(NodeEnd.CRASHED) == 3
    assert never_two_at_once(nodes)
    assert home.json("status", job)["status"]["trouble"] == ""


def test_a_budget_that_runs_out_is_a_hard_cap_until_it_is_raised(home):
    """No cent beyond the budget is billed, ``status`` and ``queue`` say which budget would save the
    job, and with that budget it goes on to success.
    """
    home.start_fleet(home.market((0.9, 1), on_demand=1.0), slot_wall_s=2.0, max_gpus=1)
    # The plan expects about 2 slots of at most $0.50; the command takes 5 or more.
    job = home.launch(home.spec(steps=40, step_s=0.25, deadline="2h", budget=1.6))

    def lost():
        return home.json("status", job)["status"]["given_up"]

    needed = home.until(lost, "the end of the budget")["budget"]
    home.until(lambda: not home.fleet_alive(job), "the release of its node")
    bill = sum(node.billed for node in home.fleet().fleet.observe(job).nodes)
    # Whole slots are decided, so at most the price of one slot is left over.
    assert 1.6 - 0.5 <= bill <= 1.6
    said = f"given up, the budget is used up; a budget of ${needed:.2f}"
    assert said in " ".join(home.run("status", job).stdout.split())
    assert said in " ".join(home.run("queue").stdout.split())
    assert "given up, the budget is used up" in " ".join(home.run("explain", job).stdout.split())
    home.run("amend", job, "--budget", str(needed + 5), "--yes")
    assert home.until_over(job).status == "SUCCEEDED"
    assert bill < home.job(job).cost <= needed + 5


def test_an_old_controller_that_wakes_up_can_write_nothing_more(home):
    """The journal refuses what a controller writes after another has taken over."""
    home.start_fleet(home.market((0.9, 2)))
    job = home.launch(home.spec(steps=40))
    home.until_step(job, 3)
    old = home.controller()
    os.kill(old, signal.SIGSTOP)
    # Without the locks, which only save work, nothing but the journal keeps the two apart.
    (home.path / "controller.lock").unlink()
    (home.path / "supervisor.lock").unlink()
    new = home.json("controller", "start")["pid"]
    assert new != old
    seen = len(home.story(job))
    home.until(lambda: len(home.story(job)) > seen + 1, "events of the new controller")
    os.kill(old, signal.SIGCONT)
    home.until(lambda: old not in home.processes(), "the end of the old controller")
    assert "another controller has written" in (home.path / "controller.log").read_text()
    assert home.until_over(job).status == "SUCCEEDED"
    accounted(home, job)

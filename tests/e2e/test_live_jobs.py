"""Real processes: fleet, controller, nodes and an own command, through the command line."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from duetune.core.events import Decided, Learned
from duetune.core.fleet import NodeState
from duetune.registry.policies import policy_named
from duetune.simulate.journal_replay import redecided
from duetune.training.tiny import build_tiny_model
from support.accounts import accounted, never_two_at_once
from support.live_home import LEFT_RUNNING, LiveHome
from support.more import MORE
from support.places import ROOT

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings(LEFT_RUNNING)]

CALM = ((0.9, 4),)
PREEMPTING = ((0.9, 4), (0.9, 4), (0.9, 0))


@pytest.fixture
def home(tmp_path):
    home = LiveHome(tmp_path)
    yield home
    home.close()


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A home with a fleet whose market never changes; the tests of a process share it."""
    home = LiveHome(tmp_path_factory.mktemp("calm"))
    home.start_fleet(home.market(*CALM))
    yield home
    home.close()


def test_a_job_runs_through_preemptions_and_leaves_a_bill_and_reasons(home):
    home.start_fleet(home.market(*PREEMPTING), notice=0.5, silent=0, run=home.run_program)
    done = home.run_program("launch", home.spec(steps=25, deadline="24h"), "--yes")
    job = home.json("queue", "--all")["jobs"][0]["id"]
    row = home.job(job)
    assert row.status == "SUCCEEDED"
    assert row.finished_at <= row.deadline_at
    assert row.preemptions >= 1
    assert "SUCCEEDED" in done.stdout
    nodes = accounted(home, job)
    assert never_two_at_once(nodes)
    assert [node for node in nodes if node.state is NodeState.LOST]
    # The story replays to the same decisions, and the pool has learnt from it.
    story = home.story(job)
    again = redecided(story, policy_named)
    assert again
    assert all(each.same for each in again)
    assert isinstance(story[-1].event, Learned)
    # Every way to look at it.
    looked = home.json("status", job)["status"]
    assert looked["job"]["status"] == "SUCCEEDED"
    explained = home.json("explain", job)["explanation"]
    assert len(explained["slots"]) == len([e for e in story if isinstance(e.event, Decided)])
    assert {run["policy"] for run in explained["whole_runs"]} >= {"on_demand", "maximal_spot"}
    slot = explained["slots"][0]["slot"]
    one = home.json("explain", job, slot)["explanation"]["slots"][0]
    assert one["others"]
    report = home.json("cost-report", "--by", "kind")
    assert report["total"] == pytest.approx(row.cost)
    assert "begins at step" in home.run("logs", job).stdout
    assert home.run("explain", job, 99, status=2).stderr.startswith("duetune: slot: 99")
    plot = home.folder / "run.png"
    home.run("explain", job, "--plot", plot)
    assert plot.stat().st_size > 10_000


@pytest.mark.more
def test_the_controller_is_killed_again_and_again_and_nothing_is_lost(home):
    home.start_fleet(home.market(*PREEMPTING), notice=0.5, silent=0.5)
    job = home.launch(home.spec(steps=40))
    for step in (3, 12, 24, 33):
        home.until_step(job, step)
        home.kill_controller()
        # Training goes on without anybody watching, unless its node is taken just then.
        home.until(
            lambda step=step: home.reached(job, step + 1) or not home.fleet_alive(job),
            f"step {step + 1}",
        )
        home.run("controller", "start")
    row = home.until_over(job)
    assert row.status == "SUCCEEDED"
    assert never_two_at_once(accounted(home, job))
    assert all(each.same for each in redecided(home.story(job), policy_named))


def test_a_controller_killed_at_one_crash_point_after_the_other_loses_nothing(calm):
    job = calm.launch(calm.spec(steps=30), DUETUNE_CRASH_AT="journal.append:before:1")
    for point in (
        *(("journal.append:after:1", "fleet.apply:before:1") if MORE else ()),
        "fleet.apply:after:1",
        "learning.append:before:1",
        "",
    ):
        calm.until(lambda: calm.controller() is None, "the crash")
        calm.run("controller", "start", DUETUNE_CRASH_AT=point)
    assert calm.until_over(job).status == "SUCCEEDED"
    calm.until(lambda: isinstance(calm.story(job)[-1].event, Learned), "what was learnt")
    assert never_two_at_once(accounted(calm, job))


def test_a_killed_worker_is_started_again_and_a_killed_agent_costs_its_node(calm):
    job = calm.launch(calm.spec(steps=40))
    calm.until_step(job, 3)
    worker = calm.process("pretend_trainer.py 40")
    os.kill(worker, signal.SIGKILL)
    calm.until_step(job, 6)
    agent = calm.parent(calm.process("bash -c"))
    os.kill(agent, signal.SIGKILL)
    row = calm.until_over(job)
    assert row.status == "SUCCEEDED"
    lost = [node for node in accounted(calm, job) if node.state is NodeState.LOST]
    assert len(lost) == 1


def test_cancel_pause_resume_and_amend_are_kept(calm):
    job = calm.launch(calm.spec(steps=200))
    calm.until_step(job, 2)
    calm.kill_controller()
    calm.json("pause", job)
    calm.until(lambda: calm.job(job).status == "PAUSED", "the pause")
    calm.until(lambda: not calm.fleet_alive(job), "the release of its node")
    earliest = calm.fleet().clock.now() + 20 * 3600
    assert "confirm with --yes" in calm.run("amend", job, "--budget", "$50", status=2).stderr
    soon = calm.run("amend", job, "--deadline", "31m", "--yes", status=2).stderr
    assert "the one GPU needs that long on demand for the rest" in soon
    calm.run("amend", job, "--deadline", "20h", "--budget", "$50", "--yes")
    latest = calm.fleet().clock.now() + 20 * 3600
    left_at = calm.step(job)
    calm.run("resume", job)
    calm.until_step(job, left_at + 2)
    row = calm.job(job)
    assert row.budget == 50
    assert earliest <= row.deadline_at <= latest
    assert (
        "which is already spent" in calm.run("amend", job, "--budget", "0.000001", status=2).stderr
    )
    calm.run("cancel", job)
    assert calm.until_over(job).status == "CANCELLED"
    accounted(calm, job)
    over = calm.run("cancel", job, status=2)
    assert over.stderr == (
        f"duetune: job: '{job}' is not allowed; expected a job that is still active; "
        "this one is CANCELLED\n"
    )


def test_the_budget_holds_while_the_controller_is_dead(home):
    home.start_fleet(home.market((2.0, 4)))
    # About ten slots of work at a dollar each, though nobody knows that, and a budget for three.
    job = home.launch(home.spec(steps=100, budget=3, deadline="2h"))
    home.until_step(job, 2)
    home.kill_controller()
    home.until(lambda: not home.fleet_alive(job), "the fleet's own limit")
    assert sum(node.billed for node in home.fleet().fleet.observe(job).nodes) <= 3.0
    home.run("controller", "start")
    home.run("cancel", job)
    row = home.until_over(job)
    assert row.cost <= 3.0
    accounted(home, job)


def test_a_command_that_can_never_work_fails_the_job_and_says_why(calm):
    spec = calm.spec(run=json.dumps("echo nothing to see here; exit 78"))
    done = calm.run("launch", spec, "--yes", status=1)
    assert "FAILED" in done.stdout
    job = calm.json("queue", "--all")["jobs"][0]["id"]
    assert calm.job(job).status == "FAILED"
    accounted(calm, job)
    assert "nothing to see here" in calm.run("logs", job).stdout


def test_secrets_reach_the_job_and_nothing_else(calm):
    spec = calm.spec(
        policy="auto",
        run=json.dumps('test "${#TOKEN}" = 12 && exec ' + calm.command(4, 0.1)),
        secrets="[TOKEN]",
    )
    refused = calm.run("launch", spec, "--yes", status=2)
    assert refused.stderr.startswith("duetune: secrets: 'TOKEN' is not allowed")
    job = calm.launch(spec, TOKEN="s3cr3t-value")  # noqa: S106 - made up
    assert calm.until_over(job).status == "SUCCEEDED"
    for path in calm.path.rglob("*"):
        if path.is_file() and path.name != "secrets.json":
            assert b"s3cr3t-value" not in path.read_bytes(), path


def test_an_own_command_that_ends_well_is_done(calm):
    job = calm.launch(calm.spec(run=json.dumps("echo all done")))
    row = calm.until_over(job)
    assert (row.status, row.reason) == ("SUCCEEDED", "its command exited with status 0")
    assert row.finished_at <= row.deadline_at
    accounted(calm, job)
    refused = calm.run("fleet", "start", "--max-gpus", 0, status=2)
    assert refused.stderr == "duetune: site.max_gpus: 0 is not allowed; expected 1 or more\n"


def test_an_own_command_with_a_range_of_gpus_is_started_once_per_gpu(calm):
    """Each member finds the coordinator and its secret; they end when both have come."""
    members = (
        'test -n "$DUETUNE_JOB_SECRET"; touch "$DUETUNE_JOB_DIR/member-$DUETUNE_NODE_ID"; '
        'until [ -s "$DUETUNE_COORDINATOR_FILE" ]; do sleep 0.05; done; '
        'until [ "$(ls "$DUETUNE_JOB_DIR" | grep -c ^member-)" -ge 2 ]; do sleep 0.05; done'
    )
    spec = calm.spec(run=json.dumps(members), resources="{accelerators: 'auto:1..2'}")
    job = calm.launch(spec)
    assert calm.until_over(job).status == "SUCCEEDED"
    accounted(calm, job)


@pytest.mark.more
def test_an_own_command_has_all_gpus_of_its_node(calm):
    run = json.dumps('echo $DUETUNE_GPUS > "$DUETUNE_JOB_DIR/gpus"')
    job = calm.launch(calm.spec(run=run, resources="{accelerators: 'auto:2'}"))
    assert calm.until_over(job).status == "SUCCEEDED"
    assert (calm.path / "jobs" / job / "gpus").read_text() == "2\n"


@pytest.mark.more
@pytest.mark.torch
def test_a_trl_script_trains_with_the_members_that_the_fleet_gives_it(home):
    # Slots in which the libraries can be imported, or the job seems to stand still.
    home.start_fleet(home.market(*CALM), slot_wall_s=20)
    build_tiny_model(home.folder / "model", hidden=32, layers=1, heads=2, seed=1)
    texts = home.folder / "texts.jsonl"
    texts.write_text("".join(f'{{"text": "After {n} comes {n + 1}."}}\n' for n in range(64)))
    script = ROOT / "examples" / "trl-sft" / "train.py"
    given = f"--model {home.folder}/model --data {texts} --steps 60"
    run = json.dumps(f"exec {sys.executable} {script} {given}")
    job = home.launch(home.spec(steps=60, run=run, resources="{accelerators: 'auto:2..3'}"))
    row = home.until_over(job)
    logs = home.run("logs", job).stdout
    assert row.status == "SUCCEEDED", logs
    accounted(home, job)
    assert "joining the group" in logs
    assert (home.path / "jobs" / job / "output" / "adapter_model.safetensors").is_file()


@pytest.mark.more
def test_an_own_command_that_keeps_crashing_has_failed(calm):
    job = calm.launch(calm.spec(run=json.dumps("exec nosuchprogram")))
    running = calm.run("fleet", "stop", status=2)
    assert f"jobs are running ({job})" in running.stderr
    row = calm.until_over(job)
    assert row.status == "FAILED"
    assert "given up" in calm.run("logs", job).stdout
    accounted(calm, job)

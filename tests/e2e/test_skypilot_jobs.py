"""Jobs through a real SkyPilot, which runs a Slurm cluster of the test's own."""

from __future__ import annotations

import json

import pytest

from duetune.core.events import Status
from duetune.core.fleet import NodeEnd, NodeState
from duetune.training.tiny import build_tiny_model
from support.live_home import ENGINE, LEFT_RUNNING, LiveHome
from support.patience import until
from support.sky_lab import PYTHON, SkyLab, missing
from support.tuning import TRAINING, progress, spec

pytestmark = [
    pytest.mark.live,
    pytest.mark.torch,
    pytest.mark.fleets,
    pytest.mark.filterwarnings(LEFT_RUNNING),
    pytest.mark.skipif(
        bool(missing()), reason=f"not here: {', '.join(missing())}; 'make skypilot' installs it"
    ),
]

MANAGED = """
name: {name}
resources:
  infra: slurm/lab
  cpus: 1
  memory: 1
  job_recovery:
    strategy: duetune
    deadline: 2h
    work: 10m
    restart: 2m
    tick: 1m
    spot: slurm/lab/spot
    on_demand: slurm/lab/guaranteed
run: |
  echo "on $SLURM_JOB_PARTITION" >> {log}
  {wait}
  echo "done on $SLURM_JOB_PARTITION" >> {log}
"""


@pytest.fixture(scope="module")
def lab():
    with SkyLab(managed=True) as found:
        yield found


@pytest.fixture
def home(tmp_path, lab, monkeypatch):
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)
    found = LiveHome(tmp_path)
    found.use_engine(
        "skypilot",
        sky_python=PYTHON,
        spot="slurm/lab/spot",
        on_demand="slurm/lab/guaranteed",
        cpus=1,
        memory=1,
        refresh_s=5,
        answer_s=120,
        max_gpus=1,
        spot_gpus=1,
        startup_s=20,
        withdraw_minutes=30,
        slot_minutes=1,
        microbatch_s=0.3,
    )
    yield found
    found.close()
    lab.clear()


def test_a_fine_tune_through_skypilot_survives_a_preemption(home, lab, tmp_path):
    assert home.run("fleet", "check", ENGINE).returncode == 0
    model = build_tiny_model(tmp_path / "model", hidden=32, layers=1, heads=2, seed=3)
    training = {**TRAINING, "max_steps": 60}
    job = home.launch(spec(home, model, deadline="4h", training=json.dumps(training)))
    home.until(lambda: progress(home, job), "progress")

    for number in range(2):
        lab.slurm.submit(f"urgent-{number}", "guaranteed", "sleep 600", "--exclusive")
    home.until(
        lambda: any(each.node.end is NodeEnd.CAPACITY for each in home.entries(job)),
        "a preemption",
    )
    for number in range(2):
        lab.slurm.run("scancel", f"--name=urgent-{number}")

    row = home.until_over(job)
    assert row.status is Status.SUCCEEDED, home.logs()
    found = home.entries(job)
    assert NodeState.LOST in {each.node.state for each in found}
    assert row.spent == pytest.approx(sum(each.node.billed for each in found), rel=1e-6)
    home.until(lambda: lab.slurm.run("squeue", "-h") == "", "an empty queue")
    assert "No existing clusters" in lab.sky("status")


def test_a_managed_job_of_skypilot_keeps_its_deadline_by_our_strategy(lab, tmp_path):
    """It begins on spot. Its machine is taken, and it starts again."""
    log, gate = tmp_path / "managed.log", tmp_path / "gate"
    task = tmp_path / "task.yaml"
    wait = f"until [ -e {gate} ]; do sleep 1; done"
    task.write_text(MANAGED.format(log=log, wait=wait, name=f"{lab.prefix}kept"))
    lab.sky("jobs", "launch", "--yes", "--detach-run", str(task))

    def told():
        controller = lab.home.glob("sky_logs/jobs_controller/*.log")
        logs = [each.read_text()[-3000:] for each in controller]
        return "\n".join([lab.sky("jobs", "queue"), *logs, lab.story()])

    until(lambda: " RUNNING " in lab.sky("jobs", "queue"), "a start", story=told, every_s=2)
    until(lambda: log.exists() and "on spot" in log.read_text(), "spot", story=told, every_s=1)
    for number in range(2):
        lab.slurm.submit(f"urgent-{number}", "guaranteed", "sleep 600", "--exclusive")
    until(lambda: "RECOVERING" in lab.sky("jobs", "queue"), "a recovery", story=told, every_s=2)
    for number in range(2):
        lab.slurm.run("scancel", f"--name=urgent-{number}")
    gate.touch()
    until(lambda: "done on" in log.read_text(), "its end", story=told, every_s=1)
    until(lambda: "SUCCEEDED" in lab.sky("jobs", "queue", "--all"), story=told, every_s=2)
    assert log.read_text().count("\non ") >= 1
    lab.clear()

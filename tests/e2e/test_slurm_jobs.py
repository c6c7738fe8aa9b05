"""Jobs on a Slurm cluster of the test's own, from the command line to the result."""

from __future__ import annotations

import json

import pytest

from duetune.core.events import Status
from duetune.core.fleet import NodeEnd
from duetune.training.tiny import build_tiny_model
from support.accounts import as_well_trained, billed_by_the_clock
from support.live_home import ENGINE, LEFT_RUNNING, LiveHome
from support.slurm_lab import SlurmLab, missing
from support.tuning import TRAINING, progress, spec, unpublished

pytestmark = [
    pytest.mark.live,
    pytest.mark.torch,
    pytest.mark.fleets,
    pytest.mark.filterwarnings(LEFT_RUNNING),
    pytest.mark.skipif(
        bool(missing()), reason="no Slurm on this machine: 'make slurm' installs it"
    ),
]


@pytest.fixture(scope="module")
def lab():
    with SlurmLab(nodes=4, grace_s=10) as found:
        yield found


@pytest.fixture
def home(tmp_path, lab):
    found = LiveHome(tmp_path)
    found.use_engine(
        "slurm",
        conf=lab.conf,
        spot="spot",
        on_demand="guaranteed",
        max_gpus=3,
        slot_minutes=0.2,
        startup_s=2,
        resize_s=2,
        timeout_s=60,
        microbatch_s=0.15,
    )
    yield found
    found.close()
    lab.clear()


def members(home, job, count):
    home.until(lambda: [each for each in progress(home, job) if each.world == count], "members")


def test_a_fine_tune_on_slurm_survives_all_that_can_happen_to_it(home, lab, tmp_path):
    """A preemption with notice, a machine that fails, and restarts of both controllers."""
    assert home.run("fleet", "check", ENGINE).returncode == 0
    model = build_tiny_model(tmp_path / "model", hidden=32, layers=1, heads=2, seed=3)
    training = {**TRAINING, "max_steps": 80, "gradient_accumulation_steps": 6}
    fields = {"deadline": "2h", "training": json.dumps(training)}
    calm = home.launch(spec(home, model, **fields))
    assert home.until_over(calm).status is Status.SUCCEEDED, home.logs()
    job = home.launch(spec(home, model, **fields))
    members(home, job, 3)

    lab.submit("urgent-1", "guaranteed", "sleep 600")
    lab.submit("urgent-2", "guaranteed", "sleep 600")
    home.until(
        lambda: any(each.node.end is NodeEnd.CAPACITY for each in home.entries(job)),
        "a preemption",
    )
    for name in ("urgent-1", "urgent-2"):
        lab.run("scancel", f"--name={name}")

    def running():
        return [each for each in home.held(job) if lab.place(each.name)]

    def victims_end():
        ends = {each.node.id: each.node.end for each in home.entries(job)}
        return ends[victim.node.id]

    # The job cannot end before the loss is noticed, however slow that is.
    with unpublished(home.settings.folder(job)):
        victim = home.until(running, "a running node")[0]
        machine = lab.place(victim.name)
        lab.fail(machine)
        lab.kill("slurmctld")
        home.kill_controller()
        home.run_program("controller", "start")
        lab.start_controller()
        lab.start_node(machine)
        assert home.until(victims_end, "the loss") in {NodeEnd.DIED, NodeEnd.CRASHED}

    assert home.until_over(job).status is Status.SUCCEEDED, home.logs()
    billed_by_the_clock(home, job)

    def queued():
        # A controller killed at once after a cancel has forgotten the cancel.
        names = lab.run("squeue", "-h", "-o", "%j").split()
        return [name for name in names if not name.startswith("urgent")]

    home.until(lambda: not queued(), "a queue without nodes of ours")
    as_well_trained(home, calm, job)

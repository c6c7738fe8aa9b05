"""Jobs on a Ray cluster of the test's own, from the command line to the result."""

from __future__ import annotations

import json

import pytest

from duetune.core.events import Status
from duetune.core.fleet import NodeEnd, NodeKind
from duetune.training.tiny import build_tiny_model
from support.accounts import as_well_trained, billed_by_the_clock
from support.live_home import ENGINE, LEFT_RUNNING, LiveHome
from support.ray_lab import made_lab
from support.tuning import TRAINING, progress, spec, unpublished

pytestmark = [
    pytest.mark.live,
    pytest.mark.torch,
    pytest.mark.fleets,
    pytest.mark.filterwarnings(LEFT_RUNNING),
]


@pytest.fixture(scope="module")
def lab():
    found = made_lab()
    try:
        found.start("spot", "spot", "spot", "on-demand")
        yield found
    finally:
        found.stop()


@pytest.fixture
def home(tmp_path, lab):
    found = LiveHome(tmp_path)
    found.use_engine(
        "ray",
        address=lab.address,
        answer_s=60,
        max_gpus=3,
        slot_minutes=0.2,
        startup_s=2,
        resize_s=2,
        microbatch_s=0.15,
    )
    yield found
    found.close()


def test_a_fine_tune_on_ray_survives_a_drain_a_dead_machine_and_a_new_head(home, lab, tmp_path):
    assert home.run("fleet", "check", ENGINE).returncode == 0
    model = build_tiny_model(tmp_path / "model", hidden=32, layers=1, heads=2, seed=3)
    training = {**TRAINING, "max_steps": 80, "gradient_accumulation_steps": 6}
    path = spec(home, model, deadline="2h", training=json.dumps(training))
    calm = home.launch(path)
    assert home.until_over(calm).status is Status.SUCCEEDED, home.logs()
    job = home.launch(path)
    home.until(lambda: [each for each in progress(home, job) if each.world == 3], "three members")

    def on_spot():
        """Return the running spot nodes with their machines."""
        return [
            (each.node.id, machine)
            for each in home.held(job)
            if each.node.kind is NodeKind.SPOT
            if (machine := lab.machine_of(each.name)) is not None
        ]

    def end_of(node):
        return next(each.node.end for each in home.entries(job) if each.node.id == node)

    # The job cannot end before the losses are noticed, however slow that is.
    with unpublished(home.settings.folder(job)):
        node, machine = home.until(on_spot, "a spot node")[0]
        lab.drain(machine, 60.0)
        assert home.until(lambda: end_of(node), "a preemption") is NodeEnd.CAPACITY
        lab.heal()
        node, machine = home.until(on_spot, "another spot node")[0]
        lab.kill(machine)
        lab.kill_head()
        home.kill_controller()
        home.run_program("controller", "start")
        lab.restart_head()
        # The guard of the node lets it leave in good order if there is time for that.
        ends = {NodeEnd.DIED, NodeEnd.CAPACITY}
        assert home.until(lambda: end_of(node), "the end of the machine") in ends
    lab.heal()
    assert home.until_over(job).status is Status.SUCCEEDED, home.logs()
    billed_by_the_clock(home, job)
    home.until(lambda: not lab.actors(), "a cluster without nodes of ours")
    as_well_trained(home, calm, job)

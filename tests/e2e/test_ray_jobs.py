"""Jobs on a Ray cluster of the test's own, from the command line to the result."""

from __future__ import annotations

import json

import pytest

from duetune.core.events import Status
from duetune.core.fleet import NodeEnd, NodeKind, NodeState
from duetune.fleets.node_ledger import NodeLedger
from duetune.settings import load_settings
from duetune.training.tiny import build_tiny_model
from support.live_home import LEFT_RUNNING, LiveHome
from support.ray_lab import ray_lab
from support.tuning import TRAINING, spec

__all__ = ["ray_lab"]

pytestmark = [
    pytest.mark.live,
    pytest.mark.torch,
    pytest.mark.fleets,
    pytest.mark.filterwarnings(LEFT_RUNNING),
]


@pytest.fixture
def home(tmp_path, ray_lab):
    found = LiveHome(tmp_path)
    found.run(
        *("fleet", "add", "cluster", "--engine", "ray", "--set", f"address={ray_lab.address}"),
        *("--set", "answer_s=60", "--set", "max_gpus=3"),
        *("--set", f"slot_minutes={0.2 * found.slowness}", "--set", "startup_s=2"),
        *("--set", "resize_s=2"),
    )
    emulated = f"emulated_microbatch_s = {0.15 * found.slowness}"
    (found.path / "config.toml").write_text(f'[site]\nfleet = "cluster"\n{emulated}\n')
    found.settings = load_settings(found.environment)
    yield found
    found.close()


def test_a_fine_tune_on_ray_survives_a_drain_a_dead_machine_and_a_new_head(home, ray_lab, tmp_path):
    assert home.run("fleet", "check", "cluster").returncode == 0
    model = build_tiny_model(tmp_path / "model", hidden=32, layers=1, heads=2, seed=3)
    training = {**TRAINING, "max_steps": 80, "gradient_accumulation_steps": 6}
    job = home.launch(spec(home, model, deadline="2h", training=json.dumps(training)))

    def nodes():
        with home.store() as store:
            return NodeLedger(store.ledger("cluster")).of_job(job)

    def on_spot():
        """Return the machines of the running spot nodes."""
        return [
            machine
            for each in nodes()
            if each.node.state is NodeState.RUNNING and each.node.kind is NodeKind.SPOT
            if (machine := ray_lab.machine_of(each.name)) is not None
        ]

    def ended(end):
        return any(each.node.end is end for each in nodes())

    ray_lab.drain(home.until(on_spot, "a spot node")[0], 60.0)
    home.until(lambda: ended(NodeEnd.CAPACITY), "a preemption")
    ray_lab.heal()
    ray_lab.kill(home.until(on_spot, "another spot node")[0])
    ray_lab.kill_head()
    ray_lab.restart_head()
    home.until(lambda: ended(NodeEnd.DIED), "the end of the machine")
    ray_lab.heal()
    assert home.until_over(job).status is Status.SUCCEEDED, home.logs()

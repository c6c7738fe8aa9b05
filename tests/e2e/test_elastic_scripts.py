"""TRL scripts as members of a group that are killed, told to leave and joined by others."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest

from duetune.core.node_contract import DONE, LEFT
from duetune.core.progress import Phase
from duetune.training.checkpoint import CheckpointStore
from support.elastic_job import ElasticJob
from support.later import later
from support.places import ROOT

for name in ("torch", "torchft", "peft", "trl"):
    later(name)

pytestmark = [pytest.mark.live, pytest.mark.torch]

STEPS = 16
JOINING = "joining the group"


@pytest.fixture(scope="module")
def inputs(nursery, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    nursery.build_model(folder / "model", seed=1)
    texts = [f"After {n} comes {n + 1}." for n in range(40)]
    pairs = [
        {"prompt": f"After {n} comes ", "chosen": f"{n + 1}.", "rejected": f"{n - 1}!"}
        for n in range(40)
    ]
    for file, rows in (("sft", [{"text": text} for text in texts]), ("dpo", pairs)):
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def job(nursery, inputs, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    made = []

    def make(name, method, steps=STEPS):
        command = [
            ROOT / "examples" / f"trl-{method}" / "train.py",
            *("--model", inputs / "model", "--data", inputs / method),
            *("--steps", steps, "--save-steps", 3, "--folder", tmp_path / name / "trainer"),
        ]
        made.append(ElasticJob(nursery, tmp_path / name, command=command))
        return made[-1]

    yield make
    for each in made:
        each.close()


def adapter(job):
    """The trained numbers, in the order of the file."""
    header = int.from_bytes(job.adapter[:8], "little")
    return np.frombuffer(job.adapter[8 + header :], dtype=np.float32)


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_members_of_a_trl_script_join_leave_and_are_killed(job, method):
    calm = job("calm", method)
    calm.coordinate()
    calm.launch("alone")

    rough = job("rough", method)
    rough.coordinate()
    rough.launch("n1")
    rough.allow(1)
    rough.launch("n2", "n3")
    rough.said("n2", JOINING)
    rough.said("n3", JOINING)
    rough.allow_until(world=3)
    # In the middle of a step, whose share the others must take over.
    rough.kill("n2")
    rough.allow_until(world=2)
    # The leader leaves when told to, and saves what it has.
    rough.signal(signal.SIGTERM, "n1")
    rough.allow_until(world=1)
    assert rough.code("n1") == LEFT
    while CheckpointStore(rough.folder / "checkpoints", epoch=0).latest() is None:
        # The next leader may have taken over before the last one could save.
        rough.allow(rough.progress.step + 1)
    rough.kill("n3")
    rough.launch("n4", "n5")
    rough.said("n4", "continuing from step")
    rough.end_gate()
    assert [rough.code("n4"), rough.code("n5"), calm.code("alone")] == [DONE, DONE, DONE]

    assert rough.result.steps == rough.progress.step == STEPS
    assert rough.progress.phase is Phase.FINISHED
    assert rough.progress.checkpoint_step == STEPS
    assert rough.result.tokens == calm.result.tokens > 0
    assert rough.result.loss == pytest.approx(calm.result.loss, rel=0.01)
    assert adapter(rough) == pytest.approx(adapter(calm), rel=0.01, abs=1e-4)


def test_a_trl_script_with_one_node_is_killed_noticed_and_finished(job):
    """Without a group the Trainer's own checkpoints are published and resumed from."""
    single = job("single", "sft", steps=12)
    single.launch("n1")
    single.allow(4)
    single.kill("n1")
    store = CheckpointStore(single.folder / "checkpoints", 0)
    assert store.latest().step == 3

    single.launch("n2")
    single.allow(7)
    single.signal(signal.SIGTERM, "n2")
    single.end_gate()
    assert single.code("n2") == LEFT
    left = store.latest()
    assert left.step in {7, 8}
    assert left.epoch == 2
    assert not (single.folder / "output").exists()

    single.launch("n3")
    assert single.code("n3") == DONE
    done = single.progress
    assert (done.phase, done.step, done.total_steps) == (Phase.FINISHED, 12, 12)
    assert done.output == str(single.folder / "output")
    assert single.adapter
    state = json.loads((store.latest().files / "trainer_state.json").read_text())
    steps = [entry["step"] for entry in state["log_history"] if "loss" in entry]
    assert steps == list(range(1, 13)), "every step once, over three nodes"


@pytest.mark.more
@pytest.mark.parametrize("objective", ["grpo", "rloo", "reward", "orpo"])
def test_members_with_another_objective_are_killed_and_joined(nursery, inputs, tmp_path, objective):
    script = ROOT / "tests" / "support" / "objectives_script.py"
    command = [script, objective, inputs / "model", 8, tmp_path / "trainer"]
    rough = ElasticJob(nursery, tmp_path / "job", command=command)
    try:
        rough.coordinate()
        rough.launch("n1", "n2")
        rough.allow(1)
        rough.allow_until(world=2)
        rough.kill("n2")
        rough.launch("n3")
        rough.said("n3", JOINING)
        rough.allow(rough.progress.step + 1)
        rough.end_gate()
        assert [rough.code("n1"), rough.code("n3")] == [DONE, DONE]
    finally:
        rough.close()
    assert rough.result.steps == rough.progress.step == 8
    if objective in {"grpo", "rloo"}:
        # Members generate for one prompt at a time, never for the whole batch of eight.
        assert set((tmp_path / "trainer.rows").read_text().split()) == {"4"}

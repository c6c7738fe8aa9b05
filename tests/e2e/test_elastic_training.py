"""Training by real processes that are killed, stopped, told to leave and joined by others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from duetune.core.node_contract import DONE, HOPELESS, LEFT
from duetune.core.progress import Phase
from duetune.training.checkpoint import CheckpointStore
from duetune.training.task import TrainingMethod, TrainingTask
from support.elastic_job import ElasticJob, Nursery
from support.later import later
from support.patience import slowness, until

for name in ("torch", "torchft", "peft"):
    later(name)

pytestmark = [pytest.mark.live, pytest.mark.torch]


@pytest.fixture(scope="module")
def nursery():
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="module")
def task(nursery, tmp_path_factory):
    """Steps of five microbatches, which no number of members but one and five divides."""
    folder = tmp_path_factory.mktemp("inputs")
    nursery.build_model(folder / "model")
    with (folder / "rows.jsonl").open("w") as file:
        for number in range(60):
            row = {"prompt": f"{number} + 1 = ", "completion": f"{number + 1}"}
            file.write(json.dumps(row) + "\n")
    return TrainingTask(
        model=str(folder / "model"),
        dataset=str(folder / "rows.jsonl"),
        max_steps=40,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=5,
        learning_rate=1e-2,
        lora_dropout=0.1,
        weight_decay=0.01,
        warmup_steps=3,
        eval_fraction=0.2,
        checkpoint_every_s=0.5,
        emulated_microbatch_s=0.03 * slowness(),
        logging_steps=5,
        reproducible=True,
    )


@pytest.fixture
def job(nursery, task, tmp_path):
    made = []

    def make(name="job", **fields):
        wished = msgspec.structs.replace(task, **fields)
        made.append(ElasticJob(nursery, tmp_path / name, wished))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_losses_and_resizes_leave_no_trace_in_the_result(job):
    calm = job("calm", emulated_microbatch_s=None)
    calm.launch("alone")
    assert calm.code("alone") == DONE

    rough = job("rough", max_steps=40)
    rough.coordinate()
    rough.launch("n1")
    rough.reach(2, world=1)
    rough.launch("n2")
    rough.steps_more(2, world=2)
    rough.launch("n3")
    rough.steps_more(2, world=3)
    rough.kill("n2")
    rough.steps_more(2, world=2)
    # The leader leaves when told to, and saves what it has.
    rough.signal(signal.SIGTERM, "n1")
    assert rough.code("n1") == LEFT
    assert CheckpointStore(rough.folder / "checkpoints", epoch=0).latest() is not None
    rough.steps_more(2, world=1)
    rough.lose_coordinator()
    rough.coordinate()
    rough.launch("n4")
    rough.steps_more(2, world=2)
    rough.signal(signal.SIGSTOP, "n3")
    rough.steps_more(2, world=1)
    rough.signal(signal.SIGCONT, "n3")
    rough.steps_more(2, world=2)
    rough.kill("n3", "n4")
    rough.launch("n5", "n6")
    assert [rough.code("n5"), rough.code("n6")] == [DONE, DONE]
    assert "continuing from step" in rough.log("n5")

    assert rough.result == calm.result
    assert rough.adapter == calm.adapter
    assert rough.result.eval_loss < rough.result.base_eval_loss
    assert rough.progress.phase is Phase.FINISHED
    assert rough.progress.step == rough.progress.checkpoint_step == 40
    assert rough.progress.output == str(rough.folder / "output")


@pytest.mark.more
def test_a_member_that_wakes_after_the_end_changes_nothing(job):
    late = job(max_steps=14)
    late.coordinate()
    late.launch("n1", "n2")
    late.reach(3, world=2)
    # The leader: it believes it may save and report until it learns otherwise.
    late.signal(signal.SIGSTOP, "n1")
    assert late.code("n2") == DONE
    before = {path.name: path.stat().st_mtime_ns for path in (late.folder / "output").iterdir()}
    late.signal(signal.SIGCONT, "n1")
    assert late.code("n1") == DONE
    late.launch("n3")
    assert late.code("n3") == DONE
    assert before == {
        path.name: path.stat().st_mtime_ns for path in (late.folder / "output").iterdir()
    }
    assert late.progress.phase is Phase.FINISHED
    assert late.progress.eval_loss == late.result.eval_loss


def test_a_worker_that_a_later_launch_has_replaced_can_save_nothing_more(job):
    """The fence between writers fires in real processes, and the result is the right one."""
    calm = job("calm", max_steps=30, emulated_microbatch_s=None)
    calm.launch("alone")
    stale = job("stale", max_steps=30, checkpoint_every_s=0.1)
    stale.launch("old")
    checkpoints = CheckpointStore(stale.folder / "checkpoints", epoch=0)
    until(checkpoints.latest, "a checkpoint of the old worker")
    stale.signal(signal.SIGSTOP, "old")
    before = checkpoints.latest()
    stale.launch("new")
    newer = until(
        lambda: (found := checkpoints.latest()).epoch > before.epoch and found,
        "a checkpoint of the new worker",
    )
    # It still believes that it is the only writer.
    stale.signal(signal.SIGCONT, "old")
    assert stale.code("old") == LEFT
    assert f"epoch {newer.epoch} has taken over" in stale.log("old")
    assert checkpoints.latest().epoch == newer.epoch
    assert stale.code("new") == DONE
    assert calm.code("alone") == DONE
    assert stale.result == calm.result
    assert stale.adapter == calm.adapter


def test_all_weights_are_trained_together_too(job):
    full = job(method=TrainingMethod.FULL, max_steps=8, learning_rate=1e-3)
    full.coordinate()
    full.launch("n1", "n2")
    assert [full.code("n1"), full.code("n2")] == [DONE, DONE]
    assert (full.folder / "output" / "model.safetensors").exists()
    assert full.result.eval_loss < full.result.base_eval_loss


def test_a_notice_file_alone_makes_a_member_leave(job):
    given = job()
    given.launch("n1")
    given.reach(2)
    (given.folder / "notice-n1.json").write_text(json.dumps({"taken_at": time.time() + 600}))
    assert given.code("n1") == LEFT
    step = CheckpointStore(given.folder / "checkpoints", epoch=0).latest().step
    assert step >= given.progress.step
    assert (given.folder / "heartbeats" / "n1").exists()


@pytest.mark.more
def test_a_save_that_fails_does_not_stop_the_training(job):
    unsaved = job(checkpoint_every_s=0.1)
    (unsaved.folder / "checkpoints").mkdir()
    (unsaved.folder / "checkpoints" / "writers").write_text("no folder can be made here")
    unsaved.launch("n1")
    unsaved.reach(15)
    assert "could not be saved" in unsaved.progress.message
    assert unsaved.code("n1") == DONE
    assert "could not be saved" in unsaved.log("n1")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dataset": "/nowhere/rows.jsonl"}, "dataset: '/nowhere/rows.jsonl'"),
        ({"model": "/nowhere/model"}, "model: '/nowhere/model'"),
        ({"max_length": 100_000, "lora_target_modules": "nothing"}, "lora_target_modules"),
    ],
)
def test_what_can_never_work_fails_at_once_with_one_line(job, fields, words):
    hopeless = job(**fields)
    hopeless.launch("n1")
    assert hopeless.code("n1") == HOPELESS
    assert hopeless.progress.phase is Phase.FAILED
    assert hopeless.progress.message.startswith(words)
    assert "\n" not in hopeless.progress.message


def test_without_the_extra_it_says_what_to_install(job, tmp_path):
    bare = job()
    code = (
        "import sys; sys.modules['torchft'] = None; sys.modules['torch'] = None;"
        "from duetune.training.worker import main; sys.exit(main())"
    )
    environment = {
        "DUETUNE_JOB_ID": "job",
        "DUETUNE_NODE_ID": "n1",
        "DUETUNE_EPOCH": "1",
        "DUETUNE_JOB_DIR": str(bare.folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == HOPELESS, done.stderr
    assert "pip install 'duetune[train]'" in bare.progress.message


def test_the_coordinator_ends_with_whoever_started_it(tmp_path):
    code = (
        "import subprocess, sys, pathlib, time\n"
        "file = pathlib.Path(sys.argv[1])\n"
        "child = subprocess.Popen([sys.executable, '-m', 'duetune.training.coordinator',"
        " '--address-file', file])\n"
        "while not file.exists(): time.sleep(0.01)\n"
        "print(child.pid)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "address"],
        env=os.environ | {"DUETUNE_JOB_DIR": str(tmp_path), "DUETUNE_JOB_SECRET": "x" * 32},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (tmp_path / "address").read_text().startswith("tcp://127.0.0.1:")
    coordinator = Path(f"/proc/{int(done.stdout)}/cmdline")
    until(lambda: not coordinator.exists(), "the end of the coordinator")

"""Training by real processes that are killed, stopped, told to leave and joined by others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from duetune.core.node_contract import DONE, HOPELESS, LEFT
from duetune.core.progress import Phase
from duetune.storage.folder_storage import FolderStorage
from duetune.training.checkpoint import CheckpointStore
from duetune.training.coordinator_seat import StorageSeats
from duetune.training.network_address import Endpoint
from duetune.training.task import (
    EvalStrategy,
    OptimiserName,
    Schedule,
    TrainingMethod,
    TrainingPrecision,
    TrainingTask,
)
from support.elastic_job import ElasticJob
from support.later import later
from support.patience import slowness, until
from support.pretended_s3 import CREDENTIALS

for name in ("torch", "torchft", "peft"):
    later(name)

pytestmark = [pytest.mark.live, pytest.mark.torch]


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
    evaluated = {
        "eval_strategy": EvalStrategy.STEPS,
        "eval_steps": 3,
        "load_best_model_at_end": True,
    }
    calm = job("calm", emulated_microbatch_s=None, **evaluated)
    calm.launch("alone")
    assert calm.code("alone") == DONE

    rough = job("rough", max_steps=40, **evaluated)
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
    # Every step is in the metrics once, with the same losses; the last one is evaluated, too.
    assert [(row.step, row.loss, row.eval_loss) for row in rough.metrics] == [
        (row.step, row.loss, row.eval_loss) for row in calm.metrics
    ]
    assert [row.step for row in rough.metrics] == list(range(1, 41))
    measured = {row.step: row.eval_loss for row in rough.metrics if row.eval_loss is not None}
    assert list(measured) == [*range(3, 40, 3), 40]
    assert {row.members for row in rough.metrics} == {1, 2, 3}
    assert rough.result.eval_loss == min(measured.values()) == measured[rough.result.best_step]


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


@pytest.mark.more
def test_another_node_runs_the_coordinator_when_its_node_dies_or_hangs(job):
    """Three nodes with an address each and encrypted connections, as on three machines."""
    calm = job("calm", emulated_microbatch_s=None, max_steps=80)
    calm.launch("alone")
    assert calm.code("alone") == DONE

    rough = job("rough", max_steps=80)
    for number, name in enumerate(("n1", "n2", "n3"), 1):
        node = {"DUETUNE_BIND": f"127.0.0.{number}", "DUETUNE_TLS": "1"}
        rough.launch(name, **node, DUETUNE_COORDINATOR_FILE=rough.stand_by(name, **node))
    rough.reach(3, world=3)
    seats = StorageSeats(FolderStorage(rough.folder / "coordinators"))
    assert seats.newest().number == 1
    assert seats.newest().address.startswith("tls://127.0.0.1:")
    rough.lose_candidate("n1")
    rough.kill("n1")
    until(lambda: seats.newest().number == 2, "another coordinator")
    rough.steps_more(2, world=2)
    served_by = {"127.0.0.2": "n2", "127.0.0.3": "n3"}
    holder = served_by[Endpoint.of(seats.newest().address).host]
    # It holds its port and its connections, answers nobody, and tells its member nothing.
    rough.lose_candidate(holder, signal.SIGSTOP)
    until(lambda: seats.newest().number == 3, "another coordinator")
    rough.steps_more(2, world=1)
    rough.lose_candidate(holder, signal.SIGCONT)
    rough.steps_more(2, world=2)
    assert [rough.code("n2"), rough.code("n3")] == [DONE, DONE]
    assert seats.newest().number == 3
    assert rough.adapter == calm.adapter


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


def test_training_ends_early_for_all_members_and_once(job):
    short = job(
        eval_strategy=EvalStrategy.STEPS,
        eval_steps=5,
        early_stopping_patience=2,
        # No loss is lower by that much, so the first evaluation stays the one to beat.
        early_stopping_threshold=100.0,
    )
    short.coordinate()
    short.launch("n1", "n2")
    short.reach(3, world=2)
    # Another member leads from now on.
    short.signal(signal.SIGTERM, "n1")
    assert short.code("n1") == LEFT
    short.launch("n3")
    assert [short.code("n2"), short.code("n3")] == [DONE, DONE]
    words = "stopped early at step 15 of 40: evaluation loss has not improved for 2 evaluations"
    assert short.result.stopped == short.progress.message == words
    assert short.progress.step == short.progress.total_steps == 15
    assert [(row.step, row.run) for row in short.metrics] == [(n, "job") for n in range(1, 16)]
    assert [row.step for row in short.metrics if row.eval_loss] == [5, 10, 15]
    before = short.result
    # If the result is lost, the checkpoint knows that training is over.
    shutil.rmtree(short.folder / "output")
    short.launch("n4")
    assert short.code("n4") == DONE
    assert short.result == before


def test_the_best_state_is_published_whatever_was_pruned(job, tmp_path):
    # What is learnt from the rows makes these ones less likely.
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt": "7 + 1 = ", "completion": "zebras"}\n')
    fields = {
        "learning_rate": 5.0,
        "eval_dataset": str(other),
        "lr_scheduler_type": Schedule.CONSTANT,
        "emulated_microbatch_s": None,
        "warmup_steps": 0,
        "max_steps": 12,
    }
    best = job(
        "best",
        checkpoint_every_s=1e-3,
        eval_strategy=EvalStrategy.STEPS,
        eval_steps=1,
        load_best_model_at_end=True,
        **fields,
    )
    best.launch("n1", DUETUNE_CHECKPOINT_KEEP="1")
    assert best.code("n1") == DONE
    measured = {row.step: row.eval_loss for row in best.metrics}
    step = best.result.best_step
    assert measured[step] == min(measured.values()) == best.result.eval_loss
    assert step < 11, measured
    assert best.progress.best_step == step
    plain = job("plain", **(fields | {"max_steps": step}))
    plain.launch("n1")
    assert plain.code("n1") == DONE
    assert best.adapter == plain.adapter


@pytest.mark.parametrize(
    "fields",
    [
        {
            "method": TrainingMethod.FULL,
            "precision": TrainingPrecision.BF16,
            "optim": OptimiserName.ADAFACTOR,
        },
        pytest.param(
            {"method": TrainingMethod.QLORA, "optim": OptimiserName.ADAMW_8BIT},
            marks=pytest.mark.more,  # every process imports bitsandbytes
        ),
    ],
    ids=["pure-bf16", "qlora"],
)
def test_members_of_other_methods_join_and_are_lost_without_a_trace(job, fields):
    calm = job("calm", max_steps=8, emulated_microbatch_s=None, **fields)
    calm.launch("alone")
    assert calm.code("alone") == DONE
    rough = job("rough", max_steps=8, **fields)
    rough.coordinate()
    rough.launch("n1")
    rough.reach(1, world=1)
    rough.launch("n2")
    rough.reach(3, world=2)
    rough.kill("n1")
    assert rough.code("n2") == DONE
    assert rough.result == calm.result
    for file in (calm.folder / "output").glob("*.safetensors"):
        assert file.read_bytes() == (rough.folder / "output" / file.name).read_bytes()
    assert calm.result.eval_loss < calm.result.base_eval_loss


def test_a_job_moves_to_a_machine_that_shares_no_disk(job, s3_url, monkeypatch):
    """Each machine has a job's folder of its own; only the checkpoints are in a bucket."""
    calm = job("calm", emulated_microbatch_s=None, max_steps=12)
    calm.launch("alone")
    assert calm.code("alone") == DONE
    monkeypatch.setenv("DUETUNE_CHECKPOINT_URL", s3_url)
    first, second = job("first", max_steps=12), job("second", max_steps=12)
    first.coordinate()
    bucket = {"DUETUNE_CHECKPOINT_URL": s3_url, **CREDENTIALS}
    first.launch("n1", **bucket)
    first.reach(4)
    first.signal(signal.SIGTERM, "n1")
    assert first.code("n1") == LEFT
    assert not (first.folder / "checkpoints").exists()
    step = CheckpointStore(s3_url, 0).latest().step
    second.coordinate()
    second.launch("n2", "n3", **bucket)
    assert [second.code(name) for name in ("n2", "n3")] == [DONE, DONE]
    assert f"continuing from step {step}" in second.log("n2") + second.log("n3")
    assert second.adapter == calm.adapter

"""Members of several processes, each with a shard of the model, that join, leave and are killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import msgspec
import pytest

from duetune.core.node_contract import DONE, HOPELESS, LEFT
from duetune.training.checkpoint import CheckpointStore
from duetune.training.task import OptimiserName, TrainingMethod, TrainingTask
from support.elastic_job import ElasticJob
from support.later import later
from support.patience import slowness, until

for name in ("torch", "torchft", "peft"):
    later(name)

pytestmark = [pytest.mark.live, pytest.mark.torch]


@pytest.fixture(scope="module")
def task(nursery, tmp_path_factory):
    """Rows of several lengths, so that processes have different numbers of microbatches."""
    folder = tmp_path_factory.mktemp("inputs")
    nursery.build_model(folder / "model")
    with (folder / "rows.jsonl").open("w") as file:
        for number in range(60):
            row = {"prompt": f"{number} + 1 = " * (1 + number % 3), "completion": f"{number + 1}"}
            file.write(json.dumps(row) + "\n")
    return TrainingTask(
        model=str(folder / "model"),
        dataset=str(folder / "rows.jsonl"),
        method=TrainingMethod.FULL,
        max_steps=12,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=5,
        learning_rate=1e-3,
        weight_decay=0.01,
        max_tokens_per_microbatch=64,
        eval_fraction=0.2,
        checkpoint_every_s=0.1,
        logging_steps=1,
    )


@pytest.fixture
def job(nursery, task, tmp_path):
    made = []

    def make(name="job", **fields):
        made.append(ElasticJob(nursery, tmp_path / name, msgspec.structs.replace(task, **fields)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def followers(job, name):
    """The other processes of a member."""
    pid = job._pids[name]
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def same(one, other):
    assert one.steps == other.steps
    assert one.tokens == other.tokens
    for field in ("loss", "eval_loss", "base_eval_loss"):
        assert getattr(one, field) == pytest.approx(getattr(other, field), rel=1e-5), field


def weights(job, file="model.safetensors"):
    return later("safetensors.torch").load_file(job.folder / "output" / file)


def alike(one, other):
    torch = later("torch")
    assert one.keys() == other.keys()
    for name, array in one.items():
        torch.testing.assert_close(array, other[name], rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def plain(nursery, task, tmp_path_factory):
    """The same task by one process, undisturbed."""
    found = ElasticJob(nursery, tmp_path_factory.mktemp("plain") / "job", task)
    found.launch("alone")
    assert found.code("alone") == DONE
    yield found
    found.close()


def slow(job, **fields):
    made = job(emulated_microbatch_s=0.1 * slowness(), **fields)
    made.coordinate()
    return made


def test_members_of_two_processes_end_at_the_loss_of_one_process(job, plain):
    """One is joined by another and killed; the last steps are done by one process alone."""
    rough = slow(job)
    rough.launch("n1", gpus=2)
    rough.reach(1, world=1)
    rough.launch("n2", gpus=2)
    rough.reach(2, world=2)
    # One lost process ends its member; the other member repeats the step.
    (follower,) = followers(rough, "n1")
    os.kill(follower, signal.SIGKILL)
    assert rough.code("n1") == -signal.SIGKILL
    rough.steps_more(1, world=1)
    (follower,) = followers(rough, "n2")
    rough.signal(signal.SIGTERM, "n2")
    assert rough.code("n2") == LEFT
    until(lambda: not Path(f"/proc/{follower}").exists(), "the end of the follower")
    left = CheckpointStore(rough.folder / "checkpoints", epoch=0).latest()
    assert left is not None
    rough.launch("n3")
    assert rough.code("n3") == DONE
    assert f"continuing from step {left.step}" in rough.log("n3")
    same(rough.result, plain.result)
    alike(weights(rough), weights(plain))


_LOGITS = """
import json, os, sys
from pathlib import Path
import numpy as np
import torch
from duetune.training import kernels, session
from duetune.training.siblings import born
from duetune.training.task import read_task
from duetune.training.tokens import tokenized_dataset, LossRules
from duetune.training.trained_model import load_model, load_tokenizer, summed_loss
from duetune.training.worker_contract import Contract

torch.set_num_threads(1)
contract = Contract.from_environment(os.environ)
task, cpu = read_task(contract.folder), torch.device("cpu")
data = tokenized_dataset(
    task.dataset, load_tokenizer(task), task.max_length, contract.folder / "tokens",
    rules=LossRules.of(task), text_field=task.dataset_text_field,
)
rows = np.arange(6)
siblings = born(2)
plain = load_model(task, cpu)
wanted = summed_loss(plain, data, rows, cpu, None)
wanted.backward()
loads, load = [], session.load_model
session.load_model = lambda *given, **options: (loads.append(1), load(*given, **options))[1]
model = session._model(task, contract, siblings, cpu)
# The memory that they shared is used for other things later.
siblings.shared_memory(1 << 20)[:] = bytes([255]) * (1 << 20)
seen = []
head, forward = model.get_output_embeddings(), model.get_output_embeddings().forward
head.forward = lambda hidden: (seen.append(len(hidden)), forward(hidden))[1]
vocabulary = model.config.vocab_size
kernels.MOST_LOGITS = 8 * vocabulary
found = summed_loss(model, data, rows, cpu, None)
found.backward()
# Both processes have the same rows, so their sum is twice the gradient.
norms = [
    sum(float(each.grad.to_local().double().square().sum()) for each in model.parameters()) / 4
]
total, loaded = siblings.sums(*norms, len(loads))
exact = sum(float(each.grad.double().square().sum()) for each in plain.parameters())
if siblings.place == 0:
    logits = [max(seen), sum(seen), data.targets(rows)]
    result = [float(found), float(wanted), total, exact, *logits, loaded]
    (contract.folder / "found.json").write_text(json.dumps(result))
sys.stdout.flush()
os._exit(0)
"""


def test_a_sharded_model_is_read_once_and_its_logits_never_exist_at_once(nursery, task, tmp_path):
    script = tmp_path / "logits.py"
    script.write_text(_LOGITS)
    job = ElasticJob(nursery, tmp_path / "job", task, command=[script])
    job.launch("n1")
    assert job.code("n1") == DONE, job.log("n1")
    found, wanted, norm, exact, longest, computed, counted, loaded = json.loads(
        (job.folder / "found.json").read_text()
    )
    job.close()
    assert found == pytest.approx(wanted, rel=1e-5)
    assert norm == pytest.approx(exact, rel=1e-4)
    assert longest == 8
    # Only tokens that count are computed, once forward and once more backward.
    assert computed == 2 * counted
    assert loaded == 1


@pytest.mark.more
@pytest.mark.parametrize("method", [TrainingMethod.FULL, TrainingMethod.LORA])
def test_any_number_of_processes_continues_a_checkpoint(job, plain, method):
    calm, file, fields = plain, "model.safetensors", {"method": method}
    if method is TrainingMethod.LORA:
        fields |= {"gradient_checkpointing": True, "eval_strategy": "steps", "eval_steps": 4}
        fields |= {"optim": OptimiserName.PAGED_ADAMW_32BIT}
        calm, file = job("calm", **fields), "adapter_model.safetensors"
        calm.launch("alone")
        assert calm.code("alone") == DONE
    rough = slow(job, **fields)
    for name, gpus in (("n1", 1), ("n2", 4), ("n3", 2)):
        before = 0 if rough.progress is None else rough.progress.step
        rough.launch(name, gpus=gpus)
        rough.reach(before + 2, world=1)
        rough.signal(signal.SIGTERM, name)
        assert rough.code(name) == LEFT
    rough.launch("n4", "n5", "n6", gpus=3)
    assert [rough.code(name) for name in ("n4", "n5", "n6")] == [DONE] * 3
    assert "loads the whole model" not in rough.log("n4")
    same(rough.result, calm.result)
    alike(weights(rough, file), weights(calm, file))


@pytest.mark.more
def test_a_stopped_process_stops_its_member_only(job, plain):
    rough = slow(job)
    rough.launch("n1", "n2", gpus=2)
    rough.reach(2, world=2)
    (follower,) = followers(rough, "n1")
    rough.signal(signal.SIGSTOP, "n1")
    os.kill(follower, signal.SIGSTOP)
    rough.steps_more(2, world=1)
    rough.lose_coordinator()
    rough.coordinate()
    os.kill(follower, signal.SIGCONT)
    rough.signal(signal.SIGCONT, "n1")
    assert [rough.code(name) for name in ("n1", "n2")] == [DONE] * 2
    same(rough.result, plain.result)


@pytest.mark.more
def test_a_task_that_cannot_work_is_reported_once(job):
    wrong = job(model="/nonexistent")
    wrong.launch("n1", gpus=2)
    assert wrong.code("n1") == HOPELESS
    assert "/nonexistent" in wrong.progress.message

"""``elastic`` with a real Trainer and a tiny model: the only member of a group, in this process."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import types

import pytest

from duetune.core.node_contract import DONE, HOPELESS, LEFT
from duetune.core.progress import Phase
from duetune.errors import InvalidInput
from duetune.training.authentication import job_secret
from duetune.training.checkpoint import CheckpointStore
from duetune.training.coordinator import Coordinator
from duetune.training.publication import published
from duetune.training.worker_contract import read_progress
from support.later import later

pytestmark = pytest.mark.torch

torch = later("torch")
transformers = later("transformers")
elastic_trainer = later("duetune.training.elastic_trainer")
callbacks = later("duetune.training.callback")
trainer_limits = later("duetune.training.trainer_limits")
trainer_state = later("duetune.training.trainer_state")
trainer_methods = later("duetune.training.trainer_methods")
trainer_metrics = later("duetune.training.trainer_metrics")
epoch_order = later("duetune.training.epoch_order")

# 22 rows in microbatches of 2, three to a step: the last step of an epoch has two of them.
ROWS, STEPS = 22, 10


@pytest.fixture
def group(tmp_path, monkeypatch):
    """The environment of the members of a job with a coordinator."""
    job = tmp_path / "job"
    job.mkdir()
    secret = secrets.token_hex(32)
    monkeypatch.setenv("DUETUNE_JOB_SECRET", secret)
    coordinator = Coordinator(job_secret(os.environ), job / "checkpoints")
    (job / "address").write_text(coordinator.address)
    before = signal.getsignal(signal.SIGTERM)

    def environment(epoch=1):
        return {
            "DUETUNE_JOB_ID": "job",
            "DUETUNE_NODE_ID": f"node-{epoch}",
            "DUETUNE_EPOCH": str(epoch),
            "DUETUNE_JOB_DIR": str(job),
            "DUETUNE_COORDINATOR_FILE": str(job / "address"),
            "DUETUNE_JOB_SECRET": secret,
        }

    yield environment
    signal.signal(signal.SIGTERM, before)
    coordinator.close()


def trainer_in(folder, *callbacks, **options):
    transformers.set_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=17,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=options.pop("dropout", 0.0),
    )
    tokens = torch.randint(0, 17, (ROWS, 6), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    for number, row in enumerate(rows):
        # Rows with different numbers of tokens that count: the mean over rows would be another.
        row["labels"] = row["labels"].masked_fill(torch.arange(6) < number % 4, -100)
    given = {
        "max_steps": STEPS,
        "save_strategy": "no",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "logging_steps": 1,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "report_to": "none",
    }
    arguments = transformers.TrainingArguments(output_dir=str(folder), **(given | options))
    return transformers.Trainer(
        transformers.LlamaForCausalLM(config),
        arguments,
        train_dataset=rows,
        eval_dataset=rows[:4],
        callbacks=list(callbacks),
    )


def weights(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def at(step, action):
    """Do something at the end of a step."""

    def act(_args, state, _control, **_others):
        if state.global_step == step:
            action()

    callback = transformers.TrainerCallback()
    callback.on_step_end = act
    return callback


def losses(trainer, name="loss"):
    return [(entry["step"], entry[name]) for entry in trainer.state.log_history if name in entry]


def test_one_member_trains_as_the_trainer_alone(group, tmp_path):
    """Data order aside, which is sequential here, it is the same training to the last bit."""
    options = {"train_sampling_strategy": "sequential", "eval_strategy": "epoch"}
    plain = trainer_in(tmp_path / "plain", **options)
    plain.train()
    member = trainer_in(tmp_path / "member", **options)
    assert elastic_trainer.elastic(member, environ=group()) == DONE
    assert torch.equal(weights(member), weights(plain))
    assert losses(member) == losses(plain)
    assert losses(member, "eval_loss") == losses(plain, "eval_loss")
    assert losses(member, "learning_rate") == losses(plain, "learning_rate")
    result = published(tmp_path / "job" / "output")
    assert result.steps == STEPS
    assert result.loss == pytest.approx(losses(plain)[-1][1])
    assert result.eval_loss == losses(plain, "eval_loss")[-1][1]
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "job" / "output")
    assert model.num_parameters() > 0
    progress = read_progress(tmp_path / "job" / "progress.json")
    assert (progress.phase, progress.step) == (Phase.FINISHED, STEPS)


def test_the_agent_sees_a_heartbeat_while_a_script_trains(group, tmp_path):
    beat = tmp_path / "job" / "heartbeats" / "node-1"
    seen = []
    look = at(3, lambda: seen.append(beat.exists()))
    trainer = trainer_in(tmp_path / "member", look)
    assert elastic_trainer.elastic(trainer, environ=group()) == DONE
    assert seen == [True]
    # Afterwards the script may do what it likes for as long as it likes.
    assert not beat.exists()


class OneOfTwo:
    """A member that computes every other microbatch; the other member counts 100 items."""

    def __init__(self):
        self.computed = []

    def begin(self):
        pass

    def drawing(self, _place):
        return contextlib.nullcontext()

    def total(self, numbers):
        return [numbers[0] + 1, numbers[1] + 100]

    def share(self, count, prepare, compute, *, together):
        mine = range(0, count, 2 * together)
        prepare(mine)
        self.computed += mine
        return sum(compute(number) for number in mine)


def test_a_member_collates_only_what_it_computes(tmp_path):
    collated = []

    def collate(rows):
        collated.append(len(rows))
        return transformers.default_data_collator(rows)

    trainer = trainer_in(tmp_path, max_steps=2)
    trainer.data_collator = collate
    given = []
    compute_loss = trainer.compute_loss

    def seen(model, inputs, *, num_items_in_batch, **options):
        given.append(int(num_items_in_batch))
        return compute_loss(model, inputs, num_items_in_batch=num_items_in_batch, **options)

    trainer.compute_loss = seen
    member = OneOfTwo()
    kind = type(trainer)
    methods = trainer_methods.MemberMethods
    trainer.__class__ = type(kind.__name__, (methods, kind), {"duetune_member": member})
    member.state = types.SimpleNamespace(resume_from=None)
    trainer.train()
    assert member.computed == [0, 2, 0, 2]
    assert len(collated) == 4
    # The loss is divided by the items of both members.
    assert all(100 < items <= 100 + 4 * 5 for items in given)
    assert trainer.state.total_flos > 0


def test_metrics_are_those_of_all_members():
    def trainer(**metrics):
        found = types.SimpleNamespace(
            _metrics={"train": {name: [0.5] for name in metrics}},
            _total_train_tokens=70,
            current_flos=0,
            state=types.SimpleNamespace(num_input_tokens_seen=0),
        )
        mine = trainer_metrics.TrainerMetrics(found)
        mine.begin()
        for name, values in metrics.items():
            found._metrics["train"][name] += values
        found._total_train_tokens += 10
        found._metrics["train"]["num_tokens"] = [80]
        return found, mine

    one, mine = trainer(margin=[1.0, 2.0], reward=[3.0, float("nan")])
    other, theirs = trainer(margin=[6.0], entropy=[4.0])
    parts = [mine.own(), theirs.own()]
    mine.take(parts)
    theirs.take(parts)
    assert one._metrics["train"]["margin"] == [0.5, 3.0, 3.0, 3.0]
    assert one._metrics["train"]["reward"] == [0.5, 3.0]
    assert one._metrics["train"]["entropy"] == [4.0]
    assert other._metrics["train"]["entropy"] == [0.5, 4.0]
    assert one._metrics["train"]["num_tokens"] == other._metrics["train"]["num_tokens"] == [90]
    mine.undo()
    assert one._metrics["train"] == {"margin": [0.5], "reward": [0.5]}
    assert one._total_train_tokens == 70


def test_a_member_goes_on_where_another_has_left(group, tmp_path):
    whole = trainer_in(tmp_path / "whole", dropout=0.3)
    assert elastic_trainer.elastic(whole, tmp_path / "other", environ=group()) == DONE
    (tmp_path / "job" / "checkpoints").rename(tmp_path / "elsewhere")

    term = at(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    first = trainer_in(tmp_path / "here", term, dropout=0.3, logging_steps=3)
    assert elastic_trainer.elastic(first, environ=group(2)) == LEFT
    assert CheckpointStore(tmp_path / "job" / "checkpoints", 3).latest().step == 5
    assert published(tmp_path / "job" / "output") is None
    second = trainer_in(tmp_path / "there", dropout=0.3, logging_steps=3)
    assert elastic_trainer.elastic(second, environ=group(3)) == DONE
    assert torch.equal(weights(second), weights(whole))
    assert [step for step, _ in losses(second)] == [3, 6, 9]
    means = [sum(loss for _, loss in losses(whole)[n : n + 3]) / 3 for n in (0, 3, 6)]
    assert [loss for _, loss in losses(second)] == pytest.approx(means, rel=1e-4)
    # Whoever comes later finds the result.
    third = trainer_in(tmp_path / "late")
    assert elastic_trainer.elastic(third, environ=group(4)) == DONE


def test_the_best_weights_are_published_and_training_stops_early(group, tmp_path):
    options = {
        "load_best_model_at_end": True,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "steps",
        "save_steps": 1,
        "metric_for_best_model": "eval_loss",
        "greater_is_better": True,
        "train_sampling_strategy": "sequential",
    }
    stop = transformers.EarlyStoppingCallback(early_stopping_patience=3)
    plain = trainer_in(tmp_path / "plain", stop, **options)
    plain.train()
    stop = transformers.EarlyStoppingCallback(early_stopping_patience=3)
    member = trainer_in(tmp_path / "member", stop, **options)
    assert elastic_trainer.elastic(member, environ=group()) == DONE
    assert member.state.global_step == plain.state.global_step < STEPS
    assert member.state.best_global_step == plain.state.best_global_step
    assert torch.equal(weights(member), weights(plain))
    assert not list((tmp_path / "member").glob("checkpoint-*"))


def test_parameters_that_are_frozen_for_a_moment_belong_to_the_state(tmp_path):
    trainer = trainer_in(tmp_path)
    state = trainer_state.SharedTrainerState(trainer, tmp_path)
    before = set(state.arrays())
    # TRL does this while it computes a reference model.
    trainer.model.requires_grad_(requires_grad=False)
    assert set(state.arrays()) == before


def test_trackers_hear_of_it_while_this_member_leads():
    told = []

    class Tracker:
        def __getattr__(self, event):
            return lambda *_args, **_options: told.append(event)

    leads = []
    only = elastic_trainer.LeaderOnly([Tracker()], lambda: bool(leads))
    only.on_train_begin(None, None, None)
    only.on_log(None, None, None, logs={})
    assert told == []
    leads.append(True)
    only.on_log(None, None, None, logs={})
    only.on_train_begin(None, None, None)
    assert told == ["on_train_begin", "on_log"]
    assert not hasattr(only, "state")


def test_without_a_group_it_is_the_callback(group, tmp_path):
    alone = group() | {"DUETUNE_COORDINATOR_FILE": ""}
    term = at(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert elastic_trainer.elastic(trainer_in(tmp_path / "here", term), environ=alone) == LEFT
    found = CheckpointStore(tmp_path / "job" / "checkpoints", 2).latest()
    assert (found.files / "trainer_state.json").is_file()


def test_outside_duetune_it_trains_and_saves(tmp_path):
    trainer = trainer_in(tmp_path / "out", max_steps=1)
    assert elastic_trainer.elastic(trainer, environ={}) == DONE
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_callback_is_refused_in_a_job_with_members(group):
    with pytest.raises(InvalidInput, match="elastic"):
        callbacks.DuetuneCallback(group())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("deepspeed", "zero3.json"),
        ("fsdp", ["full_shard"]),
        ("auto_find_batch_size", True),
        ("push_to_hub", True),
        ("sync_ref_model", True),
        ("use_vllm", True),
        ("optim", "adalomo"),
        ("train_sampling_strategy", "batch_rebalance"),
    ],
)
def test_arguments_that_members_cannot_share_are_refused(tmp_path, field, value):
    trainer = trainer_in(tmp_path)
    trainer_limits.check(trainer)
    setattr(trainer.args, field, value)
    with pytest.raises(InvalidInput, match=f"^{field}"):
        trainer_limits.check(trainer)


def test_a_script_that_cannot_work_says_so_and_is_not_started_again(group, tmp_path):
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    trainer = trainer_in(tmp_path / "here")
    trainer.train_dataset = Endless()
    assert elastic_trainer.elastic(trainer, environ=group()) == HOPELESS
    progress = read_progress(tmp_path / "job" / "progress.json")
    assert progress.phase is Phase.FAILED
    assert "train_dataset" in progress.message


def test_the_order_of_an_epoch_depends_on_seed_and_epoch_alone():
    def order(seed, epoch, reads=1):
        sampler = torch.utils.data.RandomSampler(range(50))
        made = epoch_order.EpochOrder(sampler, seed)
        made.set_epoch(epoch)
        return [list(made) for _ in range(reads)][-1]

    assert order(1, 2) == order(1, 2, reads=3)
    assert sorted(order(1, 2)) == list(range(50))
    assert len({tuple(order(*each)) for each in ((1, 2), (1, 3), (2, 2))}) == 3

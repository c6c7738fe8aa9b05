"""The callback in a real Trainer with a tiny model, in this process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from duetune.core.progress import Phase
from duetune.errors import InvalidInput
from duetune.training.checkpoint import CheckpointStore
from duetune.training.hazard import write_hazard
from duetune.training.worker_contract import read_progress
from support.later import later

pytestmark = pytest.mark.torch

torch = later("torch")
transformers = later("transformers")
callbacks = later("duetune.training.callback")

STEPS = 12


def environment(folder, *, epoch=1, node="node"):
    return {
        "DUETUNE_JOB_ID": "job",
        "DUETUNE_NODE_ID": node,
        "DUETUNE_EPOCH": str(epoch),
        "DUETUNE_JOB_DIR": str(folder),
    }


def at(step, action, event="on_step_end"):
    """Does something at a step, before the callback under test hears of it."""

    def act(_args, state, _control, **_others):
        if step in {state.global_step, None}:
            action()

    callback = transformers.TrainerCallback()
    setattr(callback, event, act)
    return callback


def trainer_in(folder, *callbacks, **options):
    transformers.set_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=17,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=0.3,
    )
    tokens = torch.randint(0, 17, (40, 6), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    given = {
        "save_steps": 5,
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.01,
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


@pytest.fixture(autouse=True)
def _signals():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    trainer = trainer_in(tmp_path_factory.mktemp("undisturbed"))
    trainer.train()
    return weights(trainer)


def test_a_noticed_run_goes_on_elsewhere_as_if_nothing_had_happened(tmp_path, undisturbed):
    job = tmp_path / "job"
    first = callbacks.DuetuneCallback(environment(job))
    assert first.resume_from() is None
    term = at(7, lambda: os.kill(os.getpid(), signal.SIGTERM))
    trainer = trainer_in(tmp_path / "here", term, first, eval_strategy="epoch")
    trainer.train()
    assert trainer.state.global_step == 7
    assert first.exit_code == first.finish(trainer) == 75
    assert not (job / "output").exists()
    progress = read_progress(job / "progress.json")
    assert (progress.step, progress.checkpoint_step, progress.total_steps) == (7, 7, STEPS)
    assert progress.phase is Phase.TRAINING
    assert progress.eval_loss is None, "no time for an evaluation"

    second = callbacks.DuetuneCallback(environment(job, epoch=2, node="other"))
    resumed_from = second.resume_from()
    started = read_progress(job / "progress.json")
    assert (started.phase, started.step) == (Phase.STARTING, 7)
    steps = []
    count = at(None, lambda: steps.append(trainer.state.global_step))
    trainer = trainer_in(tmp_path / "there", count, second)
    trainer.train(resume_from_checkpoint=resumed_from)
    assert steps == list(range(8, STEPS + 1))
    assert second.finish(trainer) == second.exit_code == 0
    assert torch.equal(weights(trainer), undisturbed)
    progress = read_progress(job / "progress.json")
    assert (progress.phase, progress.step, progress.world) == (Phase.FINISHED, STEPS, 1)
    assert progress.output == str(job / "output")
    assert progress.loss > 0
    assert progress.step_s > 0
    assert transformers.LlamaForCausalLM.from_pretrained(job / "output").num_parameters() > 0


def test_outside_duetune_it_does_nothing(tmp_path, undisturbed):
    before = signal.getsignal(signal.SIGTERM)
    callback = callbacks.DuetuneCallback({"HOME": "/root"})
    trainer = trainer_in(tmp_path / "out", callback)
    trainer.train(resume_from_checkpoint=callback.resume_from())
    assert callback.finish(trainer) == callback.exit_code == 0
    assert signal.getsignal(signal.SIGTERM) == before
    assert torch.equal(weights(trainer), undisturbed)
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_notice_file_is_a_notice_too(tmp_path):
    callback = callbacks.DuetuneCallback(environment(tmp_path))
    tell = at(2, lambda: (tmp_path / "notice-node.json").write_text('{"taken_at": 1}'))
    trainer = trainer_in(tmp_path / "here", tell, callback, save_strategy="no")
    trainer.train()
    assert callback.exit_code == 75
    assert CheckpointStore(tmp_path / "checkpoints", 1).latest().step == 2


def test_a_notice_at_the_last_step_comes_too_late(tmp_path):
    callback = callbacks.DuetuneCallback(environment(tmp_path))
    tell = at(3, (tmp_path / "notice-node.json").touch)
    trainer = trainer_in(tmp_path / "here", tell, callback, max_steps=3)
    trainer.train()
    assert callback.finish(trainer, tmp_path / "mine") == 0
    progress = read_progress(tmp_path / "progress.json")
    assert (progress.phase, progress.output) == (Phase.FINISHED, str(tmp_path / "mine"))


def test_a_damaged_checkpoint_is_not_resumed_from(tmp_path):
    callback = callbacks.DuetuneCallback(environment(tmp_path))
    trainer_in(tmp_path / "here", callback, max_steps=3, save_steps=1).train()
    store = CheckpointStore(tmp_path / "checkpoints", 2)
    (store.latest().files / "optimizer.pt").write_bytes(b"rot")
    found = callbacks.DuetuneCallback(environment(tmp_path, epoch=2)).resume_from()
    assert "step-00000002.epoch-000001" in found


def test_one_that_is_superseded_stops_and_says_nothing_more(tmp_path):
    old = callbacks.DuetuneCallback(environment(tmp_path))
    taken_over = []

    def take_over():
        newer = callbacks.DuetuneCallback(environment(tmp_path, epoch=2))
        taken_over.append((newer.resume_from(), read_progress(tmp_path / "progress.json")))

    trainer = trainer_in(tmp_path / "here", at(5, take_over), old, save_steps=2)
    trainer.train()
    # Step 6 is when it would have published the next one and learns of it.
    assert trainer.state.global_step == 7
    assert old.finish(trainer) == 75
    resumed_from, _ = taken_over[0]
    assert "step-00000004" in resumed_from
    assert CheckpointStore(tmp_path / "checkpoints", 3).latest().step == 4


def test_one_of_an_older_launch_does_not_even_begin(tmp_path):
    callbacks.DuetuneCallback(environment(tmp_path, epoch=5)).resume_from()
    with pytest.raises(SystemExit) as left:
        callbacks.DuetuneCallback(environment(tmp_path, epoch=4)).resume_from()
    assert left.value.code == 75


def test_training_goes_on_when_a_checkpoint_cannot_be_published(tmp_path):
    callback = callbacks.DuetuneCallback(environment(tmp_path))
    lose = at(2, lambda: shutil.rmtree(tmp_path / "here" / "checkpoint-2"), "on_save")
    said = at(3, lambda: messages.append(read_progress(tmp_path / "progress.json").message))
    messages = []
    trainer = trainer_in(tmp_path / "here", lose, said, callback, max_steps=4, save_steps=2)
    trainer.train()
    assert callback.exit_code == 0
    assert "checkpoint of step 2 could not be saved" in messages[0]
    assert CheckpointStore(tmp_path / "checkpoints", 2).latest().step == 4
    assert not read_progress(tmp_path / "progress.json").message


def test_it_saves_as_often_as_the_user_says(tmp_path):
    callback = callbacks.DuetuneCallback(environment(tmp_path), save_every_s=1e-6, keep=3)
    trainer_in(tmp_path / "here", callback, max_steps=3, save_strategy="no").train()
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 3


def test_it_saves_when_so_much_may_be_lost_that_it_pays(tmp_path):
    callback = callbacks.DuetuneCallback(environment(tmp_path))

    def a_minute_ago():
        callback._run._saved_at -= 60

    calm = at(2, a_minute_ago)
    stormy = at(4, lambda: write_hazard(tmp_path / "hazard.json", 30.0))
    trainer_in(tmp_path / "here", calm, stormy, callback, max_steps=5, save_strategy="no").train()
    assert [path.name[:13] for path in (tmp_path / "checkpoints").glob("step-*")] == [
        "step-00000004"
    ]


def test_checkpoints_that_cannot_be_resumed_from_are_refused(tmp_path):
    callback = callbacks.DuetuneCallback(environment(tmp_path))
    with pytest.raises(InvalidInput, match="save_only_model"):
        trainer_in(tmp_path / "here", callback, save_only_model=True).train()
    CheckpointStore(tmp_path / "checkpoints", 1).publish(4, tmp_path / "here")
    with pytest.raises(InvalidInput, match="a checkpoint of a transformers Trainer"):
        callbacks.DuetuneCallback(environment(tmp_path, epoch=2)).resume_from()


def test_processes_of_torchrun_that_train_alone_are_refused(tmp_path):
    environ = environment(tmp_path) | {"WORLD_SIZE": "2"}
    with pytest.raises(InvalidInput, match="world_size: 1 is not allowed; expected 2"):
        trainer_in(tmp_path / "here", callbacks.DuetuneCallback(environ)).train()


def test_without_transformers_it_says_what_to_install():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "from duetune.errors import MissingExtra\n"
        "try:\n    from duetune.training import DuetuneCallback\n"
        "except MissingExtra as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'duetune[train]'" in done.stdout

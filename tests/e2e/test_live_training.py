"""Real fine-tuning on the embedded fleet, through the command line."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager, suppress

import pytest

from duetune.cli import main
from duetune.training.tiny import build_tiny_model
from support.accounts import accounted
from support.later import later
from support.live_home import LEFT_RUNNING, LiveHome
from support.tuning import ROWS, progress, spec

later("torchft")
peft = later("peft")
transformers = later("transformers")

pytestmark = [pytest.mark.live, pytest.mark.torch, pytest.mark.filterwarnings(LEFT_RUNNING)]

SPOT = ((0.9, 2),)
COMES_AND_GOES = ((0.9, 2), (0.9, 2), (0.9, 2), (0.9, 0))
LONG = {"training": "{max_steps: 500000, per_device_train_batch_size: 4}", "deadline": "90d"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, layers=1, heads=2, seed=3)


@pytest.fixture
def home(tmp_path):
    home = LiveHome(tmp_path)
    yield home
    home.close()


def test_a_fine_tune_survives_silent_preemptions_and_a_truncated_checkpoint(home, model):
    """Nodes go without notice and a checkpoint is cut short: an older one, or the beginning, is
    taken, the result is the same, and the adapter loads in plain peft.
    """
    home.start_fleet(
        home.market(*COMES_AND_GOES),
        slot_wall_s=3.0,
        warm=True,
        silent=1,
        emulated_microbatch=0.1,
    )
    checkpoint = '{every: "1s", keep: 3}'
    job = home.launch(spec(home, model, checkpoint=checkpoint))
    folder = home.settings.folder(job) / "checkpoints"
    home.until(lambda: len(list(folder.glob("step-*"))) >= 2, "two checkpoints")
    home.run("pause", job)
    home.until(lambda: not home.fleet_alive(job), "the release of its nodes")
    newest = max(folder.glob("step-*"), key=lambda path: path.name)
    for path in newest.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    home.run("resume", job)
    row = home.until_over(job)
    assert row.status == "SUCCEEDED", home.logs()
    accounted(home, job)
    last = progress(home, job)[-1]
    assert last.step == 30
    assert last.eval_loss < last.base_eval_loss
    base = transformers.AutoModelForCausalLM.from_pretrained(model)
    loaded = peft.PeftModel.from_pretrained(base, row.output)
    assert type(loaded).__name__ == "PeftModelForCausalLM"
    home.run("merge", job)
    merged = transformers.AutoModelForCausalLM.from_pretrained(home.settings.folder(job) / "merged")
    assert type(merged).__name__ == "LlamaForCausalLM"


@contextmanager
def small_disk(path, size):
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


def fill(disk):
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def test_a_full_disk_does_not_stop_training(home, model):
    """The disk fills up after the launch, so no checkpoint can be saved: the job says so, goes on,
    and finishes.
    """
    with small_disk(home.folder / "small", "4m") as disk:
        home.start_fleet(home.market(*SPOT), slot_wall_s=3.0, warm=True, emulated_microbatch=0.05)
        job = home.launch(spec(home, model, checkpoint=f'{{dir: {disk}, every: "1s"}}'))
        fill(disk)
        row = home.until_over(job)
        assert row.status == "SUCCEEDED", home.logs()
        assert not list(disk.glob("step-*"))
        messages = [each.message for each in progress(home, job)]
        assert any("No space left" in message for message in messages), messages


@pytest.mark.parametrize(
    ("rows", "fields", "words"),
    [
        ([*ROWS[:6], {"prompt": "no answer"}], {}, "rows.jsonl:7"),
        ([], {}, "at least one row"),
        (ROWS, {**LONG, "deadline": "1h"}, "deadline: '1h' is not allowed; expected at least "),
        (ROWS, {**LONG, "budget": "0.01"}, "budget: 0.01 is not allowed; expected at least $"),
        (ROWS, {"dataset": "nowhere.jsonl"}, "there is no such file or folder"),
        (ROWS, {"epochs": 3}, "epochs"),
    ],
)
def test_a_bad_job_is_refused_in_one_line_before_anything_is_spent(
    home, model, rows, fields, words, capsys, monkeypatch
):
    monkeypatch.setenv("DUETUNE_HOME", str(home.path))
    path = spec(home, model, rows=rows, **fields)
    assert main(["launch", str(path), "--yes"]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert home.fleet() is None
    assert not home.settings.jobs.exists()


@pytest.mark.more
def test_members_of_two_gpus_are_bought_billed_and_counted_together(home, model):
    """Five spot GPUs make two members of two; the bill is that of all their GPUs."""
    home.start_fleet(home.market((0.9, 5)), slot_wall_s=3.0, warm=True, emulated_microbatch=0.1)
    job = home.launch(spec(home, model, resources="{accelerators: 'auto:4', gpus_per_member: 2}"))
    row = home.until_over(job)
    assert row.status == "SUCCEEDED", home.logs()
    accounted(home, job)
    ended = {node.id: node for each in home.story(job) for node in getattr(each.event, "nodes", ())}
    assert {node.gpus for node in ended.values()} == {2}
    assert max(report.world for report in progress(home, job)) == 2
    assert "sharded over 2 processes" in home.logs()

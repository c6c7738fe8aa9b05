"""Commands of a user's own, as processes that are told to leave, killed, and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from duetune.core.progress import Phase
from duetune.jobs.spec.load import load_spec
from duetune.training.checkpoint import CheckpointStore
from duetune.training.worker_contract import read_progress
from support.patience import PATIENCE_S, until
from support.places import ROOT

pytestmark = pytest.mark.live

EXAMPLE = ROOT / "examples" / "trl-sft"
PAGE = (ROOT / "docs" / "how-to" / "own-command.md").read_text(encoding="utf-8")
FOREVER = 1_000_000


class Node:
    """Starts a command as a node would, each time as a later launch."""

    def __init__(self, folder, command):
        self.folder = folder
        self.command = command
        self.epoch = 0

    def start(self, *arguments):
        self.epoch += 1
        self.notice = self.folder / f"notice-{self.epoch}.json"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environ = {
            **os.environ,
            "PATH": path,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(self.folder / "cache"),
            "DUETUNE_JOB_ID": "job",
            "DUETUNE_NODE_ID": f"node-{self.epoch}",
            "DUETUNE_EPOCH": str(self.epoch),
            "DUETUNE_JOB_DIR": str(self.folder),
            "DUETUNE_CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "DUETUNE_OUTPUT_DIR": str(self.folder / "output"),
            "DUETUNE_PROGRESS_FILE": str(self.folder / "progress.json"),
            "DUETUNE_NOTICE_FILE": str(self.notice),
        }
        # What the process before it has said would be taken for its own word.
        (self.folder / "progress.json").unlink(missing_ok=True)
        log = (self.folder / f"log-{self.epoch}").open("wb")
        with log:
            self.process = subprocess.Popen(
                [*self.command, *map(str, arguments)],
                env=environ,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def progress(self):
        return read_progress(self.folder / "progress.json")

    @property
    def latest(self):
        return CheckpointStore(self.folder / "checkpoints", 0).latest()

    def until(self, condition):
        def holds():
            assert self.process.poll() is None, self.log
            return (found := self.progress) is not None and condition(found)

        until(holds, story=lambda: self.log, every_s=0.01)

    def give_notice(self, *, everyone=False):
        self.notice.write_text(json.dumps({"taken_at": time.time() + 600}))
        if everyone:
            os.killpg(self.process.pid, signal.SIGTERM)
        else:
            self.process.send_signal(signal.SIGTERM)

    def status(self):
        status = self.process.wait(timeout=PATIENCE_S)
        assert status in {0, 75, -signal.SIGKILL}, self.log
        return status

    @property
    def log(self):
        return (self.folder / f"log-{self.epoch}").read_text(errors="replace")[-3000:]

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def node_for(tmp_path):
    made = []

    def make(*command):
        folder = tmp_path / "job"
        folder.mkdir()
        made.append(Node(folder, command))
        return made[-1]

    yield make
    for node in made:
        node.end()


def snippet(language, place=0):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[place]


RANKS = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from duetune.training import elastic

config = LlamaConfig(vocab_size=17, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
                     num_attention_heads=2)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 17, (64, 6))]
arguments = TrainingArguments(
    output_dir=sys.argv[1], max_steps=int(sys.argv[2]), save_steps=5, use_cpu=True,
    ddp_backend="gloo", disable_tqdm=True, report_to="none",
)
sys.exit(elastic(Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows)))
"""


@pytest.mark.more
@pytest.mark.torch
def test_a_script_under_torchrun_leaves_when_told_and_goes_on(tmp_path, node_for):
    """Two processes of one node; the exit status after a notice is torchrun's own."""
    (tmp_path / "train.py").write_text(RANKS)
    run = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    node = node_for(*run, str(tmp_path / "train.py"), str(tmp_path / "trainer"))
    node.start(FOREVER)
    node.until(lambda progress: progress.checkpoint_step >= 5)
    assert node.progress.world == 2
    node.give_notice(everyone=True)
    assert node.process.wait(PATIENCE_S) in {1, 75}
    left = node.latest.step
    assert left == node.progress.step

    node.start(left + 3)
    assert node.status() == 0
    assert (node.progress.phase, node.progress.step) == (Phase.FINISHED, left + 3)
    assert (node.folder / "output" / "model.safetensors").is_file()


def test_the_job_of_the_page_is_that_of_the_example():
    assert load_spec(snippet("yaml")).run == load_spec(EXAMPLE / "job.yaml").run


@pytest.mark.parametrize(
    ("command", "language", "place", "total"),
    [([sys.executable, "-c"], "py", 1, 100), (["sh", "-c"], "sh", 0, 60)],
    ids=["python", "shell"],
)
def test_a_program_of_the_page_leaves_when_told_and_goes_on(
    node_for, command, language, place, total
):
    code = snippet(language, place)
    forever = re.sub(rf"\b{total}\b", str(FOREVER), code, count=1)
    assert forever != code
    node = node_for(*command)
    node.start(forever)
    node.until(lambda progress: progress.step >= 3)
    node.give_notice()
    assert node.status() == 75
    left = node.latest.step
    assert left == node.progress.step

    node.start(re.sub(rf"\b{total}\b", str(left + 2), code, count=1))
    assert node.status() == 0
    done = node.progress
    assert (done.phase, done.step, done.total_steps) == (Phase.FINISHED, left + 2, left + 2)
    assert list(Path(done.output).iterdir())


def test_a_shell_command_of_an_older_launch_cannot_publish(node_for, tmp_path):
    (tmp_path / "state").write_text("1")
    node = node_for(sys.executable, "-m", "duetune.training.command", "publish", "5")
    node.start(tmp_path / "state")
    assert node.status() == 0
    node.start(tmp_path / "state")
    assert node.status() == 0
    node.epoch = 0
    node.start(tmp_path / "state")
    assert node.status() == 75
    assert node.latest.epoch == 2
    assert "epoch 2 has taken over" in node.log


@pytest.mark.parametrize("example", ["trl-sft", "trl-dpo"])
def test_the_lines_of_the_page_are_those_of_the_examples(example):
    script = (EXAMPLE.parent / example / "train.py").read_text()
    assert "from duetune.training import elastic" in snippet("py")
    assert "elastic(trainer)" in snippet("py")
    added = [line.split("#")[0].strip() for line in script.splitlines() if "# +" in line]
    assert added == ["from duetune.training import elastic", "return elastic(trainer)"]
    assert "# +" in script.partition("elastic(trainer)")[2]
    spec = load_spec(EXAMPLE.parent / example / "job.yaml")
    assert spec.has_members
    assert f"--steps {spec.training.max_steps}" in spec.run

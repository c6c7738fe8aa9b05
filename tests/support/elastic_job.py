"""A job whose members are real processes, forked from one that has the heavy libraries loaded."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys

from duetune.core.progress import Phase
from duetune.files import write_whole
from duetune.training.metrics import METRICS, read_metrics
from duetune.training.publication import published
from duetune.training.task import write_task
from duetune.training.worker_contract import read_progress
from support.patience import PATIENCE_S, until

NURSERY = """
import gc, json, os, runpy, sys, time, traceback
from pathlib import Path
from duetune.training.tiny import build_tiny_model
from duetune.training.worker import main, preload
preload()
import transformers.trainer
import datasets, peft, trl.trainer.dpo_trainer, trl.trainer.sft_trainer
import duetune.training.elastic_trainer


class Gate(transformers.TrainerCallback):
    # A step begins when the test allows it, however fast the machine is.
    def on_step_begin(self, args, state, control, **_):
        gate = Path(os.environ["DUETUNE_JOB_DIR"]) / "gate"
        while gate.is_file() and state.global_step >= int(gate.read_text()):
            time.sleep(0.01)


transformers.trainer.DEFAULT_CALLBACKS.append(Gate)
# Every step is reported, or a test would wait for one that a gate holds back.
duetune.training.worker_contract.ProgressReporter.__init__.__kwdefaults__["least_s"] = 0.0
gc.freeze()
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    order = json.loads(line)
    if "build" in order:
        build_tiny_model(Path(order["build"]), hidden=32, layers=1, heads=2, seed=order["seed"])
        print("null", flush=True)
        continue
    if "poll" in order:
        pid, status = os.waitpid(order["poll"], os.WNOHANG)
        print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.environ.update(order["environment"])
            log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if order["command"]:
                sys.argv = order["command"]
                runpy.run_path(sys.argv[0], run_name="__main__")
            code = main()
        except SystemExit as leaving:
            code = leaving.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(json.dumps(pid), flush=True)
"""


class Nursery:
    """Forks workers and users' scripts for Trainers of TRL, on request."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert self._answer() == "ready"

    def start(self, environment, log, command=()):
        words = [str(word) for word in command]
        return self._ask({"environment": environment, "log": str(log), "command": words})

    def build_model(self, folder, seed=None):
        """Here, so that the tests themselves need not import anything heavy."""
        self._ask({"build": str(folder), "seed": seed})

    def poll(self, pid):
        """The exit code, once; None while it runs."""
        return self._ask({"poll": pid})

    def close(self):
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()

    def _ask(self, order):
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        return json.loads(self._process.stdout.readline())


class ElasticJob:
    """A job of the built-in trainer with ``task``, or of a script that ``command`` runs."""

    def __init__(self, nursery, folder, task=None, command=()):
        self._nursery = nursery
        self.folder = folder
        self.folder.mkdir(parents=True)
        self._command = command
        if task is not None:
            write_task(folder, task)
        self._pids = {}
        self._codes = {}
        self._epoch = 0
        self._coordinator = None
        self._candidates = {}
        self.secret = secrets.token_hex(32)
        self.address_file = folder / "coordinator.address"

    # The coordinator

    def coordinate(self):
        """Start the coordinator; a second one listens on another port."""
        self.address_file.unlink(missing_ok=True)
        self._coordinator = subprocess.Popen(
            [
                *(sys.executable, "-m", "duetune.training.coordinator"),
                *("--address-file", self.address_file),
            ],
            env=os.environ
            | {"DUETUNE_JOB_DIR": str(self.folder), "DUETUNE_JOB_SECRET": self.secret},
        )
        self._until(self.address_file.exists, "a coordinator")

    def lose_coordinator(self):
        self._coordinator.kill()
        self._coordinator.wait()
        self._coordinator = None

    def stand_by(self, name, **variables):
        """Start the candidate of one node and return the file with the newest address."""
        file = self.folder / f"{name}.address"
        self._candidates[name] = subprocess.Popen(
            [
                *(sys.executable, "-m", "duetune.training.coordinator", "--address-file", file),
                *("--seats", self.folder / "coordinators"),
            ],
            env=os.environ
            | {"DUETUNE_JOB_DIR": str(self.folder), "DUETUNE_JOB_SECRET": self.secret}
            | variables,
        )
        self._until(file.exists, f"an address for {name}")
        return str(file)

    def lose_candidate(self, name, number=signal.SIGKILL):
        self._candidates[name].send_signal(number)
        if number == signal.SIGKILL:
            self._candidates.pop(name).wait()

    # Members

    def launch(self, *names, gpus=1, **variables):
        for name in names:
            self._epoch += 1
            environment = {
                "DUETUNE_JOB_ID": "job",
                "DUETUNE_NODE_ID": name,
                "DUETUNE_EPOCH": str(self._epoch),
                "DUETUNE_GPUS": str(gpus),
                "DUETUNE_JOB_DIR": str(self.folder),
                "DUETUNE_COORDINATOR_FILE": str(self.address_file) if self._coordinator else "",
                "DUETUNE_JOB_SECRET": self.secret,
                **variables,
            }
            log = self.folder / f"{name}.log"
            self._pids[name] = self._nursery.start(environment, log, self._command)

    def allow(self, steps):
        """Let scripts do so many steps. They have then begun the next one and wait."""
        write_whole(self.folder / "gate", str(steps))
        self.reach(steps)

    def end_gate(self):
        """Let scripts do all steps."""
        (self.folder / "gate").unlink()

    def allow_until(self, world):
        """Let scripts do one step after another until the group has so many members."""
        while self.progress.world != world:
            self.allow(self.progress.step + 1)

    def said(self, name, text):
        """Wait until a member has written a text to its log."""
        log = self.folder / f"{name}.log"
        self._until(lambda: log.is_file() and text in log.read_text(), f"{text!r} of {name}")

    def signal(self, number, *names):
        for name in names:
            os.kill(self._pids[name], number)

    def kill(self, *names):
        self.signal(signal.SIGKILL, *names)
        assert [self.code(name) for name in names] == [-signal.SIGKILL] * len(names)

    def code(self, name):
        """The exit code, when it comes."""
        self._until(lambda: self._poll(name) is not None, f"the end of {name}")
        return self._codes[name]

    def _poll(self, name):
        if self._codes.get(name) is None:
            self._codes[name] = self._nursery.poll(self._pids[name])
        return self._codes[name]

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    # What comes of it

    @property
    def progress(self):
        return read_progress(self.folder / "progress.json")

    @property
    def result(self):
        return published(self.folder / "output")

    @property
    def metrics(self):
        return read_metrics(self.folder / METRICS)

    @property
    def adapter(self):
        return (self.folder / "output" / "adapter_model.safetensors").read_bytes()

    def reach(self, step=0, world=None, phase=Phase.TRAINING):
        """Wait until so many steps are done, by so many members."""

        def reached():
            seen = self.progress
            assert seen is None or seen.phase is not Phase.FAILED, seen.message
            return (
                seen is not None
                and seen.phase is phase
                and seen.step >= step
                and world in {None, seen.world}
            )

        self._until(reached, f"step {step} with {world} members")

    def steps_more(self, count, world=None):
        self.reach(self.progress.step + count, world)

    def close(self):
        for name, pid in self._pids.items():
            if self._codes.get(name) is None:
                os.kill(pid, signal.SIGKILL)
                self.code(name)
        if self._coordinator is not None:
            self.lose_coordinator()
        for name in list(self._candidates):
            self.lose_candidate(name)

    def _until(self, condition, what):
        def story():
            logs = "\n".join(f"{name}:\n{self.log(name)}" for name in self._pids)
            return f"{self.progress}\n{logs}"

        until(condition, what, story=story, every_s=0.01)

"""A home of its own, with its fleet, controller and jobs, all gone at the end."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from unittest.mock import patch

from duetune.cli import main
from duetune.core.fleet import NodeState
from duetune.fleets.node_ledger import NodeLedger
from duetune.jobs import submit
from duetune.settings import load_settings
from duetune.store.store import opened_store
from duetune.wiring import running_fleet
from support.patience import PATIENCE_S, slowness, until

PROGRAM = [sys.executable, "-m", "duetune.cli"]
TRAINER = Path(__file__).with_name("pretend_trainer.py")
# Slots of half an hour take seconds, so this is minutes: far more than any job here needs. Quotes
# of longer jobs take long.
DISTANT = "48h"
ENGINE = "lab"
"""The name of the fleet of an engine that others run."""
# What is started here goes on when nobody holds its handle any more, as it should.
LEFT_RUNNING = "ignore:subprocess .* is still running:ResourceWarning"


class LiveHome:
    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "home"
        self.environment = {
            **os.environ,
            "DUETUNE_HOME": str(self.path),
            "COLUMNS": "120",
            "OMP_NUM_THREADS": "1",
        }
        self.settings = load_settings(self.environment)
        self.slowness = slowness()
        self._kept = None

    def run(self, *arguments, status=0, **more):
        """A command, in this process: to start the program takes longer than most commands do, and
        fleet, controller and nodes are processes of their own all the same. A quote comes from
        fewer scenarios, as nothing here is about its figures.
        """
        words = [str(word) for word in arguments]
        with (
            patch.dict(os.environ, {**self.environment, **more}),
            patch.object(submit, "SCENARIOS", 5),
            redirect_stdout(io.StringIO()) as out,
            redirect_stderr(io.StringIO()) as err,
        ):
            try:
                code = main(words)
            except SystemExit as left:
                code = left.code
        return self._checked(
            subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue()), status
        )

    def run_program(self, *arguments, status=0, **more):
        """A command as users run it; what it starts has to outlive it."""
        done = subprocess.run(
            [*PROGRAM, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
        )
        return self._checked(done, status)

    @staticmethod
    def _checked(done, status):
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def json(self, *arguments, **more):
        return json.loads(self.run(*arguments, "--json", **more).stdout)

    def market(self, *slots, on_demand=3.0, slot_hours=0.5):
        """A trace from (spot price, available) pairs, again and again."""
        rows = slots * (60 // len(slots))
        path = self.folder / "market.csv"
        lines = ["time,spot_usd_gpu_h,on_demand_usd_gpu_h,available"]
        for number, (price, available) in enumerate(rows):
            minutes = int(number * slot_hours * 60)
            day, minutes = divmod(minutes, 1440)
            moment = f"2026-01-{1 + day:02d}T{minutes // 60:02d}:{minutes % 60:02d}:00Z"
            lines.append(f"{moment},{price},{on_demand},{available}")
        path.write_text("\n".join(lines) + "\n")
        return path

    def speed(self, slot_wall_s):
        """Of a market whose slots take so many seconds on a machine that is not busy."""
        return 1800 / (slot_wall_s * self.slowness)

    def start_fleet(self, market, *, slot_wall_s=1.6, warm=False, run=None, **options):
        if "emulated_microbatch" in options:
            options["emulated_microbatch"] *= self.slowness
        flags = [
            word
            for name, value in {"speed": self.speed(slot_wall_s), "history": 0, **options}.items()
            for word in (f"--{name.replace('_', '-')}", value)
        ]
        temperature = "--warm" if warm else "--cold"
        (run or self.run)("fleet", "start", "--trace", market, temperature, *flags)
        if warm:  # who waits for the libraries in slots that count seems to hang
            self.until(lambda: self.fleet().fleet.status().warm == "ready", "the libraries")

    def spec(self, *, steps=20, step_s=0.16, deadline=DISTANT, **fields):
        """A job that runs the pretend trainer, with much more time than it needs."""
        path = self.folder / "job.yaml"
        command = self.command(steps, step_s * self.slowness)
        lines = {
            "name": "pretend",
            "deadline": deadline,
            "run": json.dumps(command),
            "training": json.dumps({"max_steps": steps}),
            "policy": "maximal_spot",  # begins at once and holds what there is
            **fields,
        }
        path.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
        return path

    @staticmethod
    def command(steps, step_s):
        return f"{sys.executable} {TRAINER} {steps} {step_s}"

    def use_engine(self, engine, *, microbatch_s=0.0, slot_minutes, **settings):
        """Add a fleet of an engine that others run, and make it the only one."""
        given = {"slot_minutes": slot_minutes * self.slowness, **settings}
        words = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        self.run("fleet", "add", ENGINE, "--engine", engine, *words)
        lines = ["[site]", f'fleet = "{ENGINE}"']
        if microbatch_s:
            lines.append(f"emulated_microbatch_s = {microbatch_s * self.slowness}")
        (self.path / "config.toml").write_text("\n".join(lines))
        self.settings = load_settings(self.environment)

    def entries(self, job):
        """The nodes of a job in the ledger of the engine, with their names there."""
        with self.store() as store:
            return NodeLedger(store.ledger(ENGINE)).of_job(job)

    def held(self, job):
        """The entries of the nodes that run and should."""
        return [each for each in self.entries(job) if each.node.state is NodeState.RUNNING]

    def fleet_alive(self, job):
        return [node for node in self.fleet().fleet.observe(job).nodes if node.state.alive]

    def launch(self, spec, *flags, **more):
        return self.json("launch", spec, "--yes", "--detach", *flags, **more)["job"]

    def store(self):
        return opened_store(self.settings)

    def job(self, name):
        return self._watched().job(name)

    def story(self, name):
        return self._watched().journal.read(name)

    def _watched(self):
        """A store that stays open: tests ask it many times. Another file needs another store."""
        place = Path(self.settings.database).stat().st_ino
        if self._kept is None or self._kept[0] != place:
            self._forget()
            self._kept = place, self.store()
        return self._kept[1]

    def _forget(self):
        if self._kept is not None:
            self._kept[1].close()
        self._kept = None

    def fleet(self):
        return running_fleet(self.settings)

    def until(self, condition, what):
        return until(condition, what, story=self.logs, every_s=0.1)

    def until_over(self, job):
        def over():
            row = self.job(job)
            return row if row.status.final else None

        return self.until(over, f"the end of {job}")

    def step(self, job):
        with suppress(OSError, ValueError):
            return json.loads((self.settings.folder(job) / "progress.json").read_text())["step"]
        return 0

    def reached(self, job, step):
        return self.step(job) >= step

    def until_step(self, job, step):
        self.until(lambda: self.reached(job, step), f"step {step}")

    def controller(self):
        return self.json("controller", "status")["pid"]

    def kill_controller(self):
        """For good: with the process that would start it again."""
        found = self.json("controller", "status")
        for pid in (found["supervisor"], found["pid"]):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        self.until(lambda: self.controller() is None, "the controller's death")
        return found["pid"]

    def processes(self):
        """Every process that was started with this home, by what it runs."""
        mark = f"DUETUNE_HOME={self.path}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                        found[int(entry.name)] = words.decode(errors="replace")
        return found

    def process(self, words):
        """The youngest whose command line begins with or has these words."""
        return max(pid for pid, line in self.processes().items() if words in line)

    @staticmethod
    def parent(pid):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def logs(self):
        texts = []
        for path in [*self.path.glob("controller*.log"), *self.path.glob("jobs/*/logs/*.log")]:
            with suppress(OSError):
                texts.append(f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}")
        return "\n".join(texts)

    def close(self):
        self._forget()
        with suppress(Exception):
            self.kill_controller()
        with suppress(Exception):
            self.run("fleet", "stop")
        for pid in self.processes():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

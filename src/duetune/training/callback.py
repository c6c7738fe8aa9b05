"""A callback for the Trainer of transformers and its subclasses, such as TRL's SFTTrainer.

    duetune = DuetuneCallback()
    trainer = SFTTrainer(..., callbacks=[duetune])
    trainer.train(resume_from_checkpoint=duetune.resume_from())
    sys.exit(duetune.finish(trainer))

``elastic_trainer.elastic`` does the same in one line, and lets a job have several members. If
duetune has not started the process, these lines change nothing: training starts from the
beginning, the model is saved to the Trainer's own output folder, and the exit status is 0.
"""

# ruff: noqa: ARG002 - the Trainer decides what its callbacks are given

from __future__ import annotations

import logging
import os
import statistics
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput, MissingExtra

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingExtra("DuetuneCallback", "train") from error

from duetune.core.node_contract import DONE, LEFT
from duetune.core.progress import Phase, Progress
from duetune.training import ranks
from duetune.training.checkpoint import StaleEpoch, job_checkpoints
from duetune.training.hazard import checkpoint_interval, read_hazard
from duetune.training.worker_contract import Contract, Notice, ProgressReporter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

    from duetune.training.checkpoint import CheckpointStore

_log = logging.getLogger(__name__)

_STATE = "trainer_state.json"


class DuetuneCallback(TrainerCallback):
    """Reports progress, publishes each checkpoint, and stops training before the node is taken.

    Besides the Trainer's own checkpoints (``save_steps``), it saves more often if the job's nodes
    are lost often enough.

    - ``save_every_s``: a fixed number of seconds between two checkpoints instead.
    - ``keep``: the number of published checkpoints to keep.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        *,
        save_every_s: float | None = None,
        keep: int = 2,
    ) -> None:
        self._run = None
        self._environ = environ
        if Contract.given(environ):
            contract = Contract.from_environment(environ)
            if contract.coordinator_file is not None:
                allowed = "duetune.training.elastic(trainer), because this job has several members"
                raise InvalidInput("callbacks", "DuetuneCallback", allowed)
            store = job_checkpoints(contract, environ, keep)
            self._run = _Run(contract, store, save_every_s=save_every_s)

    def resume_from(self) -> str | None:
        """Return the folder for ``resume_from_checkpoint``; None to start from the beginning.

        After this call, older launches of this job can publish nothing more. If a later launch has
        already started, this process has nothing to do and exits with status 75.
        """
        return None if self._run is None else self._run.resume_from()

    @property
    def exit_code(self) -> int:
        """Return 75 if training has stopped because the node will be taken, otherwise 0."""
        return LEFT if self._run is not None and self._run.left else DONE

    def finish(self, trainer: Trainer, output: str | os.PathLike[str] | None = None) -> int:
        """Save the model if training is done, report it, and return the exit status.

        The model goes to ``output``, or to the job's output folder, or to the Trainer's own if
        duetune has not started the process. All ranks must call this as their last step.
        """
        run = self._run
        if run is not None and run.left:
            return LEFT
        folder = Path(output or (run.contract.output if run else _output_dir(trainer.args)))
        trainer.save_model(str(folder))
        ranks.wait()
        if run is not None and ranks.first():
            run.finished(folder.absolute())
        return DONE

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Report the start; called by the Trainer."""
        if self._run is not None:
            if args.save_only_model:
                allowed = "False, because training can only resume from a full checkpoint"
                raise InvalidInput("save_only_model", value=True, allowed=allowed)
            started = self._environ.get("WORLD_SIZE", "1")
            if started.isdigit() and int(started) > 1 and args.world_size == 1:
                # Each process would train alone and publish over the others.
                allowed = f"{started}, as torchrun says; without GPUs set use_cpu and ddp_backend"
                raise InvalidInput("world_size", args.world_size, allowed)
            self._run.begin(args, state)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Report progress, and decide whether to save or leave; called by the Trainer."""
        if self._run is not None:
            self._run.step(args, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Skip saving and evaluation when leaving; called by the Trainer."""
        if self._run is not None and self._run.left:
            # The last step was saved already, and there is no time for an evaluation.
            control.should_save = control.should_evaluate = False

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Publish the checkpoint that the Trainer has just written; called by the Trainer."""
        if self._run is not None:
            self._run.publish(_output_dir(args), state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: object,
    ) -> None:
        """Report the measured losses; called by the Trainer."""
        if self._run is not None and logs is not None:
            self._run.measured(state, logs)


class _Run:
    """The callback's state and work in a process that duetune has started."""

    def __init__(
        self, contract: Contract, store: CheckpointStore, *, save_every_s: float | None
    ) -> None:
        self.contract = contract
        self.left = False
        self._superseded = False
        self._save_every_s = save_every_s
        self._store = store
        self._notice = Notice(contract.notice_file).install()
        self._reporter = ProgressReporter(contract)
        self._progress = Progress()
        self._claimed = False
        self._step_times: deque[float] = deque(maxlen=51)
        self._step_began: float | None = None
        self._saved_at = time.monotonic()
        self._save_began: float | None = None
        self._save_s = 0.0

    def resume_from(self) -> str | None:
        found = ""
        if ranks.first():
            self._claim()
            # Read after the claim: from then on nobody else publishes a newer checkpoint.
            checkpoint = self._store.latest()
            if checkpoint is not None and not (checkpoint.files / _STATE).is_file():
                allowed = "a checkpoint of a transformers Trainer"
                raise InvalidInput("checkpoint", str(checkpoint.path), allowed)
            step = 0 if checkpoint is None else checkpoint.step
            found = "" if checkpoint is None else str(checkpoint.files)
            self._report(step=step, checkpoint_step=step)
        return ranks.from_first(found) or None

    def begin(self, args: TrainingArguments, state: TrainerState) -> None:
        if ranks.first() and not self._claimed:
            self._claim()
        self._saved_at = time.monotonic()
        self._report(
            step=state.global_step,
            total_steps=state.max_steps,
            world=args.world_size,
            phase=Phase.TRAINING,
        )

    def step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """Report a step, then stop after a notice or a takeover, or save if a save is due."""
        now = time.monotonic()
        if self._step_began is not None:
            self._step_times.append(now - self._step_began)
        step_s = statistics.median(self._step_times) if self._step_times else None
        self._report(
            step=state.global_step,
            step_s=step_s,
            tokens=max(state.num_input_tokens_seen, self._progress.tokens),
        )
        # All ranks must stop and save at the same step, even if only one of them got the notice.
        noticed, superseded, save = ranks.any_of(
            (self._notice.given, self._superseded, self._save_due(now)), args.device
        )
        done = state.global_step >= state.max_steps or control.should_training_stop
        if superseded or (noticed and not done):
            self.left = True
            control.should_training_stop = True
            control.should_save = not superseded
            control.should_evaluate = False
            reason = "a later launch has taken over" if superseded else "the node will be taken"
            _log.warning("stopping after step %d: %s", state.global_step, reason)
        elif save:
            control.should_save = True
        self._step_began = self._save_began = time.monotonic()
        if control.should_evaluate or control.should_save:
            self._step_began = None
        if control.should_evaluate:
            self._save_began = None

    def publish(self, output_dir: Path, state: TrainerState) -> None:
        """Publish the checkpoint of the last step; a failure is reported but not raised."""
        # Each rank writes its own part of the folder.
        ranks.wait()
        if not ranks.first() or self._superseded:
            return
        step = state.global_step
        try:
            self._store.publish(step, output_dir / f"checkpoint-{step}")
        except StaleEpoch as error:
            self._superseded = True
            _log.warning("%s", error)
        except OSError as error:
            # Training continues; the previous checkpoint is still there.
            _log.warning("cannot publish the checkpoint of step %d: %s", step, error)
            self._report(message=f"the checkpoint of step {step} could not be saved: {error}")
        else:
            self._saved_at = time.monotonic()
            if self._save_began is not None:
                self._save_s = self._saved_at - self._save_began
            self._report(checkpoint_step=step, message="")

    def measured(self, state: TrainerState, logs: dict[str, float]) -> None:
        progress = self._progress
        self._report(
            step=state.global_step,
            loss=_number(logs.get("loss"), progress.loss),
            eval_loss=_number(logs.get("eval_loss"), progress.eval_loss),
            tokens=int(max(logs.get("num_tokens", 0), progress.tokens)),
        )

    def finished(self, output: Path) -> None:
        self._report(phase=Phase.FINISHED, output=str(output), message="")

    def _claim(self) -> None:
        try:
            self._store.claim(alone=True)
        except StaleEpoch as error:
            _log.warning("%s; exiting", error)
            raise SystemExit(LEFT) from error
        self._claimed = True

    def _save_due(self, now: float) -> bool:
        mean_s = read_hazard(self.contract.hazard_file)
        if not ranks.first() or (self._save_every_s is None and mean_s is None):
            return False
        interval = checkpoint_interval(self._save_s, mean_s, every=self._save_every_s)
        return now - self._saved_at >= interval

    def _report(self, **changes: object) -> None:
        if ranks.first() and not self._superseded:
            self._progress = msgspec.structs.replace(self._progress, **changes, at=time.time())
            self._reporter.report(self._progress)


def _output_dir(args: TrainingArguments) -> Path:
    return Path(args.output_dir or "trainer_output")


def _number(value: float | None, otherwise: float | None) -> float | None:
    return otherwise if value is None else float(value)

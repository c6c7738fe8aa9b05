"""``elastic(trainer)``: trains with a transformers Trainer, or TRL's, on nodes that come and go.

    trainer = DPOTrainer(...)
    sys.exit(elastic(trainer))  # instead of trainer.train()

What it does depends on who has started the process:

- a job with several members: the members train together as one elastic group (``trainer_member``).
- a job with one node, also under torchrun: training resumes from checkpoints (``callback``).
- somebody else: training is as usual, and the model is saved to the Trainer's own folder.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core.node_contract import DONE, HOPELESS, LEFT
from duetune.core.progress import Phase, Progress
from duetune.errors import DuetuneError, MissingExtra, StorageError

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingExtra("elastic", "train") from error

from duetune.training.callback import DuetuneCallback
from duetune.training.group import Left
from duetune.training.trainer_limits import check
from duetune.training.trainer_member import Finished, TrainerMember
from duetune.training.trainer_methods import GeneratingMethods, MemberMethods
from duetune.training.worker_contract import Contract, ProgressReporter, read_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

_log = logging.getLogger(__name__)


def elastic(
    trainer: Trainer,
    output: str | os.PathLike[str] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Train, save the model and return the exit status for ``sys.exit``.

    Call this instead of ``trainer.train()``, once, as the last thing that the script does with the
    model. The model goes to ``output``, or to the job's output folder, or to the Trainer's own if
    duetune has not started the process.
    """
    if not Contract.given(environ) or not Contract.from_environment(environ).coordinator_file:
        callback = DuetuneCallback(environ)
        trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=callback.resume_from())
        return callback.finish(trainer, output)
    _show_log()
    contract = Contract.from_environment(environ)
    folder = contract.output if output is None else Path(output).absolute()
    try:
        check(trainer)
        return _as_member(trainer, contract, folder)
    except DuetuneError as error:
        _log.error("%s", error)
        if isinstance(error, StorageError) and error.retry:
            return error.exit_code  # A crash: the node starts this process again.
        last = read_progress(contract.progress_file) if contract.progress_file else None
        ProgressReporter(contract).report(
            msgspec.structs.replace(
                last or Progress(), phase=Phase.FAILED, message=str(error), at=0.0
            )
        )
        return HOPELESS


def _as_member(trainer: Trainer, contract: Contract, output: Path) -> int:
    # A tracker such as W&B then continues the same run when another member leads.
    os.environ.setdefault("WANDB_RUN_ID", contract.job)
    os.environ.setdefault("WANDB_RESUME", "allow")
    # The Trainer collects garbage whenever its loop begins. With all objects of the libraries that
    # stops the heartbeats for so long that the others believe this member dead.
    gc.freeze()
    member = TrainerMember(trainer, contract, output)
    try:
        _make_elastic(trainer, member)
        try:
            trainer.train()
        except Finished:
            pass
        except Left:
            member.leave()
            return LEFT
        member.finish(lambda folder: trainer.save_model(str(folder), _internal_call=True))
        return DONE
    finally:
        member.close()


def _make_elastic(trainer: Trainer, member: TrainerMember) -> None:
    """Give the Trainer the methods of ``trainer_methods`` and the callbacks of a member."""
    handler = trainer.callback_handler
    shown = [each for each in handler.callbacks if _shows(each)]
    handler.callbacks = [each for each in handler.callbacks if each not in shown]
    handler.callbacks += [LeaderOnly(shown, lambda: member.leads), _MemberCallback(member)]
    trainer.args.restore_callback_states_from_checkpoint = True
    if (measure := trainer.compute_metrics) is not None:
        # It is the user's code, and may take long.
        trainer.compute_metrics = functools.partial(_measured, member, measure)
    kind = type(trainer)
    generates = hasattr(trainer, "_generate_and_score_completions")
    methods = GeneratingMethods if generates else MemberMethods
    trainer.__class__ = type(kind.__name__, (methods, kind), {"duetune_member": member})


def _measured(
    member: TrainerMember,
    measure: Callable[..., dict[str, float]],
    *given: object,
    **options: object,
) -> dict[str, float]:
    with member.active():
        return measure(*given, **options)


class _MemberCallback(TrainerCallback):
    """Tells the member what the Trainer does."""

    def __init__(self, member: TrainerMember) -> None:
        self._member = member

    def on_train_begin(self, *_: object, **__: object) -> None:
        """Go on with the group's losses since the last log."""
        self._member.state.load_logged()

    def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
        """Keep others from reading the state while it changes."""
        self._member.state.lock.acquire()

    def on_step_end(self, *_: object, **__: object) -> None:
        """Record the step and let others read the state again."""
        self._member.stepped()
        self._member.state.lock.release()

    def on_prediction_step(self, *_: object, **__: object) -> None:
        """Show that a member that evaluates is active."""
        self._member.touch()


class LeaderOnly:
    """Passes events to progress bars and trackers while this member leads.

    Their ``on_train_begin``, which starts a tracker's run, is called when it first leads.
    """

    def __init__(self, callbacks: list[TrainerCallback], leads: Callable[[], bool]) -> None:
        self._callbacks = callbacks
        self._leads = leads
        self._begun = False

    def __getattr__(self, event: str) -> Callable[..., None]:
        """Return what the Trainer calls for an event."""
        if not event.startswith("on_"):
            raise AttributeError(event)

        def forward(
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            **options: object,
        ) -> None:
            if not self._leads():
                return
            if not self._begun:
                self._begun = True
                self._tell("on_train_begin", args, state, control, **options)
            if event != "on_train_begin":
                self._tell(event, args, state, control, **options)

        return forward

    def _tell(self, event: str, *given: object, **options: object) -> None:
        for callback in self._callbacks:
            getattr(callback, event)(*given, **options)


def _shows(callback: TrainerCallback) -> bool:
    """Return whether a callback shows progress or sends it to a tracker."""
    kind = type(callback)
    return kind.__module__.startswith("transformers.integrations") or kind.__name__ in {
        "ProgressCallback",
        "PrinterCallback",
        "RichProgressCallback",
        "NotebookProgressCallback",
    }


def _show_log() -> None:
    log = logging.getLogger("duetune")
    log.setLevel(logging.INFO)
    if not logging.getLogger().handlers and not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)

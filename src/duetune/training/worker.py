"""The built-in trainer, ``python -m duetune.training``: one member from start to exit status.

A fleet may also call ``main`` in a fork of a process that has called ``preload``, which saves the
seconds of the imports. The training itself is in ``session``.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from duetune.core.node_contract import DONE, HOPELESS, LEFT
from duetune.core.progress import Phase, Progress
from duetune.errors import DuetuneError, InvalidInput, MissingExtra, OutOfMemory, StorageError
from duetune.training.publication import published
from duetune.training.task import read_task
from duetune.training.torch_environment import set_environment
from duetune.training.worker_contract import Contract, Notice, ProgressReporter, read_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duetune.training.publication import PublishedResult

_log = logging.getLogger(__name__)

_NEEDED = frozenset({"torch", "torchft", "transformers", "peft", "safetensors"})


def main() -> int:
    """Run this member and return its exit status (see ``duetune.core.node_contract``)."""
    _set_up_log()
    try:
        contract = Contract.from_environment(os.environ)
    except InvalidInput as error:
        print(error, file=sys.stderr)  # noqa: T201 - without a contract there is no log
        return HOPELESS
    reporter = ProgressReporter(contract)
    with Notice(contract.notice_file) as notice:
        try:
            return _run(contract, notice, reporter)
        except DuetuneError as error:
            _log.error("%s", error)
            if isinstance(error, StorageError) and error.retry:
                return error.exit_code  # A crash: the node starts this process again.
            reporter.report(_failed(contract, error))
            return HOPELESS


def preload() -> None:
    """Import the training libraries, without starting threads or using the GPU.

    This must not run a backward pass: torch refuses backward passes in forks of such a process.
    """
    set_environment()
    with _importing():
        import peft  # noqa: PLC0415, F401
        import torch  # noqa: PLC0415
        import transformers.models.auto.modeling_auto  # noqa: PLC0415
        import transformers.models.llama.modeling_llama  # noqa: PLC0415
        import transformers.models.qwen3.modeling_qwen3  # noqa: PLC0415, F401

        import duetune.training.session  # noqa: PLC0415, F401
    torch.set_num_threads(_threads())


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Collect no garbage inside the block, and never look at its objects again. Imports make
    hardly any garbage, but so many objects that looking for it takes a fifth of their time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _run(contract: Contract, notice: Notice, reporter: ProgressReporter) -> int:
    if (result := published(contract.output)) is not None:
        _log.info("training is already complete")
        _report_finished(contract, reporter, result)
        return DONE
    task = read_task(contract.folder)
    set_environment()
    began = time.monotonic()
    try:
        with _importing():
            from duetune.training.session import Session  # noqa: PLC0415 - imports torch
            from duetune.training.siblings import born  # noqa: PLC0415 - imports torch
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _NEEDED:
            raise MissingExtra("training", "train") from None
        raise
    siblings = born(contract.gpus)
    if siblings.place:
        logging.getLogger("duetune").setLevel(logging.WARNING)
    session = Session.prepare(contract, task, threads=_threads(), siblings=siblings)
    if siblings.place:
        session.follow()
        return DONE
    _log.info("%s, ready in %.2f s", session.summary, time.monotonic() - began)
    result = session.run(notice, reporter)
    if result is None:
        return LEFT
    _report_finished(contract, reporter, result)
    return DONE


def _report_finished(
    contract: Contract, reporter: ProgressReporter, result: PublishedResult
) -> None:
    last = _last_report(contract)
    reporter.report(
        Progress(
            step=result.steps,
            total_steps=result.steps,
            # How fast the group was: a short job is measured by nothing else.
            world=last.world,
            step_s=last.step_s,
            tokens=result.tokens,
            loss=result.loss,
            eval_loss=result.eval_loss,
            base_eval_loss=result.base_eval_loss,
            checkpoint_step=result.steps,
            phase=Phase.FINISHED,
            message="; ".join(filter(None, (result.stopped, result.warning))),
            output=str(contract.output),
            best_eval_loss=result.eval_loss if result.best_step else None,
            best_step=result.best_step,
        )
    )


def _failed(contract: Contract, error: DuetuneError) -> Progress:
    """Return the last report with the reason added, so that the step reached stays known."""
    return msgspec.structs.replace(
        _last_report(contract),
        phase=Phase.FAILED,
        message=str(error),
        out_of_memory=isinstance(error, OutOfMemory),
        at=0.0,
    )


def _last_report(contract: Contract) -> Progress:
    """Return the newest report of the job's workers; an empty one if there is none."""
    file = contract.progress_file
    return (read_progress(file) if file is not None else None) or Progress()


def _threads() -> int:
    """Return the threads per operation. Their number changes the last bits of sums."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdigit() and int(text) > 0 else 1


def _set_up_log() -> None:
    logging.basicConfig(
        stream=sys.stdout, level=logging.WARNING, format="%(asctime)s %(message)s", force=True
    )
    logging.getLogger("duetune").setLevel(logging.INFO)

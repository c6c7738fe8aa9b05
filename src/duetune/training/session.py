"""One member's work on a task: prepare, train together with the others, publish the result."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
import transformers

from duetune.core.node_contract import CHECKPOINT_KEEP
from duetune.errors import InvalidInput, OutOfMemory
from duetune.training.batches import held_out
from duetune.training.checkpoint import CheckpointStore, Damaged
from duetune.training.elastic import ElasticTraining
from duetune.training.group import ElasticGroup, GroupSettings, SoloGroup
from duetune.training.publication import PublishedResult, only_publisher, publish, published
from duetune.training.saver import Saver
from duetune.training.shared_state import SharedState
from duetune.training.task import TrainingMethod
from duetune.training.tokens import tokenized_dataset
from duetune.training.trained_model import (
    load_base,
    load_model,
    load_tokenizer,
    mean_loss,
    precision,
    save_model,
    without_adapter,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from duetune.training.group import Group
    from duetune.training.progress_files import ProgressReporter
    from duetune.training.task import TrainingTask
    from duetune.training.tokens import TokenizedRows, Tokenizer
    from duetune.training.worker_contract import Contract, Notice

_log = logging.getLogger(__name__)

"""How many checkpoints stay."""

_POLL_S = 0.2


class Session:
    """``prepare`` first, then ``run`` once."""

    def __init__(
        self,
        contract: Contract,
        task: TrainingTask,
        tokenizer: Tokenizer,
        learner: SharedState,
        evaluation: tuple[TokenizedRows, NDArray[np.int64]],
        device: torch.device,
    ) -> None:
        self._contract = contract
        self._task = task
        self._tokenizer = tokenizer
        self._learner = learner
        self._evaluation = evaluation
        self._device = device
        self._touch = _Heartbeat(contract.folder / "heartbeats" / contract.node)

    @classmethod
    def prepare(cls, contract: Contract, task: TrainingTask, *, threads: int) -> Self:
        """Load model and data, and the last checkpoint if there is one."""
        torch.set_num_threads(threads)
        # No bars in a log file.
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        tokenizer = load_tokenizer(task)
        cache = contract.folder / "tokens"
        data = tokenized_dataset(task.dataset, tokenizer, task.max_length, cache)
        if data.left_out:
            _log.info("%d rows have nothing to learn from and are left out", data.left_out)
        rows = np.arange(len(data))
        if task.eval_dataset is not None:
            aside = tokenized_dataset(task.eval_dataset, tokenizer, task.max_length, cache)
            evaluation = (aside, np.arange(min(len(aside), task.eval_rows)))
        else:
            kept = held_out(len(data), task.eval_fraction, task.eval_rows, task.seed)
            evaluation = (data, kept)
            rows = np.delete(rows, kept)
        try:
            model = load_model(task, device)
            _check_fit(task, data, model.config)
            learner = SharedState(task, model, data, rows, device)
        except torch.OutOfMemoryError as error:
            allowed = f"a smaller model or adapters: out of memory ({error})"
            raise OutOfMemory("model", task.model, allowed) from None
        torch.use_deterministic_algorithms(learner.exact and device.type == "cuda")
        return cls(contract, task, tokenizer, learner, evaluation, device)

    @property
    def words(self) -> str:
        learner = self._learner
        adding = "exact" if learner.exact else "fast"
        return (
            f"{learner.trainable:,} trainable parameters on {self._device.type}, "
            f"{self._task.microbatches} microbatches per step, {adding} sums"
        )

    def run(self, notice: Notice, reporter: ProgressReporter) -> PublishedResult | None:
        """The result once all steps are done; None if this member has left before."""
        contract, learner = self._contract, self._learner
        store = CheckpointStore(contract.checkpoints, contract.epoch, keep=_kept(os.environ))
        saved_step = self._restore(store)
        saver = Saver(
            store,
            contract.hazard_file,
            every_s=self._task.checkpoint_every_s,
            alone=contract.lighthouse is None,
            saved_step=saved_step,
            touch=self._touch,
        )
        group = self._group(notice)
        try:
            training = ElasticTraining(
                learner,
                group,
                saver,
                reporter,
                notice,
                over=lambda: published(contract.output) is not None,
                logging_steps=self._task.logging_steps,
            )
            if not training.run():
                return None
            # Still a member, so that who joins now waits instead of training on its own.
            return self._result(saver.warning)
        except torch.OutOfMemoryError as error:
            if learner.step:
                raise
            size = self._task.per_device_train_batch_size
            allowed = f"fewer rows or a shorter max_length: out of memory ({error})"
            raise OutOfMemory("per_device_train_batch_size", size, allowed) from None
        finally:
            group.close()
            saver.wait()

    def _result(self, warning: str) -> PublishedResult:
        output = self._contract.output
        with only_publisher(output, self._wait):
            found = published(output)
            if found is not None:
                return found
            with self._touch.kept_up():
                return self._publish(warning)

    def _group(self, notice: Notice) -> Group:
        contract = self._contract
        name = f"{contract.epoch:08d}.{contract.node}"
        if contract.lighthouse is None:
            return SoloGroup(name, self._learner, self._touch)
        return ElasticGroup(
            contract.lighthouse,
            name,
            self._learner,
            self._device,
            leaving=lambda: notice.given,
            touched=self._touch,
            settings=GroupSettings.from_environment(os.environ),
        )

    def _restore(self, store: CheckpointStore) -> int:
        while (found := store.latest()) is not None:
            try:
                arrays, document = found.load()
            except Damaged:
                # It was whole a moment ago: the leader has replaced it. There is a newer one.
                continue
            try:
                self._learner.load(arrays, document)
            except (ValueError, KeyError) as error:
                allowed = f"checkpoints of this task ({error})"
                raise InvalidInput("checkpoints", str(found.path), allowed) from None
            _log.info("going on from step %d", found.step)
            return found.step
        return 0

    def _publish(self, warning: str) -> PublishedResult:
        if self._learner.step < self._learner.total_steps:
            raise RuntimeError("the result of others was there and is not any more")
        _log.info("all %d steps are done: measuring", self._learner.step)
        base, tuned, count = self._losses()
        known = self._learner.known
        result = PublishedResult(
            steps=known.step,
            tokens=known.tokens,
            loss=known.losses[-1] if known.losses else None,
            eval_loss=tuned,
            base_eval_loss=base,
            eval_rows=count,
            warning=warning,
        )

        def write(folder: Path) -> None:
            save_model(self._learner.model, self._tokenizer, folder)

        result = publish(self._contract.output, write, result)
        _log.info("published %s", self._contract.output)
        return result

    def _losses(self) -> tuple[float | None, float | None, int]:
        """The loss on rows that were not trained on, before and after."""
        data, rows = self._evaluation
        if not len(rows):
            return None, None, 0
        size = self._task.per_device_train_batch_size
        batches = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
        model, device, dtype = self._learner.model, self._device, precision(self._task)
        tuned = mean_loss(model, data, batches, device, dtype)
        if self._task.method is TrainingMethod.LORA:
            with without_adapter(model):
                base = mean_loss(model, data, batches, device, dtype)
        else:
            base = mean_loss(load_base(self._task, device), data, batches, device, dtype)
        return base, tuned, len(rows)

    def _wait(self) -> None:
        self._touch()
        time.sleep(_POLL_S)


class _Heartbeat:
    """A file whose time says when this member was last at work, for whoever watches over it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = 0.0

    @contextlib.contextmanager
    def kept_up(self) -> Iterator[None]:
        """For work that takes its time and asks nobody: measuring, loading, writing."""
        done = threading.Event()

        def touch() -> None:
            while not done.wait(_POLL_S):
                self()

        beside = threading.Thread(target=touch, name="heartbeat-file", daemon=True)
        beside.start()
        try:
            yield
        finally:
            done.set()
            beside.join()

    def __call__(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _POLL_S
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        except OSError as error:
            _log.debug("no heartbeat: %s", error)


def _kept(environ: Mapping[str, str]) -> int:
    text = environ.get(CHECKPOINT_KEEP, "")
    return int(text) if text.isdigit() and int(text) > 0 else 2


def _check_fit(task: TrainingTask, data: TokenizedRows, config: object) -> None:
    positions = getattr(config, "max_position_embeddings", None)
    longest = int(np.diff(data.begins).max())
    if isinstance(positions, int) and longest > positions:
        raise InvalidInput("max_length", task.max_length, f"at most {positions} for this model")
    words = getattr(config, "vocab_size", None)
    if isinstance(words, int) and int(data.ids.max()) >= words:
        raise InvalidInput("model", task.model, "a tokenizer whose tokens the model knows")

"""One member's work on a task: load model and data, train with the group, publish the result.

Importing this module imports torch and transformers; ``worker`` does so only when it must.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
import transformers

from duetune.core.node_contract import RENDEZVOUS
from duetune.errors import InvalidInput, OutOfMemory
from duetune.training.batches import held_out
from duetune.training.entry import checkpoint_store, follow, join, load_named, restore
from duetune.training.follower import Follower
from duetune.training.forward_pass import choose_forward_pass
from duetune.training.publication import PublishedResult, only_publisher, publish, published
from duetune.training.saver import Saver
from duetune.training.sharding import own_device, shard
from duetune.training.shared_state import OwnShard, SharedState, whole_model
from duetune.training.siblings import Evaluate, Siblings
from duetune.training.task import TrainingMethod
from duetune.training.tokens import tokenized_dataset
from duetune.training.trained_model import (
    load_base,
    load_model,
    load_tokenizer,
    mean_loss,
    precision,
    save_model,
)
from duetune.training.training_loop import ElasticTraining

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from duetune.training.task import TrainingTask
    from duetune.training.tokens import TokenizedRows, Tokenizer
    from duetune.training.trained_model import LanguageModel
    from duetune.training.worker_contract import Contract, Notice, ProgressReporter

_log = logging.getLogger(__name__)

_POLL_S = 0.2


class Session:
    """One member's run: call ``prepare``, then ``run`` once."""

    def __init__(
        self,
        contract: Contract,
        task: TrainingTask,
        tokenizer: Tokenizer,
        learner: SharedState,
        evaluation: tuple[TokenizedRows, NDArray[np.int64]],
        device: torch.device,
        siblings: Siblings,
    ) -> None:
        self._siblings = siblings
        self._contract = contract
        self._task = task
        self._tokenizer = tokenizer
        self._learner = learner
        self._evaluation = evaluation
        self._device = device
        self._touch = _Heartbeat(contract.folder / "heartbeats" / contract.node)

    @classmethod
    def prepare(
        cls,
        contract: Contract,
        task: TrainingTask,
        *,
        threads: int,
        siblings: Siblings | None = None,
    ) -> Self:
        """Load the model and the tokenized data; ``threads`` is for torch's operations.

        The processes of a member load the model at the same time, and each keeps its shard.
        """
        siblings = siblings or Siblings()
        torch.set_num_threads(threads)
        # Progress bars would fill the log file.
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        device = own_device(siblings)
        tokenizer = load_tokenizer(task)
        cache = contract.folder / "tokens"
        data = tokenized_dataset(task.dataset, tokenizer, task.max_length, cache)
        if data.left_out:
            _log.info("skipping %d rows without tokens to learn", data.left_out)
        rows = np.arange(len(data))
        if task.eval_dataset is not None:
            aside = tokenized_dataset(task.eval_dataset, tokenizer, task.max_length, cache)
            evaluation = (aside, np.arange(min(len(aside), task.eval_rows)))
        else:
            kept = held_out(len(data), task.eval_fraction, task.eval_rows, task.seed)
            evaluation = (data, kept)
            rows = np.delete(rows, kept)
        try:
            model = _model(task, contract, siblings, device)
            _check_fit(task, data, model.config)
            learner = SharedState(task, model, data, rows, device, siblings)
        except torch.OutOfMemoryError as error:
            allowed = f"a smaller model, or LoRA: out of memory ({error})"
            raise OutOfMemory("model", task.model, allowed) from None
        torch.use_deterministic_algorithms(task.reproducible and device.type == "cuda")
        return cls(contract, task, tokenizer, learner, evaluation, device, siblings)

    @property
    def summary(self) -> str:
        """Return a one-line description for the log."""
        learner = self._learner
        return (
            f"{learner.trainable:,} trainable parameters on {self._device.type}"
            f"{'' if learner.whole else f', sharded over {self._siblings.count} processes'}, "
            f"at most {self._task.microbatch_tokens:,} tokens per microbatch"
            f"{', reproducible' if learner.reproducible else ''}; {learner.way}"
        )

    def run(self, notice: Notice, reporter: ProgressReporter) -> PublishedResult | None:
        """Train and return the published result; None if this member had to leave before."""
        contract, learner = self._contract, self._learner
        store = checkpoint_store(contract)
        restored = restore(store, learner, self._siblings)
        saver = Saver(
            store,
            contract.hazard_file,
            every_s=self._task.checkpoint_every_s,
            alone=contract.coordinator_file is None,
            saved_step=0 if restored is None else restored.step,
            touch=self._touch,
        )
        self._siblings.touched = self._touch
        group = join(
            contract,
            store,
            restored,
            learner,
            self._device,
            notice,
            self._touch,
            self._siblings,
            OwnShard(learner),
            lambda: learner.pace.told,
        )
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
            # Stay a member while publishing, so that a new member waits instead of training alone.
            return self._result(saver.warning)
        except torch.OutOfMemoryError as error:
            if learner.step:
                raise
            size = self._task.per_device_train_batch_size
            allowed = f"a smaller batch or a shorter max_length: out of memory ({error})"
            raise OutOfMemory("per_device_train_batch_size", size, allowed) from None
        finally:
            group.close()
            saver.wait()
            self._siblings.close()

    def follow(self) -> None:
        """Do what the member's first process asks for, until it says that the work is over."""
        learner, store = self._learner, checkpoint_store(self._contract)
        links = follow(
            self._contract, store, learner, OwnShard(learner), self._touch, self._siblings.place
        )
        Follower(
            learner,
            self._siblings,
            links,
            restore=lambda name: load_named(store, learner, name),
            evaluate=lambda base: self._loss(base=base),
            touch=self._touch if links is None else links.touch,
        ).run()

    def _result(self, warning: str) -> PublishedResult:
        output = self._contract.output
        with only_publisher(output, self._wait):
            if (found := published(output)) is not None:
                return found
            with self._touch.kept_up():
                return self._publish(warning)

    def _publish(self, warning: str) -> PublishedResult:
        if self._learner.step < self._learner.total_steps:
            raise RuntimeError("the result that another member had published was removed")
        _log.info("all %d steps are done; measuring the evaluation loss", self._learner.step)
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
            save_model(whole_model(self._task, self._learner), self._tokenizer, folder)

        result = publish(self._contract.output, write, result)
        _log.info("published %s", self._contract.output)
        return result

    def _losses(self) -> tuple[float | None, float | None, int]:
        """Return the evaluation loss before and after training, and the number of rows."""
        if not (count := len(self._evaluation[1])):
            return None, None, 0
        together = self._siblings.together
        tuned = together(Evaluate(base=False), lambda: self._loss(base=False))
        base = together(Evaluate(base=True), lambda: self._loss(base=True))
        return base, tuned, count

    def _loss(self, *, base: bool) -> float:
        """Return the evaluation loss of the tuned model or of its base."""
        model = self._learner.model
        if not base:
            return self._mean_loss(model)
        if self._task.method is TrainingMethod.LORA:
            with model.disable_adapter():
                return self._mean_loss(model)
        return self._mean_loss(
            _model(self._task, self._contract, self._siblings, self._device, base=True)
        )

    def _mean_loss(self, model: LanguageModel) -> float:
        """Return the mean loss per token; the processes of a member share the batches."""
        data, rows = self._evaluation
        size, count = self._task.per_device_train_batch_size, self._siblings.count
        batches = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
        own = batches[self._siblings.place :: count]
        dtype = precision(self._task)
        loss = mean_loss(model, data, own, self._device, dtype)
        if len(own) * count < len(batches):
            # All must make the same number of passes.
            mean_loss(model, data, batches[:1], self._device, dtype)
        targets = sum(data.targets(batch) for batch in own)
        total, every = self._siblings.sums(loss * targets, targets)
        return total / max(1.0, every)

    def _wait(self) -> None:
        self._touch()
        time.sleep(_POLL_S)


class _Heartbeat:
    """A file that this member touches while it works; the node's agent watches it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = 0.0

    @contextlib.contextmanager
    def kept_up(self) -> Iterator[None]:
        """Touch the file in a thread, for long work that does not: measuring and writing."""
        done = threading.Event()

        def touch() -> None:
            while not done.wait(_POLL_S):
                self()

        thread = threading.Thread(target=touch, name="heartbeat-file", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def __call__(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _POLL_S
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        except OSError as error:
            _log.debug("cannot touch the heartbeat file: %s", error)


def _model(
    task: TrainingTask,
    contract: Contract,
    siblings: Siblings,
    device: torch.device,
    *,
    base: bool = False,
) -> LanguageModel:
    """Load the model or its base: onto this process's device, or sharded over the member's."""
    if siblings.count == 1:
        return load_base(task, device) if base else load_model(task, device)
    cpu, dtype = torch.device("cpu"), precision(task)
    model = load_base(task, cpu) if base else load_model(task, cpu, choose=False)
    shard(model, siblings, device, dtype, contract.folder / RENDEZVOUS)
    if not base:
        choose_forward_pass(model, task, device, dtype, sharded=True)
    return model


def _check_fit(task: TrainingTask, data: TokenizedRows, config: object) -> None:
    """Raise ``InvalidInput`` if rows are too long for the model or contain unknown tokens."""
    positions = getattr(config, "max_position_embeddings", None)
    longest = int(np.diff(data.begins).max())
    if isinstance(positions, int) and longest > positions:
        raise InvalidInput("max_length", task.max_length, f"at most {positions} for this model")
    vocabulary = getattr(config, "vocab_size", None)
    if isinstance(vocabulary, int) and int(data.ids.max()) >= vocabulary:
        allowed = f"a model whose vocabulary ({vocabulary}) contains all tokens of its tokenizer"
        raise InvalidInput("model", task.model, allowed)

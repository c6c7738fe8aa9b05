"""One member's work on a task: load model and data, train with the group, publish the result.

Importing this module imports torch and transformers; ``worker`` does so only when it must.
"""

from __future__ import annotations

import functools
import logging
import time
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np
import torch
import transformers

from duetune.core.node_contract import RENDEZVOUS
from duetune.errors import InvalidInput, OutOfMemory
from duetune.training.adapters import base_outline, load_base
from duetune.training.batches import held_out
from duetune.training.entry import checkpoint_store, follow, join, load_named, restore
from duetune.training.evaluation import Evaluation, stopped_words
from duetune.training.follower import SiblingFollower
from duetune.training.forward_pass import choose_forward_pass
from duetune.training.group import GroupBroken
from duetune.training.heartbeat_file import HeartbeatFile
from duetune.training.hub_upload import upload
from duetune.training.language_model import precision
from duetune.training.member_model import loaded_once
from duetune.training.metrics import MetricRow
from duetune.training.publication import PublishedResult, only_publisher, publish, published
from duetune.training.saver import Saver
from duetune.training.sharding import own_device, shard
from duetune.training.shared_state import OwnShard, SharedState, whole_model
from duetune.training.siblings import EvaluateBase, Restore, Siblings
from duetune.training.tokens import LossRules, tokenized_dataset
from duetune.training.tracking import Tracking
from duetune.training.trained_model import load_model, load_tokenizer, prepared, save_model
from duetune.training.training_loop import ElasticTraining

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.training.checkpoint import CheckpointStore
    from duetune.training.language_model import LanguageModel
    from duetune.training.task import TrainingTask
    from duetune.training.tokens import TokenizedRows, Tokenizer
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
        evaluation: Evaluation,
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
        self._touch = HeartbeatFile(contract)

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

        The first process of a member loads the model for all, and each keeps its shard.
        """
        siblings = siblings or Siblings()
        torch.set_num_threads(threads)
        # Progress bars would fill the log file.
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        device = own_device(siblings)
        tokenizer = load_tokenizer(task)
        cache = contract.folder / "tokens"
        read = functools.partial(
            tokenized_dataset,
            tokenizer=tokenizer,
            max_length=task.max_length,
            cache=cache,
            rules=LossRules.of(task),
            text_field=task.dataset_text_field,
        )
        data = read(task.dataset)
        if data.left_out:
            _log.info("skipping %d rows without tokens to learn", data.left_out)
        rows = np.arange(len(data))
        if task.eval_dataset is not None:
            aside = read(task.eval_dataset)
            measured = (aside, np.arange(min(len(aside), task.eval_rows)))
        else:
            kept = held_out(len(data), task.eval_fraction, task.eval_rows, task.seed)
            measured = (data, kept)
            rows = np.delete(rows, kept)
        try:
            model = _model(task, contract, siblings, device)
            _check_fit(task, data, model.config)
            learner = SharedState(task, model, data, rows, device, siblings)
        except torch.OutOfMemoryError as error:
            allowed = f"a smaller model, or LoRA: out of memory ({error})"
            raise OutOfMemory("model", task.model, allowed) from None
        torch.use_deterministic_algorithms(task.reproducible and device.type == "cuda")
        evaluation = Evaluation(task, *measured, len(rows), device, siblings)
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
        tracking = Tracking(contract.folder, contract.job, self._task)
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
                self._task,
                learner,
                self._evaluation,
                group,
                saver,
                reporter,
                notice,
                tracking,
                over=lambda: published(contract.output) is not None,
            )
            if not training.run():
                return None
            # Stay a member while publishing, so that a new member waits instead of training alone.
            result = self._result(store, saver.warning)
        except torch.OutOfMemoryError as error:
            if learner.step:
                raise
            size = self._task.per_device_train_batch_size
            allowed = f"a smaller batch or a shorter max_length: out of memory ({error})"
            raise OutOfMemory("per_device_train_batch_size", size, allowed) from None
        else:
            tracking.finish(MetricRow(step=result.steps, eval_loss=result.last_eval_loss))
            return result
        finally:
            group.close()
            saver.wait()
            tracking.close()
            self._siblings.close()

    def follow(self) -> None:
        """Do what the member's first process asks for, until it says that the work is over."""
        learner, store = self._learner, checkpoint_store(self._contract)
        # Only the first process touches the heartbeat file: it waits for all others.
        links = follow(
            self._contract, store, learner, OwnShard(learner), _nothing, self._siblings.place
        )
        SiblingFollower(
            learner,
            self._siblings,
            links,
            self._evaluation,
            restore=lambda name: load_named(store, learner, name),
            evaluate_base=self._base_loss,
            touch=_nothing if links is None else links.touch,
        ).run()

    def _result(self, store: CheckpointStore, warning: str) -> PublishedResult:
        output = self._contract.output
        with only_publisher(output, self._wait):
            if (found := published(output)) is not None:
                return found
            with self._touch.kept_up():
                return self._publish(store, warning)

    def _publish(self, store: CheckpointStore, warning: str) -> PublishedResult:
        if self._learner.step < self._learner.total_steps:
            raise RuntimeError("the result that another member had published was removed")
        known, planned = self._learner.known, self._learner.planned_steps
        _log.info("all %d steps are done; measuring the evaluation loss", known.step)
        last = known.evaluated
        if self._evaluation.rows and last.step != known.step:
            loss = self._learner.evaluated_alone(self._evaluation, self._touch)
            last = last.after(known.step, loss, 0.0)
        best, eval_loss = 0, last.loss
        if self._task.load_best_model_at_end and last.best_step:
            best = last.best_step
            if best != known.step and not self._load_best(store, best):
                best, warning = 0, warning or f"the best state, of step {best}, cannot be read"
        result = PublishedResult(
            steps=known.step,
            tokens=known.tokens,
            loss=known.losses[-1] if known.losses else None,
            eval_loss=last.best_loss if best else eval_loss,
            base_eval_loss=self._base_loss(),
            eval_rows=self._evaluation.rows,
            warning=warning,
            last_eval_loss=last.loss,
            best_step=best,
            stopped=stopped_words(known.step, planned, last.waited) if known.stopped else "",
        )

        def write(folder: Path) -> None:
            save_model(whole_model(self._task, self._learner), self._tokenizer, folder)

        result = publish(self._contract.output, write, result)
        _log.info("published %s", self._contract.output)
        if missed := upload(self._task, self._contract.output):
            return msgspec.structs.replace(result, warning=missed)
        return result

    def _load_best(self, store: CheckpointStore, step: int) -> bool:
        """Take the parameters of an earlier step; return False if its checkpoint is gone."""
        learner, known = self._learner, self._learner.known
        found = store.at(step)
        if found is None:
            _log.warning("publishing the last state: there is no checkpoint of step %d", step)
            return False
        name = found.path.name
        try:
            self._siblings.together(Restore(name), lambda: load_named(store, learner, name))
        except GroupBroken as damage:
            _log.warning("publishing the last state: %s", damage)
            return False
        learner.known = known
        _log.info("publishing the state of step %d, which has the lowest evaluation loss", step)
        return True

    def _base_loss(self) -> float | None:
        """Return the evaluation loss before training."""
        if not self._evaluation.rows:
            return None
        return self._siblings.together(EvaluateBase(), self._own_base_loss)

    def _own_base_loss(self) -> float:
        if self._task.adapts:
            with self._learner.model.disable_adapter():
                return self._evaluation.alone(self._learner.model, self._touch)
        model = _model(self._task, self._contract, self._siblings, self._device, base=True)
        return self._evaluation.alone(model, self._touch)

    def _wait(self) -> None:
        self._touch()
        time.sleep(_POLL_S)


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
    if task.unshardable:
        raise InvalidInput("gpus_per_member", siblings.count, f"1, because {task.unshardable}")
    cpu, dtype = torch.device("cpu"), precision(task)
    load = load_base if base else load_model

    def outline() -> LanguageModel:
        found = base_outline(task)
        return found if base else prepared(task, found, cpu)

    with loaded_once(siblings, lambda: load(task, cpu, choose=False), outline) as model:
        shard(model, siblings, device, dtype, contract.folder / RENDEZVOUS)
    choose_forward_pass(model, task, device, dtype, sharded=True)
    return model


def _nothing() -> None:
    """Do nothing."""


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

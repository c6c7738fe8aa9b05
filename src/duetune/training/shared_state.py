"""The training state that all members share, and what a step does to it.

In a step every member computes the gradients of some microbatches, the gradients are summed over
all members, and each member makes the same update. Nothing changes before the update, so a step can
be repeated with other members. ``training_loop`` runs the steps; ``group`` sums over members.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from duetune.training.batches import BatchPlan, dropout_seed
from duetune.training.flat_parameters import FlatParameters, loss_columns, loss_of
from duetune.training.forward_pass import forward_pass_of
from duetune.training.language_model import precision, seeded
from duetune.training.learner_state import FIRST_SCALE, MOST_SKIPPED, Diverged, LearnerState
from duetune.training.optimisers import FlatOptimiser, joined, joined_name
from duetune.training.pace import MemberPace
from duetune.training.packed_rows import microbatches, shares
from duetune.training.sharding import ShardedParameters
from duetune.training.siblings import Contribute, Copy, Evaluate, Siblings, Update
from duetune.training.trained_model import load_model, summed_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from duetune.training.checkpoint import Json
    from duetune.training.evaluation import Evaluation, EvaluationHistory
    from duetune.training.language_model import LanguageModel
    from duetune.training.task import TrainingTask
    from duetune.training.tokens import TokenizedRows

_log = logging.getLogger(__name__)


class SharedState:
    """One member's copy of the shared state, trained on ``rows`` of ``data``.

    - ``known``: the state besides the arrays.
    - ``lock``: held while the state changes or is read.
    - ``trainable``: the number of trainable parameters.
    - ``reproducible``: every microbatch's gradient is sent by itself, and all are added in one
      order. Otherwise each member adds up its own ones first, as a member of several processes
      always does.
    - ``pace``: measures this member's tokens per second.
    - ``whole``: this process has the whole model.
    - ``siblings``: the other processes of this member; the model is then sharded.
    """

    def __init__(
        self,
        task: TrainingTask,
        model: LanguageModel,
        data: TokenizedRows,
        rows: NDArray[np.int64],
        device: torch.device,
        siblings: Siblings | None = None,
    ) -> None:
        self._task = task
        self._siblings = siblings = siblings or Siblings()
        self.model = model
        self._data = data
        self._rows = rows
        self._device = device
        self._plan = BatchPlan(rows=len(rows), batch_rows=task.batch_rows, seed=task.order_seed)
        self.planned_steps = task.total_steps(len(rows))
        self.lock = threading.Lock()
        self._flat: FlatParameters | ShardedParameters
        self.whole = siblings.count == 1
        if self.whole:
            self._flat = FlatParameters(model, task)
        else:
            self._flat = ShardedParameters(model, task, siblings.place)
        self.trainable = self._flat.whole_size
        self._optimiser = FlatOptimiser(task, self._flat)
        scale = FIRST_SCALE if task.computed_in == "fp16" else 1.0
        self.known = LearnerState(layout=self._flat.layout, scale=scale)
        self.reproducible = task.reproducible and self.whole
        self.pace = MemberPace()

    @property
    def way(self) -> str:
        """Return how the model is computed, in words."""
        return "; ".join(forward_pass_of(self.model).notes)

    @property
    def step(self) -> int:
        """Return the number of steps done."""
        return self.known.step

    @property
    def total_steps(self) -> int:
        """Return the number of steps of the run: fewer than planned if it has stopped early."""
        return self.known.step if self.known.stopped else self.planned_steps

    def stop(self, evaluated: EvaluationHistory) -> None:
        """End training after the present step. Every member calls this after the same step."""
        with self.lock:
            self.known = msgspec.structs.replace(self.known, evaluated=evaluated, stopped=True)

    def contribution(
        self, rank: int, paces: Sequence[float], touch: Callable[[], None]
    ) -> torch.Tensor:
        """Return the gradients of this member's share of the step, and its loss in the
        columns after them.

        ``paces`` are the tokens per second of all members. If ``reproducible``, there is one row
        per microbatch, with the same number of rows on every member. Otherwise there is one row.
        """
        call = Contribute(rank, tuple(paces))
        return self._siblings.together(call, lambda: self._contribution(rank, paces, touch))

    def _contribution(
        self, rank: int, paces: Sequence[float], touch: Callable[[], None]
    ) -> torch.Tensor:
        try:
            return self._gradients(rank, paces, touch)
        except RuntimeError as error:
            if (
                "deterministic" not in str(error)
                or not torch.are_deterministic_algorithms_enabled()
            ):
                raise
            _log.warning(
                "results on this model are not reproducible to the last bit: %s", str(error)[:160]
            )
            torch.use_deterministic_algorithms(mode=False)
            return self._gradients(rank, paces, touch)

    def _gradients(
        self, rank: int, paces: Sequence[float], touch: Callable[[], None]
    ) -> torch.Tensor:
        task, rows = self._task, self._rows[self._plan.rows_of(self.step)]
        targets = self._data.targets(rows)
        mine, height = self._share(rows, rank, paces)
        losses = loss_columns(0.0, self._flat.values)
        width = self._flat.size + len(losses)
        part = torch.zeros(height, width, dtype=losses.dtype, device=self._device)
        began = time.monotonic()
        spare = np.zeros(1, dtype=np.int64)
        for place, own in enumerate(mine):
            touch()
            started = time.monotonic()
            row = part[place if self.reproducible else 0]
            # Every process of a member makes the same number of passes, some only to take part.
            chosen, counts = (own, True) if len(own) else (spare, False)
            with (
                self._flat.collecting_into(row[: self._flat.size]),
                seeded(dropout_seed(task.seed, self.step, int(chosen.min())), self._device),
            ):
                loss = summed_loss(
                    self.model, self._data, rows[chosen], self._device, precision(task)
                )
                # Divide by the tokens of the whole batch, so that every split gives the same sum.
                loss = loss / targets * counts
                (loss * self.known.scale).backward()  # type: ignore[no-untyped-call]
            row[self._flat.size :] += loss_columns(loss.detach(), self._flat.values)
            if task.emulated_microbatch_s is not None:
                share = len(chosen) / task.per_device_train_batch_size
                least = started + share * task.emulated_microbatch_s
                time.sleep(max(0.0, least - time.monotonic()))
        if mine and task.emulated_microbatch_s is None:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            tokens = self._data.tokens(rows[np.concatenate(mine)])
            self.pace.measured(tokens, time.monotonic() - began)
        return part

    def _share(
        self, rows: NDArray[np.int64], rank: int, paces: Sequence[float]
    ) -> tuple[list[NDArray[np.int64]], int]:
        """Return this member's microbatches, as places in ``rows``, and the rows it sends."""
        lengths, budget = self._data.lengths(rows), self._task.microbatch_tokens
        if not self.reproducible:
            return self._passes(shares(lengths, paces)[rank], lengths, budget), 1
        batches = self._microbatches(lengths)
        given = shares(_sizes(lengths, batches), paces)
        return [batches[number] for number in given[rank]], max(len(each) for each in given)

    def _passes(
        self, given: NDArray[np.int64], lengths: NDArray[np.int64], budget: int
    ) -> list[NDArray[np.int64]]:
        """Return this process's microbatches of what its member was given.

        There are as many as any process of the member has; the last ones may be empty.
        """
        siblings, packed = self._siblings, []
        for own in shares(lengths[given], (0.0,) * siblings.count):
            chosen = given[own]
            packed.append([chosen[places] for places in microbatches(lengths[chosen], budget)])
        most = max(len(each) for each in packed)
        mine = packed[siblings.place]
        return mine + [given[:0]] * (most - len(mine))

    def _microbatches(self, lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the microbatches of a reproducible step, whoever the members are."""
        return microbatches(lengths, self._task.microbatch_tokens, self._task.microbatches)

    def combined(self, parts: list[torch.Tensor], paces: Sequence[float]) -> torch.Tensor:
        """Return the sum of all rows, added in the order of microbatches on every member."""
        lengths = self._data.lengths(self._rows[self._plan.rows_of(self.step)])
        given = shares(_sizes(lengths, self._microbatches(lengths)), paces)
        sent = {
            int(number): part[place]
            for part, numbers in zip(parts, given, strict=True)
            for place, number in enumerate(numbers)
        }
        total = torch.zeros_like(parts[0][0])
        for number in range(len(sent)):
            total += sent[number]
        return total

    def update(self, total: torch.Tensor, evaluated: EvaluationHistory | None = None) -> None:
        """Do one optimiser step, or skip it if the gradient is not finite.

        ``evaluated`` includes the evaluation before this step. It enters the state together with
        the step, so members at the same step always have the same history.
        """
        self._siblings.together(Update(evaluated), lambda: self._update(total, evaluated))

    def _update(self, total: torch.Tensor, evaluated: EvaluationHistory | None) -> None:
        known, task = self.known, self._task
        fp16 = task.computed_in == "fp16"
        gradient = total[: self._flat.size]
        gradient /= known.scale
        square = float(torch.linalg.vector_norm(gradient, dtype=torch.float32)) ** 2
        loss, square = self._siblings.sums(loss_of(total[self._flat.size :]), square)
        norm = math.sqrt(square)
        finite = math.isfinite(norm)
        if finite and task.max_grad_norm and norm > task.max_grad_norm:
            gradient *= task.max_grad_norm / (norm + 1e-6)
        rows = self._rows[self._plan.rows_of(known.step)]
        with self.lock:
            if finite:
                rate = task.learning_rate_at(known.step, self.planned_steps)
                self._optimiser.apply(gradient, rate)
                self._flat.refresh()
            self.known = msgspec.structs.replace(
                known.stepped(loss, self._data.tokens(rows), finite=finite, fp16=fp16),
                grad_norm=norm,
                evaluated=known.evaluated if evaluated is None else evaluated,
            )
        if self.known.skipped >= MOST_SKIPPED:
            raise Diverged(self.known.step)

    def trained_model(self) -> LanguageModel:
        """Return the whole model to save it, with parameters of its own. No step may follow."""
        if isinstance(self._flat, FlatParameters):
            self._flat.let_go()
        return self.model

    def own_arrays(self) -> dict[str, torch.Tensor]:
        """Return the tensors of this process that training changes, by name; not copies."""
        return {"parameters": self._flat.values, **self._optimiser.arrays()}

    def arrays(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the whole model that training changes, by name; not copies.

        In a member of several processes they lie in shared memory, until the next call.
        """
        flat, own = self._flat, self.own_arrays()
        if not isinstance(flat, ShardedParameters):
            return own
        first: dict[str, torch.Tensor] = {}
        for name, array in own.items():
            first.setdefault(joined_name(name), array)
        lengths = {name: flat.whole_length(name, array) for name, array in first.items()}
        sizes = [lengths[name] * array.itemsize for name, array in first.items()]
        # Every array begins at a multiple of 64 bytes.
        begins = [0, *itertools.accumulate(-(-size // 64) * 64 for size in sizes)]
        memory = self._siblings.shared_memory(begins.pop())
        whole = {
            name: torch.frombuffer(memory, dtype=array.dtype, count=lengths[name], offset=begin)
            for (name, array), begin in zip(first.items(), begins, strict=True)
            if lengths[name]
        }

        def copy() -> None:
            for name, array in own.items():
                if array.numel():
                    flat.put(name, array, whole[joined_name(name)])

        self._siblings.together(Copy(), copy)
        return {name: whole.get(name, array) for name, array in first.items()}

    def evaluated_share(
        self, evaluation: Evaluation, rank: int, paces: Sequence[float], touch: Callable[[], None]
    ) -> torch.Tensor:
        """Return this member's part of an evaluation, by all its processes."""
        call = Evaluate(rank, tuple(paces))
        return self._siblings.together(
            call, lambda: evaluation.share(self.model, rank, paces, touch)
        )

    def evaluated_alone(self, evaluation: Evaluation, touch: Callable[[], None]) -> float:
        """Return the mean loss on the rows of an evaluation, measured by this member alone."""
        alone = (0.0,)
        return evaluation.mean([self.evaluated_share(evaluation, 0, alone, touch)], alone)

    def document(self) -> dict[str, Json]:
        """Return the state besides the arrays as JSON."""
        found: dict[str, Json] = msgspec.to_builtins(self.known)
        return found

    def load_own(self, arrays: dict[str, torch.Tensor], document: dict[str, Json]) -> None:
        """Replace this process's part of the state."""
        known = msgspec.convert(document, LearnerState)
        if known.layout != self._flat.layout:
            raise ValueError("the state belongs to another model or task")
        self._flat.values.copy_(arrays["parameters"])
        self._flat.refresh()
        self._optimiser.load(arrays, known.updates)
        self.known = known

    def load(self, arrays: dict[str, torch.Tensor], document: dict[str, Json]) -> None:
        """Replace the state by that of a checkpoint, which holds the whole model."""
        flat = self._flat
        if isinstance(flat, ShardedParameters):
            arrays = {name: flat.take(name, array) for name, array in joined(arrays).items()}
        self.load_own(arrays, document)


def _sizes(lengths: NDArray[np.int64], batches: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the tokens of each microbatch."""
    return np.array([lengths[places].sum() for places in batches], dtype=np.int64)


class OwnShard:
    """The state of one process, as the same process of another member copies it."""

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self.lock = state.lock

    @property
    def step(self) -> int:
        """Return the number of steps done."""
        return self._state.step

    def arrays(self) -> dict[str, torch.Tensor]:
        """Return the tensors of this process, by name; not copies."""
        return self._state.own_arrays()

    def document(self) -> dict[str, Json]:
        """Return the rest of the state as JSON."""
        return self._state.document()

    def load(self, arrays: dict[str, torch.Tensor], document: dict[str, Json]) -> None:
        """Replace this process's part of the state."""
        self._state.load_own(arrays, document)


def whole_model(task: TrainingTask, state: SharedState) -> LanguageModel:
    """Return the model with its trained parameters, on the CPU if ``state`` has only a shard."""
    if state.whole:
        return state.trained_model()
    model = load_model(task, torch.device("cpu"))
    flat = FlatParameters(model, task)
    flat.values.copy_(state.arrays()["parameters"])
    flat.let_go()
    return model

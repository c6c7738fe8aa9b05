"""The training state that all members share, and what a step does to it.

In a step every member computes the gradients of some microbatches, the gradients are summed over
all members, and each member makes the same update. Nothing changes before the update, so a step can
be repeated with other members. ``training_loop`` runs the steps; ``group`` sums over members.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from duetune.errors import DuetuneError
from duetune.training.batches import BatchPlan, dropout_seed
from duetune.training.evaluation import EvaluationHistory
from duetune.training.flat_parameters import FlatParameters
from duetune.training.forward_pass import forward_pass_of
from duetune.training.language_model import precision, seeded
from duetune.training.optimisers import FlatOptimiser
from duetune.training.pace import MemberPace
from duetune.training.packing import microbatches, shares
from duetune.training.trained_model import summed_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from duetune.training.checkpoint import Json
    from duetune.training.language_model import LanguageModel
    from duetune.training.task import TrainingTask
    from duetune.training.tokens import TokenizedRows

_log = logging.getLogger(__name__)

_TAIL = 50
_MOST_SKIPPED = 20
_FIRST_SCALE = 2.0**15
_SCALE_GROWS_AFTER = 2000
# A loss in 16 bits: digits of base 4, of which so many are after the point.
_DIGITS, _FRACTION = 16, 10


class Diverged(DuetuneError):
    """Training stopped because the loss was not finite for many steps in a row."""

    code = "diverged"

    def __init__(self, step: int) -> None:
        super().__init__(
            f"the loss was not finite in the {_MOST_SKIPPED} steps up to step {step}; "
            "a lower learning_rate may help"
        )


class LearnerState(msgspec.Struct, frozen=True):
    """The state of a run besides its arrays.

    - ``layout``: a digest of the names and shapes of the trained parameters.
    - ``updates``: steps with a finite gradient.
    - ``losses``: the last 50 losses.
    - ``scale``: the loss scale of float16 training; ``steady`` counts steps since it changed.
    - ``skipped``: steps in a row whose gradient was not finite.
    - ``grad_norm``: the norm of the last gradient before it was clipped.
    - ``evaluated``: the evaluations during training.
    - ``stopped``: training has ended early, because of the evaluations.
    """

    layout: str
    step: int = 0
    updates: int = 0
    tokens: int = 0
    losses: tuple[float, ...] = ()
    scale: float = 1.0
    steady: int = 0
    skipped: int = 0
    grad_norm: float = 0.0
    evaluated: EvaluationHistory = EvaluationHistory()
    stopped: bool = False


class SharedState:
    """One member's copy of the shared state, trained on ``rows`` of ``data``.

    - ``known``: the state besides the arrays.
    - ``lock``: held while the state changes or is read.
    - ``trainable``: the number of trainable parameters.
    - ``reproducible``: every microbatch's gradient is sent by itself, and all are added in one
      order. Otherwise each member adds up its own ones first.
    - ``pace``: measures this member's tokens per second.
    """

    def __init__(
        self,
        task: TrainingTask,
        model: LanguageModel,
        data: TokenizedRows,
        rows: NDArray[np.int64],
        device: torch.device,
    ) -> None:
        self._task = task
        self.model = model
        self._data = data
        self._rows = rows
        self._device = device
        self._plan = BatchPlan(rows=len(rows), batch_rows=task.batch_rows, seed=task.order_seed)
        self.planned_steps = task.total_steps(len(rows))
        self.lock = threading.Lock()
        self._flat = FlatParameters(model, task)
        self.trainable = self._flat.size
        self._optimiser = FlatOptimiser(task, self._flat)
        scale = _FIRST_SCALE if task.computed_in == "fp16" else 1.0
        self.known = LearnerState(layout=self._flat.layout, scale=scale)
        self.reproducible = task.reproducible
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
        for place, chosen in enumerate(mine):
            touch()
            started = time.monotonic()
            row = part[place if self.reproducible else 0]
            with (
                self._flat.collecting_into(row[: self._flat.size]),
                seeded(dropout_seed(task.seed, self.step, int(chosen.min())), self._device),
            ):
                loss = summed_loss(
                    self.model, self._data, rows[chosen], self._device, precision(task)
                )
                # Divide by the tokens of the whole batch, so that every split gives the same sum.
                loss = loss / targets
                (loss * self.known.scale).backward()  # type: ignore[no-untyped-call]
            row[self._flat.size :] += loss_columns(loss.detach(), self._flat.values)
            if task.emulated_microbatch_s is not None:
                share = len(chosen) / task.per_device_train_batch_size
                least = started + share * task.emulated_microbatch_s
                time.sleep(max(0.0, least - time.monotonic()))
        if mine and task.emulated_microbatch_s is None:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            own = rows[np.concatenate(mine)]
            self.pace.measured(self._data.tokens(own), time.monotonic() - began)
        return part

    def _share(
        self, rows: NDArray[np.int64], rank: int, paces: Sequence[float]
    ) -> tuple[list[NDArray[np.int64]], int]:
        """Return this member's microbatches, as places in ``rows``, and the rows it sends."""
        lengths, budget = self._data.lengths(rows), self._task.microbatch_tokens
        if not self.reproducible:
            own = shares(lengths, paces)[rank]
            return [own[places] for places in microbatches(lengths[own], budget)], 1
        batches = self._microbatches(lengths)
        given = shares(_sizes(lengths, batches), paces)
        return [batches[number] for number in given[rank]], max(len(each) for each in given)

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
        known, task = self.known, self._task
        fp16 = task.computed_in == "fp16"
        gradient, loss = total[: self._flat.size], loss_of(total[self._flat.size :])
        gradient /= known.scale
        norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float32))
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
                _after(known, loss, self._data.tokens(rows), finite=finite, fp16=fp16),
                grad_norm=norm,
                evaluated=known.evaluated if evaluated is None else evaluated,
            )
        if self.known.skipped >= _MOST_SKIPPED:
            raise Diverged(self.known.step)

    def trained_model(self) -> LanguageModel:
        """Return the model to save it, with parameters of its own. No step may follow."""
        self._flat.let_go()
        return self.model

    def arrays(self) -> dict[str, torch.Tensor]:
        """Return the tensors that training changes, by name; not copies."""
        return {"parameters": self._flat.values, **self._optimiser.arrays()}

    def document(self) -> dict[str, Json]:
        """Return the state besides the arrays as JSON."""
        found: dict[str, Json] = msgspec.to_builtins(self.known)
        return found

    def load(self, arrays: dict[str, torch.Tensor], document: dict[str, Json]) -> None:
        """Replace the state by that of a checkpoint or another member."""
        known = msgspec.convert(document, LearnerState)
        if known.layout != self._flat.layout:
            raise ValueError("the state belongs to another model or task")
        self._flat.values.copy_(arrays["parameters"])
        self._flat.refresh()
        self._optimiser.load(arrays, known.updates)
        self.known = known


def loss_columns(loss: torch.Tensor | float, like: torch.Tensor) -> torch.Tensor:
    """Return a loss as numbers that can be added up beside gradients of the type of ``like``.

    In 16 bits a sum would have three digits. So the loss is written with base 4 in fixed point;
    the sum of each digit over up to 85 parts has 8 bits, which bfloat16 keeps.
    """
    value = torch.as_tensor(loss, dtype=torch.float32, device=like.device)
    if like.dtype == torch.float32:
        return value.reshape(1)
    places = 4.0 ** torch.arange(_DIGITS, device=like.device)
    digits = torch.floor((value * 4.0**_FRACTION) / places) % 4
    return torch.where(value.isfinite(), digits, torch.nan).to(like.dtype)


def _sizes(lengths: NDArray[np.int64], batches: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the tokens of each microbatch."""
    return np.array([lengths[places].sum() for places in batches], dtype=np.int64)


def loss_of(columns: torch.Tensor) -> float:
    """Return the loss of added columns."""
    if columns.dtype == torch.float32:
        return float(columns[0])
    places = 4.0 ** torch.arange(_DIGITS, dtype=torch.float64, device=columns.device)
    return float((columns.double() * places).sum() / 4.0**_FRACTION)


def _after(
    known: LearnerState, loss: float, tokens: int, *, finite: bool, fp16: bool
) -> LearnerState:
    scale, steady = known.scale, known.steady + 1
    if fp16 and not finite:
        scale, steady = scale / 2, 0
    elif fp16 and steady >= _SCALE_GROWS_AFTER:
        scale, steady = scale * 2, 0
    return LearnerState(
        layout=known.layout,
        step=known.step + 1,
        updates=known.updates + finite,
        tokens=known.tokens + tokens,
        losses=(*known.losses, loss)[-_TAIL:],
        scale=scale,
        steady=steady,
        skipped=0 if finite else known.skipped + 1,
    )

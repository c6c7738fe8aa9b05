"""The training state that all members share, and what a step does to it.

In a step every member computes the gradients of some microbatches, the gradients are summed over
all members, and each member makes the same update. Nothing changes before the update, so a step can
be repeated with other members. ``training_loop`` runs the steps; ``group`` sums over members.
"""

from __future__ import annotations

import hashlib
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
from duetune.training.forward_pass import forward_pass_of
from duetune.training.pace import MemberPace
from duetune.training.packing import microbatches, shares
from duetune.training.trained_model import precision, seeded, summed_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from duetune.training.checkpoint import Json
    from duetune.training.task import TrainingTask
    from duetune.training.tokens import TokenizedRows
    from duetune.training.trained_model import LanguageModel

_log = logging.getLogger(__name__)

_TAIL = 50
_MOST_SKIPPED = 20
_FIRST_SCALE = 2.0**15
_SCALE_GROWS_AFTER = 2000


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
    """

    layout: str
    step: int = 0
    updates: int = 0
    tokens: int = 0
    losses: tuple[float, ...] = ()
    scale: float = 1.0
    steady: int = 0
    skipped: int = 0


class FlatParameters:
    """The trainable parameters of a model as one vector; those with weight decay come first.

    One vector is easy to sum, to send to another member and to save. The parameters of the model
    become views into it.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        named = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        ]
        # As in transformers, biases and the scales of normalisation layers do not decay.
        named.sort(key=lambda pair: pair[1].ndim < 2)
        self._parameters = [parameter for _, parameter in named]
        sizes = [parameter.numel() for parameter in self._parameters]
        self.decaying = sum(
            parameter.numel() for parameter in self._parameters if parameter.ndim >= 2
        )
        self.layout = _layout(named)
        device = self._parameters[0].device
        self.size = sum(sizes)
        self.values = torch.empty(self.size, dtype=torch.float32, device=device)
        for parameter, place in zip(self._parameters, torch.split(self.values, sizes), strict=True):
            place.copy_(parameter.data.flatten())
            parameter.data = place.view_as(parameter.data)

    def collect_into(self, row: torch.Tensor) -> None:
        """Add the gradients of the following backward passes to ``row``."""
        begin = 0
        for parameter in self._parameters:
            place = row[begin : begin + parameter.numel()]
            parameter.grad = place.view_as(parameter)
            begin += parameter.numel()

    def forget_gradients(self) -> None:
        """Stop collecting gradients."""
        for parameter in self._parameters:
            parameter.grad = None


def _layout(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return a digest of names and shapes; states of another layout belong to another task."""
    seen = hashlib.sha256()
    for name, parameter in named:
        seen.update(f"{name}:{tuple(parameter.shape)}\n".encode())
    return seen.hexdigest()[:16]


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
        self._plan = BatchPlan(rows=len(rows), batch_rows=task.batch_rows, seed=task.seed)
        self.total_steps = task.total_steps(len(rows))
        self.lock = threading.Lock()
        self._flat = FlatParameters(model)
        self.trainable = self._flat.size
        self._optimizer = _optimizer(task, self._flat)
        scale = _FIRST_SCALE if task.fp16 else 1.0
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

    def contribution(
        self, rank: int, paces: Sequence[float], touch: Callable[[], None]
    ) -> torch.Tensor:
        """Return the gradients of this member's share of the step; the last column is the loss.

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
        part = torch.zeros(height, self._flat.size + 1, device=self._device)
        began = time.monotonic()
        for place, chosen in enumerate(mine):
            touch()
            started = time.monotonic()
            row = part[place if self.reproducible else 0]
            self._flat.collect_into(row[:-1])
            with seeded(dropout_seed(task.seed, self.step, int(chosen.min())), self._device):
                loss = summed_loss(
                    self.model, self._data, rows[chosen], self._device, precision(task)
                )
                # Divide by the tokens of the whole batch, so that every split gives the same sum.
                loss = loss / targets
                (loss * self.known.scale).backward()  # type: ignore[no-untyped-call]
            row[-1] += loss.detach()
            if task.emulated_microbatch_s is not None:
                share = len(chosen) / task.per_device_train_batch_size
                least = started + share * task.emulated_microbatch_s
                time.sleep(max(0.0, least - time.monotonic()))
        self._flat.forget_gradients()
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

    def update(self, total: torch.Tensor) -> None:
        """Do one optimiser step, or skip it if the gradient is not finite."""
        known, task = self.known, self._task
        gradient, loss = total[:-1], float(total[-1])
        gradient /= known.scale
        norm = float(torch.linalg.vector_norm(gradient))
        finite = math.isfinite(norm)
        if finite and task.max_grad_norm and norm > task.max_grad_norm:
            gradient *= task.max_grad_norm / (norm + 1e-6)
        rows = self._rows[self._plan.rows_of(known.step)]
        with self.lock:
            if finite:
                self._move(gradient)
            self.known = _after(known, loss, self._data.tokens(rows), finite=finite, fp16=task.fp16)
        if self.known.skipped >= _MOST_SKIPPED:
            raise Diverged(self.known.step)

    def arrays(self) -> dict[str, torch.Tensor]:
        """Return the tensors that training changes, by name; not copies."""
        found = {"parameters": self._flat.values}
        for name, piece in zip(("decaying", "other"), self._pieces(), strict=True):
            for moment in ("exp_avg", "exp_avg_sq"):
                state = self._optimizer.state.get(piece)
                found[f"{name}.{moment}"] = state[moment] if state else torch.zeros_like(piece.data)
        return found

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
        for name, piece in zip(("decaying", "other"), self._pieces(), strict=True):
            self._optimizer.state[piece] = {
                "step": torch.tensor(float(known.updates), device=self._device),
                "exp_avg": arrays[f"{name}.exp_avg"].to(self._device),
                "exp_avg_sq": arrays[f"{name}.exp_avg_sq"].to(self._device),
            }
        self.known = known

    def _move(self, gradient: torch.Tensor) -> None:
        """Apply one AdamW update with the learning rate of the current step."""
        border = self._flat.decaying
        for piece, part in zip(self._pieces(), (gradient[:border], gradient[border:]), strict=True):
            piece.grad = part
        for group in self._optimizer.param_groups:
            group["lr"] = self._task.learning_rate_at(self.known.step, self.total_steps)
        self._optimizer.step()
        for piece in self._pieces():
            piece.grad = None

    def _pieces(self) -> list[torch.Tensor]:
        return [group["params"][0] for group in self._optimizer.param_groups]


def _sizes(lengths: NDArray[np.int64], batches: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the tokens of each microbatch."""
    return np.array([lengths[places].sum() for places in batches], dtype=np.int64)


def _optimizer(task: TrainingTask, flat: FlatParameters) -> torch.optim.AdamW:
    pieces = (flat.values[: flat.decaying], flat.values[flat.decaying :])
    return torch.optim.AdamW(
        [
            {"params": [torch.nn.Parameter(piece)], "weight_decay": decay}
            for piece, decay in zip(pieces, (task.weight_decay, 0.0), strict=True)
        ],
        lr=task.learning_rate,
        betas=(task.adam_beta1, task.adam_beta2),
        eps=task.adam_epsilon,
        foreach=False,
        fused=flat.values.is_cuda,
    )


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

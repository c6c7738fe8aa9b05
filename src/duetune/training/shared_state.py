"""The training state that all members share, and what a step does to it.

In a step every member computes the gradients of some microbatches, the gradients are summed over
all members, and each member makes the same update. Nothing changes before the update, so a step can
be repeated with other members. ``training_loop`` runs the steps; ``group`` sums over members.
"""

from __future__ import annotations

import hashlib
import itertools
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
from duetune.training.sharding import ShardedParameters
from duetune.training.siblings import Contribute, Copy, Siblings, Update
from duetune.training.trained_model import load_model, precision, seeded, summed_loss

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

    def __init__(self, named: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        self._parameters = [parameter for _, parameter in named]
        sizes = [parameter.numel() for parameter in self._parameters]
        self.decaying = sum(
            parameter.numel() for parameter in self._parameters if parameter.ndim >= 2
        )
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


def _trainable(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the trainable parameters; those with weight decay come first."""
    named = [pair for pair in model.named_parameters() if pair[1].requires_grad]
    # As in transformers, biases and the scales of normalisation layers do not decay.
    return sorted(named, key=lambda pair: pair[1].ndim < 2)


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
        self._plan = BatchPlan(rows=len(rows), batch_rows=task.batch_rows, seed=task.seed)
        self.total_steps = task.total_steps(len(rows))
        self.lock = threading.Lock()
        named = _trainable(model)
        self._flat: FlatParameters | ShardedParameters
        if siblings.count == 1:
            self._flat = FlatParameters(named)
        else:
            self._flat = ShardedParameters(model, named, siblings.place)
        self.whole = siblings.count == 1
        self.trainable = sum(parameter.numel() for _, parameter in named)
        self._optimizer = _optimizer(task, self._flat)
        scale = _FIRST_SCALE if task.fp16 else 1.0
        self.known = LearnerState(layout=_layout(named), scale=scale)
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

    def contribution(
        self, rank: int, paces: Sequence[float], touch: Callable[[], None]
    ) -> torch.Tensor:
        """Return the gradients of this member's share of the step; the last column is the loss.

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
        part = torch.zeros(height, self._flat.size + 1, device=self._device)
        began = time.monotonic()
        spare = np.zeros(1, dtype=np.int64)
        for place, own in enumerate(mine):
            touch()
            started = time.monotonic()
            row = part[place if self.reproducible else 0]
            self._flat.collect_into(row[:-1])
            # Every process of a member makes the same number of passes, some only to take part.
            chosen, counts = (own, True) if len(own) else (spare, False)
            with seeded(dropout_seed(task.seed, self.step, int(chosen.min())), self._device):
                loss = summed_loss(
                    self.model, self._data, rows[chosen], self._device, precision(task)
                )
                # Divide by the tokens of the whole batch, so that every split gives the same sum.
                loss = loss / targets * counts
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

    def update(self, total: torch.Tensor) -> None:
        """Do one optimiser step, or skip it if the gradient is not finite."""
        self._siblings.together(Update(), lambda: self._update(total))

    def _update(self, total: torch.Tensor) -> None:
        known, task = self.known, self._task
        gradient = total[:-1]
        gradient /= known.scale
        square = float(torch.linalg.vector_norm(gradient)) ** 2
        loss, square = self._siblings.sums(float(total[-1]), square)
        norm = math.sqrt(square)
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

    def own_arrays(self) -> dict[str, torch.Tensor]:
        """Return the tensors of this process that training changes, by name; not copies."""
        found = {"parameters": self._flat.values}
        for name, piece in zip(("decaying", "other"), self._pieces(), strict=True):
            for moment in ("exp_avg", "exp_avg_sq"):
                state = self._optimizer.state.get(piece)
                found[f"{name}.{moment}"] = state[moment] if state else torch.zeros_like(piece.data)
        return found

    def arrays(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the whole model that training changes, by name; not copies.

        In a member of several processes they lie in shared memory, until the next call.
        """
        flat, own = self._flat, self.own_arrays()
        if not isinstance(flat, ShardedParameters):
            return own
        lengths = {name: flat.whole_length(name, array) for name, array in own.items()}
        sizes = [lengths[name] * own[name].itemsize for name in own]
        # Every array begins at a multiple of 64 bytes.
        begins = [0, *itertools.accumulate(-(-size // 64) * 64 for size in sizes)]
        memory = self._siblings.shared_memory(begins.pop())
        whole = {
            name: torch.frombuffer(memory, dtype=own[name].dtype, count=lengths[name], offset=begin)
            for name, begin in zip(own, begins, strict=True)
            if lengths[name]
        }

        def copy() -> None:
            for name, array in own.items():
                if array.numel():
                    flat.put(name, array, whole[name])

        self._siblings.together(Copy(), copy)
        return {name: whole.get(name, array) for name, array in own.items()}

    def document(self) -> dict[str, Json]:
        """Return the state besides the arrays as JSON."""
        found: dict[str, Json] = msgspec.to_builtins(self.known)
        return found

    def load_own(self, arrays: dict[str, torch.Tensor], document: dict[str, Json]) -> None:
        """Replace this process's part of the state."""
        known = msgspec.convert(document, LearnerState)
        if known.layout != self.known.layout:
            raise ValueError("the state belongs to another model or task")
        self._flat.values.copy_(arrays["parameters"])
        for name, piece in zip(("decaying", "other"), self._pieces(), strict=True):
            self._optimizer.state[piece] = {
                "step": torch.tensor(float(known.updates), device=self._device),
                "exp_avg": arrays[f"{name}.exp_avg"].to(self._device),
                "exp_avg_sq": arrays[f"{name}.exp_avg_sq"].to(self._device),
            }
        self.known = known

    def load(self, arrays: dict[str, torch.Tensor], document: dict[str, Json]) -> None:
        """Replace the state by that of a checkpoint, which holds the whole model."""
        flat = self._flat
        if isinstance(flat, ShardedParameters):
            arrays = {name: flat.take(name, array) for name, array in arrays.items()}
        self.load_own(arrays, document)

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
        return state.model
    model = load_model(task, torch.device("cpu"))
    FlatParameters(_trainable(model)).values.copy_(state.arrays()["parameters"])
    return model


def _optimizer(task: TrainingTask, flat: FlatParameters | ShardedParameters) -> torch.optim.AdamW:
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

"""Evaluation during training: when it is due, what it measures, and what follows from it.

All members take part: the batches are dealt out like microbatches, and the sum of all losses is
exact. So the result depends on the parameters alone, not on the members. It changes the state only
together with the next step; if that step fails, both are repeated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from duetune.training.language_model import precision
from duetune.training.packed_rows import microbatches, shares
from duetune.training.task import EvalStrategy
from duetune.training.trained_model import summed_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from duetune.training.language_model import LanguageModel
    from duetune.training.siblings import Siblings
    from duetune.training.task import TrainingTask
    from duetune.training.tokens import TokenizedRows


class EvaluationHistory(msgspec.Struct, frozen=True):
    """The evaluations of a run; part of its state, so that it survives preemptions.

    - ``step``, ``loss``: the last evaluation; step 0 if there was none.
    - ``best_step``, ``best_loss``: the evaluation with the lowest loss.
    - ``waited``: evaluations since the last one that was lower by more than the threshold.
    """

    step: int = 0
    loss: float | None = None
    best_step: int = 0
    best_loss: float | None = None
    waited: int = 0

    def after(self, step: int, loss: float, threshold: float) -> EvaluationHistory:
        """Return the history with one more evaluation."""
        best = math.inf if self.best_loss is None else self.best_loss
        lower = loss < best
        return EvaluationHistory(
            step=step,
            loss=loss,
            best_step=step if lower else self.best_step,
            best_loss=loss if lower else self.best_loss,
            waited=0 if loss < best - threshold else self.waited + 1,
        )


def stopped_words(done: int, planned: int, waited: int) -> str:
    """Return the sentence about a run that has stopped early after ``done`` steps."""
    evaluations = "1 evaluation" if waited == 1 else f"{waited} evaluations"
    return (
        f"stopped early at step {done:,} of {planned:,}: "
        f"evaluation loss has not improved for {evaluations}"
    )


# So many batches, if there are as many rows, so that several members have something to do.
_AT_LEAST = 8


class Evaluation:
    """Measures the loss on ``rows`` of ``data``, which are never trained on.

    ``training_rows`` is the number of rows in a pass over the training data. The ``siblings`` are
    the processes of this member: they share its batches and call ``share`` at the same time.
    """

    def __init__(
        self,
        task: TrainingTask,
        data: TokenizedRows,
        rows: NDArray[np.int64],
        training_rows: int,
        device: torch.device,
        siblings: Siblings | None = None,
    ) -> None:
        self._siblings = siblings
        self._task = task
        self._data = data
        self._training_rows = training_rows
        self._device = device
        lengths = data.lengths(rows)
        batches = microbatches(lengths, task.microbatch_tokens, _AT_LEAST)
        self._batches = [rows[places] for places in batches]
        self._sizes = np.array([lengths[places].sum() for places in batches], dtype=np.int64)
        self.rows = len(rows)

    def due(self, step: int) -> bool:
        """Return whether the state after ``step`` is evaluated; a function of the task alone."""
        task = self._task
        if not self.rows or step == 0:
            return False
        match task.eval_strategy:
            case EvalStrategy.NO:
                return False
            case EvalStrategy.STEPS:
                return step % (task.eval_steps or task.logging_steps) == 0
            case EvalStrategy.EPOCH:
                passes = [n * task.batch_rows // self._training_rows for n in (step - 1, step)]
                return passes[0] < passes[1]

    @property
    def every(self) -> float:
        """Return the steps between two evaluations."""
        if self._task.eval_strategy is EvalStrategy.EPOCH:
            return max(1.0, self._training_rows / self._task.batch_rows)
        return self._task.eval_steps or self._task.logging_steps

    def share(
        self, model: LanguageModel, rank: int, paces: Sequence[float], touch: Callable[[], None]
    ) -> torch.Tensor:
        """Return the summed losses of this member's batches, in as many places on every member.

        ``paces`` are the tokens per second of all members.
        """
        given = shares(self._sizes, paces)
        part = torch.zeros(max(len(each) for each in given), device=self._device)
        before = model.training
        model.eval()
        with torch.no_grad():
            for place, number in self._passes(given[rank]):
                touch()
                rows = self._batches[number]
                dtype = precision(self._task)
                loss = summed_loss(model, self._data, rows, self._device, dtype)
                if place is not None:
                    part[place] = loss
        model.train(before)
        if self._siblings is None:
            return part
        # Every place is measured by one process; the others have zeros there.
        return torch.stack(self._siblings.collective.gather(part)).sum(0)

    def _passes(self, given: NDArray[np.int64]) -> list[tuple[int | None, int]]:
        """Return places and numbers of the batches that this process measures.

        All processes of a member make the same number of passes, some only to take part.
        """
        every: list[tuple[int | None, int]] = list(enumerate(given.tolist()))
        if self._siblings is None:
            return every
        count = self._siblings.count
        own = every[self._siblings.place :: count]
        return own + [(None, 0)] * (-(-len(every) // count) - len(own))

    def mean(self, parts: list[torch.Tensor], paces: Sequence[float]) -> float:
        """Return the mean loss per token from the shares of all members, by rank."""
        losses = [
            float(part[place])
            for part, numbers in zip(parts, shares(self._sizes, paces), strict=True)
            for place in range(len(numbers))
        ]
        tokens = sum(self._data.targets(rows) for rows in self._batches)
        return math.fsum(losses) / max(1, tokens) if _finite(losses) else math.nan

    def alone(self, model: LanguageModel, touch: Callable[[], None] = lambda: None) -> float:
        """Return the mean loss of a model, measured by this member alone."""
        return self.mean([self.share(model, 0, (0.0,), touch)], (0.0,))


def _finite(losses: list[float]) -> bool:
    return all(map(math.isfinite, losses))

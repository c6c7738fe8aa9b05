"""The state of a run besides its arrays, and what a step does to it."""

from __future__ import annotations

import msgspec

from duetune.errors import DuetuneError
from duetune.training.evaluation import EvaluationHistory

FIRST_SCALE = 2.0**15
"""The loss scale with which float16 training begins."""

MOST_SKIPPED = 20
"""Training ends after this many steps in a row whose gradient was not finite."""

_TAIL = 50
_SCALE_GROWS_AFTER = 2000


class Diverged(DuetuneError):
    """Training stopped because the loss was not finite for many steps in a row."""

    code = "diverged"

    def __init__(self, step: int) -> None:
        super().__init__(
            f"the loss was not finite in the {MOST_SKIPPED} steps up to step {step}; "
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

    def stepped(self, loss: float, tokens: int, *, finite: bool, fp16: bool) -> LearnerState:
        """Return the state after one more step, which has updated nothing unless ``finite``."""
        scale, steady = self.scale, self.steady + 1
        if fp16 and not finite:
            scale, steady = scale / 2, 0
        elif fp16 and steady >= _SCALE_GROWS_AFTER:
            scale, steady = scale * 2, 0
        return LearnerState(
            layout=self.layout,
            step=self.step + 1,
            updates=self.updates + finite,
            tokens=self.tokens + tokens,
            losses=(*self.losses, loss)[-_TAIL:],
            scale=scale,
            steady=steady,
            skipped=0 if finite else self.skipped + 1,
        )

"""The progress report that training workers write."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """The phase of training. It can go back from TRAINING to STARTING; the last two are final."""

    STARTING = "starting"
    TRAINING = "training"
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        """Return whether training is over."""
        return self in {Phase.FINISHED, Phase.FAILED}


class Progress(msgspec.Struct, frozen=True):
    """The latest report of a job's workers.

    ``step``: optimiser steps done, of ``total_steps``.
    ``world``: number of workers in the group.
    ``step_s``: usual wall seconds of one step with ``world`` workers, resizes excluded.
    ``base_eval_loss``: evaluation loss before training.
    ``best_eval_loss``: lowest evaluation loss so far, after step ``best_step``.
    ``output``: folder of the result, once training has finished.
    ``at``: wall time of the report, in seconds since the epoch.
    ``out_of_memory``: training failed because the GPU has too little memory.
    ``trainer``: how the worker computes (attention, kernels), and why not in the fastest way.
    """

    step: int = 0
    total_steps: int = 0
    world: int = 0
    step_s: float | None = None
    tokens: int = 0
    loss: float | None = None
    eval_loss: float | None = None
    base_eval_loss: float | None = None
    checkpoint_step: int = 0
    phase: Phase = Phase.STARTING
    message: str = ""
    output: str = ""
    at: float = 0.0
    out_of_memory: bool = False
    trainer: str = ""
    best_eval_loss: float | None = None
    best_step: int = 0

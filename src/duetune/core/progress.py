"""How far training is, as its workers report it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """STARTING and TRAINING come and go with the nodes; FINISHED and FAILED are final."""

    STARTING = "starting"
    TRAINING = "training"
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        return self in {Phase.FINISHED, Phase.FAILED}


class Progress(msgspec.Struct, frozen=True):
    """The latest report of a job's workers.

    ``step`` of ``total_steps`` optimiser steps are done; ``step_s`` is the usual length of one in
    wall seconds with ``world`` members, without resizes. ``at`` is wall time, seconds since the
    epoch. ``output`` is the folder of the result, once finished. ``out_of_memory``: it failed
    because the GPU has too little memory for its configuration.
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

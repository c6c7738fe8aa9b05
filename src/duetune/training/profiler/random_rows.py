"""The rows of a trial: random tokens, with lengths like those of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configurations.configuration import SPREAD
from duetune.training.tokens import TokenizedRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.measure.worker_messages import Trial

_FILLED = 0.98
"""Share of the tokens of several microbatches that rows fill; few orders of rows fill all."""

_SHORTEST = 8


def row_lengths(trial: Trial, seed: int) -> NDArray[np.int64]:
    """Return the lengths of the rows of one step.

    They are log-normal around the trial's mean length and cut at its longest. Together they fill
    the microbatches: one exactly, several nearly.
    """
    count, mean = trial.grad_accum, trial.tokens_per_sample
    budget = trial.tokens_per_microbatch * count
    longest = max(mean, min(trial.longest_sample or mean, trial.tokens_per_microbatch))
    if longest == mean:
        fitting = max(1, trial.tokens_per_microbatch // mean)
        return np.full(fitting * count, min(mean, trial.tokens_per_microbatch), np.int64)
    if count > 1:
        budget = int(_FILLED * budget)
    random = np.random.default_rng(seed)
    drawn = random.lognormal(0.0, SPREAD, max(4, 4 * budget // mean))
    scaled = mean / _cut_mean(drawn, longest / mean) * drawn
    lengths: NDArray[np.int64] = np.clip(scaled, _SHORTEST, longest).astype(np.int64)
    size = int(np.searchsorted(np.cumsum(lengths), budget)) + 1
    lengths = lengths[:size]
    lengths[-1] -= lengths.sum() - budget
    # A rest that is too short to be a row makes the row before it longer or is left out.
    return lengths if lengths[-1] >= 2 or size == 1 else lengths[:-1]


def _cut_mean(drawn: NDArray[np.float64], longest: float) -> float:
    """Return the factor by which draws must be divided so that, cut at ``longest``, their mean is
    1.
    """
    factor = float(drawn.mean())
    for _ in range(20):
        factor *= float(np.minimum(drawn / factor, longest).mean())
    return factor


def random_rows(lengths: NDArray[np.int64], vocabulary: int, seed: int) -> TokenizedRows:
    """Return rows of random tokens that all count in the loss."""
    begins = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=begins[1:])
    ids = np.random.default_rng(seed).integers(0, vocabulary, int(begins[-1]), np.int32)
    return TokenizedRows(ids, np.ones(len(ids), np.bool_), begins)

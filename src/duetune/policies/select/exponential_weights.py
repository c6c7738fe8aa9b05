"""What all learners share: a prior, the present weights, the choice of a policy, a promise."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np

from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Play(StrEnum):
    """SAMPLE draws from the weights, which the bounds are about; BEST plays the heaviest policy."""

    SAMPLE = "sample"
    BEST = "best"


class Learner(Protocol):
    """A selector that shows its weights and says what it promises."""

    @property
    def arms(self) -> int: ...

    @property
    def rate(self) -> float: ...

    @property
    def weights(self) -> NDArray[np.float64]: ...

    def choose(self, random: np.random.Generator) -> int: ...

    def learn(self, utilities: NDArray[np.float64]) -> None: ...

    def regret_bound(
        self, jobs: int | NDArray[np.float64], spread: float = 1.0
    ) -> NDArray[np.float64]: ...

    def certificate(self) -> float: ...

    def warm_start(self, utilities: NDArray[np.float64], *, trust: float = 0.5) -> None: ...


class Weighing:
    """What all learners share: the prior, the present weights, the choice, the gaps so far."""

    def __init__(self, arms: int, play: Play = Play.SAMPLE) -> None:
        if arms < 1:
            raise InvalidInput("arms", arms, "at least one policy")
        self.arms = arms
        self.play = Play(play)
        self.jobs = 0
        # One policy alone has nothing to learn; ln 2 keeps rates and bounds finite for it.
        self._log_arms = math.log(max(2, arms))
        self._gap = 0.0
        self._spread = 0.0
        self._set_prior(np.full(arms, 1 / arms))

    @property
    def weights(self) -> NDArray[np.float64]:
        """A probability for each policy (read-only)."""
        return self._weights

    def choose(self, random: np.random.Generator) -> int:
        """A policy for the next job."""
        if self.play is Play.BEST:
            return int(self._weights.argmax())
        total = self._weights.cumsum()
        place = total.searchsorted(random.random() * total[-1], side="right")
        return min(int(place), self.arms - 1)

    def _set_prior(self, prior: NDArray[np.float64]) -> None:
        self._log_prior = np.log(prior)
        self._surprise = float(-self._log_prior.min())
        self._set_weights(prior)

    def _set_weights(self, weights: NDArray[np.float64]) -> None:
        weights.setflags(write=False)
        self._weights = weights

    def _checked(self, utilities: NDArray[np.float64]) -> NDArray[np.float64]:
        utilities = np.asarray(utilities, dtype=np.float64)
        if utilities.shape != (self.arms,):
            allowed = f"one utility for each of {self.arms} policies"
            raise InvalidInput("utilities", utilities.shape, allowed)
        spread = float(utilities.max() - utilities.min())
        if not math.isfinite(spread):
            wrong = utilities[~np.isfinite(utilities)]
            raise InvalidInput("utilities", wrong.tolist(), "finite numbers")
        self._spread = max(self._spread, spread)
        return utilities

    def _warm(self, utilities: NDArray[np.float64], trust: float, scratch: Learner) -> int:
        """Learn the history on ``scratch``, take over its weights as far as trusted."""
        if self.jobs:
            raise InvalidInput("warm_start", self.jobs, "no jobs learnt before")
        if not 0 <= trust < 1:
            raise InvalidInput("trust", trust, "a fraction from 0 to below 1")
        history = np.asarray(utilities, dtype=np.float64)
        if history.ndim != 2 or history.shape[1] != self.arms:
            raise InvalidInput("history", history.shape, f"shape (jobs, {self.arms})")
        for row in history:
            scratch.learn(row)
        # A floor under every policy: history that misleads costs ln(1 / (1 - trust)) nats, no more.
        self._set_prior(trust * scratch.weights + (1 - trust) / self.arms)
        return len(history)


def log_sum_exp(numbers: NDArray[np.float64]) -> float:
    top = float(numbers.max())
    return top + math.log(float(np.exp(numbers - top).sum()))


def softmax(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp(numbers - numbers.max())
    weights /= weights.sum()
    return weights

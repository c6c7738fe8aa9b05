"""Which configurations to run next at random, and what a run is expected to take.

``active`` chooses by expected information instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.configurations.configuration_table import facts_or_usual
from duetune.knowledge.configurations.space import CHUNK
from duetune.knowledge.configurations.space_sampling import sample
from duetune.knowledge.measure.trials import Batch, unmeasurable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.configurations.space import Space
    from duetune.knowledge.measure.surrogate import Surrogate
    from duetune.knowledge.measure.worker_messages import Timing
    from duetune.knowledge.observation import Observation

    Column = NDArray[np.float64]


BATCH = 45
WINDOW = 160
"""Configurations of a draw that are run, model by model, before the next ones."""
DRAWN = 4000
_MOST_DRAWS = 50


class RemainingBudget(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a campaign.

    - ``seconds``, ``count``: remaining time and configurations.
    - ``running``: the model that the current worker has in memory.
    - ``slowness``: how much longer batches took than expected.
    """

    seconds: float
    count: int
    running: str | None = None
    slowness: float = 1.0


class Chooser(Protocol):
    """Chooses the batches of a campaign."""

    def choose(
        self, observations: Sequence[Observation], taken: AbstractSet[str], room: RemainingBudget
    ) -> Batch | None:
        """Return the next batch, of configurations whose keys are not ``taken``.

        Returns None if nothing is left, or nothing that would finish in time. Called while the
        previous batch runs.
        """
        ...


class Costs:
    """Estimates the seconds of trials; one trial may take at most ``most_s``."""

    def __init__(self, timing: Timing, most_s: float) -> None:
        self._timing = timing
        self._most_s = most_s

    def of(self, configurations: Configurations, surrogate: Surrogate) -> NDArray[np.float64]:
        """Return the expected seconds of each trial, by what the surrogate estimates."""
        estimates = surrogate.estimate(configurations)
        pace = np.nan_to_num(estimates.tokens_per_s[:, 1], nan=1.0)
        seconds = trial_seconds(configurations, pace, self._timing)
        return np.minimum(
            seconds, estimates.p_valid * seconds + (1.0 - estimates.p_valid) * OUT_OF_MEMORY_S
        )

    def bearable(self, seconds: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return a mask of the trials that are short enough."""
        return seconds <= self._most_s


class Drawn:
    """Runs configurations in the order of a random draw, as far as one model in memory allows.

    A window of the draw is run model by model before the next window begins, so that an end at any
    time leaves a fair sample.
    """

    def __init__(
        self,
        space: Space,
        rng: np.random.Generator,
        method: str,
        *,
        count: int,
        costs: Costs,
        fit: Callable[[Sequence[Observation]], Surrogate],
    ) -> None:
        """A draw has ``count`` points; when they are used up or known, another one is made."""
        self._space = space
        self._rng = rng
        self._method = method
        self._count = min(count, DRAWN)
        self._costs = costs
        self._fit = fit
        self._waiting: list[Configuration] = []
        self._draws = 0
        self._window: list[Batch] = []

    def choose(
        self, observations: Sequence[Observation], taken: AbstractSet[str], room: RemainingBudget
    ) -> Batch | None:
        """Return the next batch of the current window, or open the next window."""
        while not self._window and self._draw(taken):
            self._open_window(observations, room)
        while self._window:
            batch = fitting(self._window.pop(0), room)
            if batch is not None:
                return batch
        return None

    def _draw(self, taken: AbstractSet[str]) -> bool:
        """Return whether configurations are waiting; draw again if not."""
        self._waiting = [each for each in self._waiting if each.key not in taken]
        while not self._waiting and self._draws < _MOST_DRAWS:
            self._draws += 1
            draw = list(drawn(self._space, self._count, self._rng, self._method))
            self._rng.shuffle(draw)
            self._waiting = [
                each for each in draw if each.key not in taken and unmeasurable(each) is None
            ]
        return bool(self._waiting)

    def _open_window(self, observations: Sequence[Observation], room: RemainingBudget) -> None:
        """Group the next configurations that fit into the remaining time into batches."""
        table = Configurations.of(self._waiting)
        seconds = self._costs.of(table, self._fit(observations))
        bearable = self._costs.bearable(seconds)
        rows = [
            (each, float(cost))
            for each, cost, may in zip(self._waiting, seconds, bearable, strict=True)
            if may
        ]
        starts: set[str] = set()
        total, size = 0.0, 0
        for each, cost in rows[: min(room.count, WINDOW)]:
            total += cost + (0.0 if each.model in starts else start_of(each.model))
            if size and total * room.slowness > room.seconds:
                break
            starts.add(each.model)
            size += 1
        self._window = batches_of(rows[:size])
        self._waiting = [each for each, _ in rows[size:]]


def drawn(space: Space, count: int, rng: np.random.Generator, method: str) -> Configurations:
    """Return ``count`` points of the space that may be run, or all of them if there are fewer."""
    if space.combinations <= CHUNK:
        points = space.points()
        points = points.take(space.allowed(points))
        if len(points) <= count:
            return points.take(rng.permutation(len(points)))
    return sample(space, min(count, space.cardinality), rng, method)


def batches_of(rows: Iterable[tuple[Configuration, float]]) -> list[Batch]:
    """Return batches by model; models are in the order of their first configuration."""
    groups: dict[str, list[tuple[Configuration, float]]] = {}
    for each, cost in rows:
        groups.setdefault(each.model, []).append((each, cost))
    found = []
    for model, members in groups.items():
        for start in range(0, len(members), BATCH):
            part = members[start : start + BATCH]
            found.append(
                Batch(
                    configurations=tuple(each for each, _ in part),
                    seconds=tuple(cost for _, cost in part),
                    start_s=start_of(model),
                )
            )
    return found


def start_of(model: str) -> float:
    """Return the seconds that a worker needs before the first trial of this model."""
    return start_seconds(facts_or_usual(model).parameters)


def fitting(batch: Batch, room: RemainingBudget) -> Batch | None:
    """Return as much of the batch, from its beginning, as there is time for, or None."""
    left = room.seconds / room.slowness - batch.start_s
    size = 0
    for cost in batch.seconds[: room.count]:
        left -= cost
        if left < 0:
            break
        size += 1
    if not size:
        return None
    return Batch(
        configurations=batch.configurations[:size],
        seconds=batch.seconds[:size],
        start_s=batch.start_s,
    )


def check_measurable(space: Space) -> None:
    """Raise ``InvalidInput`` with the reason if nothing in a space can be measured."""
    reasons: dict[str, int] = {}
    total = 0
    for part in space.enumerate():
        for each in part:
            total += 1
            reason = unmeasurable(each)
            if reason is None:
                return
            reasons[reason] = reasons.get(reason, 0) + 1
    if not total:
        raise InvalidInput("space", "no configuration", "constraints that leave at least one")
    reason = max(reasons, key=lambda each: reasons[each])
    raise InvalidInput(
        "space", f"{total} configurations", f"configurations that can be measured ({reason})"
    )


START_S = 3.0
"""Seconds from giving a batch to a ready worker until its first trial, for a small model."""
_START_S_PER_PARAMETER = 2e-10
OUT_OF_MEMORY_S = 1.0
"""Seconds of a trial that runs out of memory."""
_BETWEEN_S = 0.2
_ADAPTER_S = 0.3
_FIRST_STEP = 1.5
"""The first step is slower than the others: memory is allocated and kernels are loaded."""


def start_seconds(parameters: float) -> float:
    """Return the seconds until the first trial of a model with this many parameters."""
    return START_S + _START_S_PER_PARAMETER * parameters


def trial_seconds(configurations: Configurations, tokens_per_s: Column, timing: Timing) -> Column:
    """Return the seconds of each trial that fits by the protocol, for these throughputs."""
    tokens = configurations.per_gpu_tokens * configurations.number("grad_accum")
    step = tokens / np.maximum(tokens_per_s, 1e-9)
    warm = (timing.warm_up_steps - 1) * step
    measured = warm + np.maximum(timing.min_steps * step, timing.min_s)
    # When the time is up, the trial ends with the current step; a long step needs no warm-up.
    steps = _FIRST_STEP * step + np.minimum(measured, np.maximum(timing.max_s, step) + step)
    adapter = np.where(configurations.is_("method", "full"), 0.0, _ADAPTER_S)
    seconds: Column = _BETWEEN_S + adapter + steps
    return seconds

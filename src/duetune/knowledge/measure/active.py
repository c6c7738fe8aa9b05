"""Active choice: the configurations that teach most for the seconds they take.

``choice`` has the choosers that draw at random. The helpers at the end spread a batch over
different configurations.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.history import History
from duetune.knowledge.measure.choice import BATCH, DRAWN, drawn, fitting, start_of
from duetune.knowledge.measure.surrogate import WORDS, RidgeEnsemble
from duetune.knowledge.measure.trials import Batch, unmeasurable
from duetune.knowledge.measure.worker_messages import GB
from duetune.knowledge.model.frontier import INVALID, UNKNOWN, VALID, Frontier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.configurations.space import Space
    from duetune.knowledge.estimate import Estimates
    from duetune.knowledge.measure.choice import Costs, RemainingBudget
    from duetune.knowledge.measure.surrogate import Surrogate
    from duetune.knowledge.observation import Observation

    Column = NDArray[np.float64]


_FIRST = 12
"""Size of the first batch of a model without measurements; cheap configurations that cover it."""
_SHORT_LIST = 5
_SUREST = 0.05
_NOISE_KEPT = 0.2
_HALF_OPEN = 0.35
"""Half of the entropy of a fair coin."""


class Active:
    """Chooses batches by expected information per second.

    ``fit`` makes the surrogate that estimates configurations that were not run; ``pool`` is the
    number of candidates per choice.
    """

    def __init__(
        self,
        space: Space,
        rng: np.random.Generator,
        *,
        costs: Costs,
        fit: Callable[[Sequence[Observation]], Surrogate],
        pool: int = DRAWN,
    ) -> None:
        self._space = space
        self._rng = rng
        self._costs = costs
        self._fit = fit
        self._pool = pool

    def choose(
        self, observations: Sequence[Observation], taken: AbstractSet[str], room: RemainingBudget
    ) -> Batch | None:
        """Return the next batch, or None if nothing is left that fits into the remaining time.

        A model without measurements comes first. Then the model with the most information per
        second is chosen, and a varied batch of its best configurations.
        """
        candidates = self._candidates(taken)
        if not candidates:
            return None
        table = Configurations.of(candidates)
        surrogate, estimates = self._estimated(table, observations)
        seconds = self._costs.of(table, surrogate)
        models: dict[str, list[int]] = {}
        for index in np.flatnonzero(self._costs.bearable(seconds)).tolist():
            models.setdefault(candidates[index].model, []).append(index)
        # Results of the running batch are not known yet, so its model would be chosen again.
        if len(models) > 1 and room.running is not None:
            models.pop(room.running, None)
        if not models:
            return None
        seen = Counter(each.configuration.model for each in observations)
        new = [model for model in models if not seen[model]]
        if new:
            model, size = min(new, key=start_of), _FIRST
            worth = 1.0 / np.sqrt(seconds)
        else:
            worth = information(table, estimates, observations) / seconds
            rates = {
                model: _rate(worth[members], seconds[members], model, seen[model])
                for model, members in models.items()
            }
            model, size = max(rates, key=lambda each: rates[each]), BATCH
        members = np.array(models[model])
        members = members[np.argsort(-worth[members], kind="stable")[: _SHORT_LIST * BATCH]]
        known = [each.configuration for each in observations if each.configuration.model == model]
        words = table.labels
        chosen = spread_out(
            positions(table.take(members), words),
            worth[members],
            size,
            positions(Configurations.of(known), words) if known else None,
        )
        picked = members[chosen].tolist()
        batch = Batch(
            configurations=tuple(candidates[each] for each in picked),
            seconds=tuple(float(seconds[each]) for each in picked),
            start_s=start_of(model),
        )
        return fitting(batch, room)

    def _estimated(
        self, table: Configurations, observations: Sequence[Observation]
    ) -> tuple[Surrogate, Estimates]:
        """Return the surrogate and its estimates; a simple surrogate replaces one whose fit
        fails.
        """
        try:
            surrogate = self._fit(observations)
            return surrogate, surrogate.estimate(table)
        except Exception:  # noqa: BLE001 - a GPU must not stand idle because a fit failed
            surrogate = RidgeEnsemble(observations)
            return surrogate, surrogate.estimate(table)

    def _candidates(self, taken: AbstractSet[str]) -> list[Configuration]:
        """Return configurations that can be measured and are not taken."""
        # A Latin hypercube, because rare values such as full training matter too.
        draw = {
            each.key: each for each in drawn(self._space, self._pool, self._rng, "latin-hypercube")
        }
        return [
            each for key, each in draw.items() if key not in taken and unmeasurable(each) is None
        ]


def information(
    configurations: Configurations, estimates: Estimates, observations: Sequence[Observation]
) -> Column:
    """Return what a run would teach: the width of the throughput's interval plus the entropy of
    validity.
    """
    low, high = estimates.tokens_per_s[:, 0], estimates.tokens_per_s[:, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        width = np.log(high / low)
    # An unknown width counts as the largest known one. The width of the surest rows is noise,
    # which no run can reduce.
    known = np.isfinite(width)
    width = np.where(known, width, np.max(width, where=known, initial=1.0))
    width -= (1.0 - _NOISE_KEPT) * np.quantile(width, _SUREST)
    answers = Frontier(History(observations)).answers(configurations)
    p_valid = np.nan_to_num(estimates.p_valid, nan=0.5)
    p_valid = np.where(answers == VALID, 1.0, np.where(answers == INVALID, 0.0, p_valid))
    # Between the largest run that fitted and the smallest that did not, a run halves the gap,
    # even if a model is sure. This applies where the interval of the memory includes the capacity.
    capacity = Described(configurations).capacity
    low, high = estimates.memory_gb[:, 0] * GB, estimates.memory_gb[:, 2] * GB
    open_ = (answers == UNKNOWN) & (low < capacity) & (capacity < high)
    validity = np.where(open_, np.maximum(_entropy(p_valid), _HALF_OPEN), _entropy(p_valid))
    # A configuration that does not fit has no throughput.
    learnt: Column = width * p_valid + validity
    return learnt


def _entropy(p_valid: Column) -> Column:
    """Return the entropy of a yes-or-no outcome."""
    p = np.clip(p_valid, 1e-9, 1 - 1e-9)
    entropy: Column = -(p * np.log(p) + (1 - p) * np.log(1 - p))
    return entropy


def _rate(worth: Column, seconds: Column, model: str, seen: int) -> float:
    """Return the information per second of a model's best configurations, including the worker's
    start.

    A model with many measurements counts less, because its next run repeats what neighbours showed.
    """
    best = np.argsort(-worth, kind="stable")[:BATCH]
    learnt = (worth[best] * seconds[best]).sum() / (start_of(model) + seconds[best].sum())
    return float(learnt / np.sqrt(1.0 + seen / BATCH))


_FAR = 1e3


def positions(
    configurations: Configurations, words: Mapping[str, Sequence[str]]
) -> NDArray[np.float64]:
    """Return where each configuration lies: sizes in doublings, and a distance of one for other
    words.
    """
    it = Described(configurations)
    columns = [
        np.log2(it.tokens),
        np.log2(it.sequence),
        np.log2(it.accumulation),
        np.log2(it.parameters),
        np.where(it.full, 0.0, 0.5 * np.log2(np.maximum(configurations.number("lora_rank"), 1.0))),
        it.checkpointing,
    ]
    for field in WORDS:
        # Two labels differ in two columns; sqrt(0.5) in each makes their distance 1.
        columns += [np.sqrt(0.5) * configurations.is_(field, word) for word in words[field]]
    return np.column_stack(columns)


def spread_out(
    places: NDArray[np.float64],
    worth: Column,
    count: int,
    taken: NDArray[np.float64] | None = None,
) -> list[int]:
    """Return the indices of ``count`` varied places, by greedy k-centre.

    Each step takes the place with the largest worth times distance to the nearest place that is
    chosen or in ``taken``.
    """
    nearest = np.full(len(places), _FAR)
    for place in () if taken is None else taken:
        nearest = np.minimum(nearest, np.linalg.norm(places - place, axis=1))
    chosen: list[int] = []
    for _ in range(min(count, len(places))):
        gain = worth * nearest
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        nearest = np.minimum(nearest, np.linalg.norm(places - places[best], axis=1))
    return chosen

"""What all sources share: everything but the estimate, and one name for each model and GPU."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import ENUMERATED, Configurations
from duetune.knowledge.configurations.configuration_rules import RULES, broken
from duetune.knowledge.configurations.space import Role, field_value
from duetune.knowledge.estimate import under_rules
from duetune.knowledge.facts.gpus import gpu_name
from duetune.knowledge.facts.model_registry import model_name
from duetune.knowledge.history import History
from duetune.knowledge.ranking import Ranker
from duetune.knowledge.sources.knowledge_source import (
    Candidate,
    Capability,
    EstimateExplanation,
    Limits,
    Neighbour,
    Objective,
    Ranking,
    Term,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configuration, Value
    from duetune.knowledge.configurations.space import Space
    from duetune.knowledge.estimate import Estimates
    from duetune.knowledge.observation import Observation


CODE = "3"
"""Part of the version of all sources here; increase it when any of them answers differently."""


class Source:
    """The base of all sources.

    Subclasses define ``name``, ``capabilities`` and ``estimate``. Those that learn drop derived
    data in ``changed``.
    """

    name: ClassVar[str] = ""
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability)
    learns: ClassVar[bool] = True

    def __init__(self, history: History | None = None) -> None:
        known = History.empty() if history is None or not self.learns else history
        self._begun = history_by_known_names(known)
        self._since: dict[str, Observation] = {}

    @functools.cached_property
    def history(self) -> History:
        """Return the history from the start plus everything observed since."""
        return History((*self._begun, *self._since.values())) if self._since else self._begun

    @property
    def version(self) -> str:
        """Return name, version of the code, and an identifier of the history."""
        return f"{self.name}-{CODE}-{self._snapshot % 2**64:016x}"

    @functools.cached_property
    def _snapshot(self) -> int:
        """Return a number that is equal for equal sets of observations; it is updated, not
        recomputed.
        """
        return sum(int(key, 16) for key in self._begun.keys)

    def estimate(self, configurations: Configurations) -> Estimates:
        """Return the estimates for configurations that break no rule; subclasses define this."""
        raise NotImplementedError

    def changed(self) -> None:
        """Drop what was derived from history; called after each new observation."""

    def terms(
        self,
        configuration: Configuration,  # noqa: ARG002 - subclasses use it
    ) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
        """Return the terms of memory and of time; sources that use physics define this."""
        return (), ()

    def neighbours(
        self,
        configuration: Configuration,  # noqa: ARG002 - subclasses use it
    ) -> tuple[Neighbour, ...]:
        """Return the measured runs behind the estimate, nearest first; sources that store runs
        define this.
        """
        return ()

    def query(self, configurations: Configurations) -> Estimates:
        """Return the estimates for a table, after checking its words and applying the rules."""
        check_words(configurations)
        return under_rules(by_known_names(configurations), self.name, self.estimate)

    def complete(
        self, partial: Mapping[str, object], space: Space, objective: Objective, limits: Limits
    ) -> Ranking:
        """Return the best configurations of a space by the estimates of this source."""
        return complete_by(self.query, partial, space, objective, limits)

    def curve(
        self,
        partial: Mapping[str, object],
        space: Space,
        gpu_models: Sequence[str],
        counts: Sequence[int],
    ) -> dict[tuple[str, int], Candidate]:
        """Return the best configuration for each GPU model and number of GPUs."""
        return curve_by(self.query, partial, space, gpu_models, counts)

    def observe(self, observation: Observation) -> None:
        """Add a run to the history unless it is there already, or the source does not learn."""
        observation = observed_by_known_names(observation)
        key = observation.key
        if not self.learns or key in self._since or key in self._begun.keys:
            return
        self._snapshot += int(key, 16)
        self._since[key] = observation
        self.__dict__.pop("history", None)
        self.changed()

    def explain(self, configuration: Configuration) -> EstimateExplanation:
        """Return the estimate of one configuration with its terms, neighbours and notes."""
        one = Configurations.of([configuration])
        estimate = self.query(one)[0]
        rule = int(broken(one)[0])
        if rule >= 0:
            return EstimateExplanation(estimate=estimate, notes=(f"breaks a rule: {RULES[rule]}",))
        configuration = by_known_names(one)[0]
        memory, time = self.terms(configuration)
        notes = [
            f"no measured runs with {field} {str(getattr(configuration, field)) or 'unspecified'}"
            for field in estimate.extrapolated
        ]
        return EstimateExplanation(
            estimate=estimate,
            memory=memory,
            time=time,
            neighbours=self.neighbours(configuration),
            notes=tuple(notes),
        )


def check_words(configurations: Configurations) -> None:
    """Raise ``InvalidInput`` for an unknown word, which would otherwise be answered as another
    one.
    """
    for field, words in ENUMERATED.items():
        for word in configurations.labels[field]:
            if word not in words:
                raise InvalidInput(field, word, f"one of {', '.join(sorted(words))}")


def complete_by(
    query: Callable[[Configurations], Estimates],
    partial: Mapping[str, object],
    space: Space,
    objective: Objective,
    limits: Limits,
) -> Ranking:
    """Return the best points of a space by the answers of ``query``."""
    ranker = Ranker(objective, limits)
    for part in space.given(partial).enumerate():
        ranker.add(part, query(part))
    return ranker.ranking()


def curve_by(
    query: Callable[[Configurations], Estimates],
    partial: Mapping[str, object],
    space: Space,
    gpu_models: Sequence[str],
    counts: Sequence[int],
) -> dict[tuple[str, int], Candidate]:
    """Return the fastest configuration for each GPU model and number of GPUs by the answers of
    ``query``.
    """
    asked = asked_for(space.given(partial), gpu_models, counts)
    rankers: dict[tuple[str, int], Ranker] = {}
    for part in () if asked is None else asked.enumerate():
        estimates = query(part)
        for cell, rows in cells(part).items():
            ranker = rankers.setdefault(cell, Ranker(Objective.FASTEST, Limits(top=1)))
            ranker.add(part.take(rows), estimates.take(rows))
    return {
        cell: ranking.candidates[0]
        for cell, ranker in rankers.items()
        if (ranking := ranker.ranking()).candidates
    }


def asked_for(space: Space, gpu_models: Sequence[str], counts: Sequence[int]) -> Space | None:
    """Return the space limited to these GPUs, or None if it allows none of them."""
    for field, wanted in (("gpu_model", gpu_models), ("num_gpus", counts)):
        values: dict[Value, None] = dict.fromkeys(field_value(field, each) for each in wanted)
        domain = space.domains.get(field)
        if domain is not None and domain.role is not Role.FREE and domain.values:
            values = {value: None for value in values if value in domain.values}
        if not values:
            return None
        space = space.with_values(field, tuple(values))
    return space


def cells(configurations: Configurations) -> dict[tuple[str, int], NDArray[np.bool_]]:
    """Return the rows of each GPU model and number of GPUs."""
    gpu, count = configurations.columns["gpu_model"], configurations.number("num_gpus")
    found = {}
    for code, word in enumerate(configurations.labels["gpu_model"]):
        mine = gpu == code
        for number in sorted(set(count[mine].tolist())):
            found[word, int(number)] = mine & (count == number)
    return found


def known_model(text: str) -> str:
    """Return one name for a model; a folder keeps its own."""
    return text if Path(text).is_dir() else model_name(text)


def known_gpu(text: str) -> str:
    """Return one name for a GPU; an unknown one keeps its own."""
    return gpu_name(text) or text


_KNOWN = {"model": known_model, "gpu_model": known_gpu}


def by_known_names(configurations: Configurations) -> Configurations:
    """Return the same rows with known names; only labels are touched, so it takes no time."""
    labels = {
        field: tuple(known(word) for word in configurations.labels[field])
        for field, known in _KNOWN.items()
    }
    if all(labels[field] == configurations.labels[field] for field in labels):
        return configurations
    return Configurations(configurations.columns, {**configurations.labels, **labels})


def observed_by_known_names(observation: Observation) -> Observation:
    """Return the observation with known names."""
    each = observation.configuration
    names = {field: known(getattr(each, field)) for field, known in _KNOWN.items()}
    if all(getattr(each, field) == name for field, name in names.items()):
        return observation
    return msgspec.structs.replace(observation, configuration=each.replace(**names))


def history_by_known_names(history: History) -> History:
    """Return the history with known names; the same object if nothing changes."""
    rows = history.configurations
    if by_known_names(rows) is rows:
        return history
    return History(observed_by_known_names(each) for each in history)

"""What sources have in common: everything but the estimate follows from it."""

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


CODE = "2"
"""Of the versions of all sources here; to be raised when any of them answers otherwise."""


class Source:
    """Subclasses have a ``name``, ``capabilities`` and ``estimate``. Those that learn forget in
    ``changed`` what they derived from history.
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
        """With all that was observed since."""
        return History((*self._begun, *self._since.values())) if self._since else self._begun

    @property
    def version(self) -> str:
        return f"{self.name}-{CODE}-{self._snapshot % 2**64:016x}"

    @functools.cached_property
    def _snapshot(self) -> int:
        """The same for the same set of observations; it grows with each without all being read."""
        return sum(int(key, 16) for key in self._begun.keys)

    def estimate(self, configurations: Configurations) -> Estimates:
        """Of configurations none of which breaks a rule."""
        raise NotImplementedError

    def changed(self) -> None:
        """History has grown."""

    def terms(
        self,
        configuration: Configuration,  # noqa: ARG002 - for those that reckon
    ) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
        """Of memory and of time, for those that reckon."""
        return (), ()

    def neighbours(
        self,
        configuration: Configuration,  # noqa: ARG002 - for those that remember
    ) -> tuple[Neighbour, ...]:
        """Measured runs that the estimate rests on, nearest first."""
        return ()

    def query(self, configurations: Configurations) -> Estimates:
        check_words(configurations)
        return under_rules(by_known_names(configurations), self.name, self.estimate)

    def complete(
        self, partial: Mapping[str, object], space: Space, objective: Objective, limits: Limits
    ) -> Ranking:
        return complete_by(self.query, partial, space, objective, limits)

    def curve(
        self,
        partial: Mapping[str, object],
        space: Space,
        gpu_models: Sequence[str],
        counts: Sequence[int],
    ) -> dict[tuple[str, int], Candidate]:
        return curve_by(self.query, partial, space, gpu_models, counts)

    def observe(self, observation: Observation) -> None:
        observation = observed_by_known_names(observation)
        key = observation.key
        if not self.learns or key in self._since or key in self._begun.keys:
            return
        self._snapshot += int(key, 16)
        self._since[key] = observation
        self.__dict__.pop("history", None)
        self.changed()

    def explain(self, configuration: Configuration) -> EstimateExplanation:
        one = Configurations.of([configuration])
        estimate = self.query(one)[0]
        rule = int(broken(one)[0])
        if rule >= 0:
            return EstimateExplanation(estimate=estimate, notes=(f"breaks a rule: {RULES[rule]}",))
        configuration = by_known_names(one)[0]
        memory, time = self.terms(configuration)
        notes = [
            f"nothing was measured with {field} {getattr(configuration, field) or 'unsaid'}"
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
    """A word that no configuration has would be answered as if it were another one."""
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
    """The best by what ``query`` answers of all points of the space."""
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
    """The space with these GPUs to choose from, as far as they are left to choose."""
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
    """The rows of each GPU model and number of GPUs."""
    gpu, count = configurations.columns["gpu_model"], configurations.number("num_gpus")
    found = {}
    for code, word in enumerate(configurations.labels["gpu_model"]):
        mine = gpu == code
        for number in sorted(set(count[mine].tolist())):
            found[word, int(number)] = mine & (count == number)
    return found


def known_model(text: str) -> str:
    """A folder stays what it is."""
    return text if Path(text).is_dir() else model_name(text)


def known_gpu(text: str) -> str:
    return gpu_name(text) or text


_KNOWN = {"model": known_model, "gpu_model": known_gpu}


def by_known_names(configurations: Configurations) -> Configurations:
    """The same rows; only labels are looked at, so it takes no time."""
    labels = {
        field: tuple(known(word) for word in configurations.labels[field])
        for field, known in _KNOWN.items()
    }
    if all(labels[field] == configurations.labels[field] for field in labels):
        return configurations
    return Configurations(configurations.columns, {**configurations.labels, **labels})


def observed_by_known_names(observation: Observation) -> Observation:
    each = observation.configuration
    names = {field: known(getattr(each, field)) for field, known in _KNOWN.items()}
    if all(getattr(each, field) == name for field, name in names.items()):
        return observation
    return msgspec.structs.replace(observation, configuration=each.replace(**names))


def history_by_known_names(history: History) -> History:
    rows = history.configurations
    if by_known_names(rows) is rows:
        return history
    return History(observed_by_known_names(each) for each in history)

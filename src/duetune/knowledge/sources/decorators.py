"""Sources around sources: wrong on purpose, delayed, partly ignorant, or cached.

Benchmarks use them to measure what knowledge is worth.
"""

from __future__ import annotations

import hashlib
import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import (
    CATEGORIES,
    DEFAULTS,
    FIELDS,
    Configuration,
    Configurations,
    Sharding,
)
from duetune.knowledge.configurations.configuration_rules import broken
from duetune.knowledge.estimate import NONE, Estimates, put, under_rules
from duetune.knowledge.sources.blind import uniform
from duetune.knowledge.sources.estimating import complete_by, curve_by
from duetune.knowledge.sources.knowledge_source import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from duetune.knowledge.configurations.space import Space
    from duetune.knowledge.observation import Observation
    from duetune.knowledge.sources.knowledge_source import (
        Candidate,
        EstimateExplanation,
        KnowledgeSource,
        Limits,
        Objective,
        Ranking,
    )

_KEPT_ANSWERS = 64


class Decorator:
    """Passes every call to ``source``.

    Subclasses change ``query``; completing and explaining then follow the changed answers.
    """

    def __init__(self, source: KnowledgeSource, prefix: str) -> None:
        self.source = source
        self.prefix = prefix

    @property
    def name(self) -> str:
        """Return the name of the source with a prefix."""
        return f"{self.prefix}:{self.source.name}"

    @property
    def version(self) -> str:
        """Return the version of the source with a prefix."""
        return f"{self.prefix}:{self.source.version}"

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Return the capabilities of the source."""
        return self.source.capabilities

    def query(self, configurations: Configurations) -> Estimates:
        """Return the estimates of the source."""
        return self.source.query(configurations)

    def asked(self, configurations: Configurations) -> Configurations:
        """Return the rows for which the source is asked instead of these, to explain their
        memory.
        """
        return configurations

    def complete(
        self, partial: Mapping[str, object], space: Space, objective: Objective, limits: Limits
    ) -> Ranking:
        """Return the best configurations by the answers of this decorator."""
        if self._chooses:
            return self.source.complete(partial, space, objective, limits)
        return complete_by(self.query, partial, space, objective, limits)

    def curve(
        self,
        partial: Mapping[str, object],
        space: Space,
        gpu_models: Sequence[str],
        counts: Sequence[int],
    ) -> dict[tuple[str, int], Candidate]:
        """Return the best configuration for each GPU model and number, by the answers of this
        decorator.
        """
        if self._chooses:
            return self.source.curve(partial, space, gpu_models, counts)
        return curve_by(self.query, partial, space, gpu_models, counts)

    def observe(self, observation: Observation) -> None:
        """Pass the observation on."""
        self.source.observe(observation)

    def explain(self, configuration: Configuration) -> EstimateExplanation:
        """Return the source's explanation with the estimate of this decorator."""
        estimate = self.query(Configurations.of([configuration]))[0]
        return msgspec.structs.replace(self.source.explain(configuration), estimate=estimate)

    @property
    def _chooses(self) -> bool:
        """Return whether the source chooses by something other than its estimates."""
        return not self.source.capabilities


class Noisy(Decorator):
    """Throughputs that are wrong by ``mape`` on average, around ``1 + bias`` times the source's
    value.

    The error is always the same for the same configuration, and the intervals do not show it.
    """

    def __init__(
        self, source: KnowledgeSource, mape: float, bias: float = 0.0, seed: int = 0
    ) -> None:
        if not 0 <= mape <= _MOST_NOISE:
            raise InvalidInput("mape", mape, f"a share from 0 to {_MOST_NOISE:g}")
        if not -1 < bias <= _MOST_NOISE:
            raise InvalidInput("bias", bias, f"a share above -1 and at most {_MOST_NOISE:g}")
        super().__init__(source, f"noisy:{mape:g}" + (f":{bias:g}" if bias else ""))
        self._deviation = _deviation(mape)
        self._bias = bias
        self._seed = seed

    @property
    def version(self) -> str:
        """Return the version with the seed in it."""
        return f"{super().version}-{self._seed}"

    def query(self, configurations: Configurations) -> Estimates:
        """Return the estimates with wrong throughputs."""
        found = self.source.query(configurations)
        result = found.take(np.arange(len(found)))
        drawn = uniform(configurations, self._seed)
        normal = np.fromiter(map(_NORMAL.inv_cdf, drawn), np.float64, len(drawn))
        factor = (1.0 + self._bias) * np.exp(self._deviation * normal)
        result.tokens_per_s = found.tokens_per_s * factor[:, None]
        result.source = self.name
        return result


_NORMAL = NormalDist()
_MOST_NOISE = 10.0


def _deviation(mape: float) -> float:
    """Return s of the logarithm so that E|exp(s z) - 1| = exp(s^2 / 2) (2 Phi(s) - 1) is
    ``mape``.
    """
    low, high = 0.0, 4.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        error = math.exp(0.5 * middle**2) * (2.0 * _NORMAL.cdf(middle) - 1.0)
        low, high = (middle, high) if error < mape else (low, middle)
    return low


class Stale(Decorator):
    """Delays observations.

    An observation is passed on after ``lag`` newer ones have arrived, and after something was
    measured ``age_s`` seconds later. ``pending`` are observations that are not passed on yet.
    """

    def __init__(
        self,
        source: KnowledgeSource,
        *,
        lag: int = 0,
        age_s: float = 0.0,
        pending: Iterable[Observation] = (),
    ) -> None:
        if lag < 0 or age_s < 0:
            raise InvalidInput("lag" if lag < 0 else "age", min(lag, age_s), "zero or more")
        super().__init__(source, f"stale:{age_s:g}s" if age_s else f"stale:{lag}")
        self._lag = lag
        self._age_s = age_s
        self._pending = {each.key: each for each in pending}
        self._now = max((each.measured_at for each in self._pending.values()), default=0.0)

    def observe(self, observation: Observation) -> None:
        """Store the observation, and pass on those that are old enough."""
        if self._pending.setdefault(observation.key, observation) is not observation:
            return
        self._now = max(self._now, observation.measured_at)
        while len(self._pending) > self._lag:
            key, oldest = next(iter(self._pending.items()))
            if oldest.measured_at > self._now - self._age_s:
                return
            del self._pending[key]
            self.source.observe(oldest)


class Partial(Decorator):
    """Does not know ``fields``.

    A hidden field of a configuration counts as its default; a hidden model or GPU counts as
    unknown. Hidden "throughput", "memory" or "uncertainty" is not answered. With hidden "validity",
    everything that breaks no rule counts as fitting.
    """

    def __init__(self, source: KnowledgeSource, fields: Sequence[str]) -> None:
        known = (*Capability, *FIELDS)
        for field in fields:
            if field not in known:
                raise InvalidInput("field", field, f"one of {', '.join(known)}")
        super().__init__(source, f"partial:{'+'.join(fields)}")
        self._fields = frozenset(fields) & frozenset(FIELDS)
        self._unknown = frozenset(each for each in Capability if each in fields)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Return the capabilities of the source without the hidden ones."""
        return self.source.capabilities - self._unknown

    def query(self, configurations: Configurations) -> Estimates:
        """Return the estimates without what is hidden."""
        return under_rules(configurations, self.name, self._answer)

    def _answer(self, configurations: Configurations) -> Estimates:
        seen = _hidden(configurations, self._fields)
        found = self.source.query(seen)
        result = found.take(np.arange(len(found)))
        result.source = self.name
        # With fields hidden, a row may seem to break a rule; nothing is known about such rows.
        strange = np.flatnonzero(broken(seen) >= 0)
        put(result, strange, Estimates.unknown(len(strange), self.name))
        if self._fields:
            result.measured[:] = False
        if Capability.VALIDITY in self._unknown:
            result.p_valid[:] = 1.0
            result.cause[:] = NONE
        if Capability.THROUGHPUT in self._unknown:
            result.tokens_per_s[:] = np.nan
        if Capability.MEMORY in self._unknown:
            result.memory_gb[:] = np.nan
        if Capability.UNCERTAINTY in self._unknown:
            result.tokens_per_s[:] = result.tokens_per_s[:, 1:2]
            result.memory_gb[:] = result.memory_gb[:, 1:2]
        return result


def _hidden(configurations: Configurations, fields: frozenset[str]) -> Configurations:
    """Return the rows with the hidden fields at their default."""
    columns, labels = dict(configurations.columns), dict(configurations.labels)
    for field in fields:
        usual = DEFAULTS.get(field, "")
        if field in CATEGORIES:
            labels[field] = (str(usual),)
            columns[field] = np.zeros(len(configurations), np.int64)
        else:
            columns[field] = np.full(len(configurations), float(usual))
    if "sharding" in fields:
        labels["sharding"] = (Sharding.NONE.value, Sharding.FSDP.value)
        columns["sharding"] = (columns["num_gpus"] > 1).astype(np.int64)
    return Configurations(columns, labels)


class Cached(Decorator):
    """Remembers answers until the source's version changes."""

    def __init__(self, source: KnowledgeSource, kept: int = _KEPT_ANSWERS) -> None:
        super().__init__(source, "cached")
        self._kept = kept
        self._answers: dict[str, Estimates] = {}

    @property
    def version(self) -> str:
        """Return the version of the source: caching changes no answer."""
        return self.source.version

    def query(self, configurations: Configurations) -> Estimates:
        """Return the remembered answer to the same question, or ask the source."""
        digest = hashlib.blake2b(self.version.encode(), digest_size=16)
        for field in FIELDS:
            digest.update(configurations.columns[field].tobytes())
            digest.update(repr(configurations.labels.get(field)).encode())
        key = digest.hexdigest()
        if key not in self._answers:
            if len(self._answers) >= self._kept:
                del self._answers[next(iter(self._answers))]
            self._answers[key] = self.source.query(configurations)
        return self._answers[key].take(np.arange(len(configurations)))

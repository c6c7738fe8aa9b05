"""The port of configuration knowledge: what schedulers, the advisor and benchmarks ask.

``estimating.Source`` implements everything but the estimate.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from duetune.knowledge.configurations.configuration import Configuration
from duetune.knowledge.estimate import FITS, Estimate, Interval
from duetune.knowledge.observation import Observation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duetune.knowledge.configurations.configuration import Configurations
    from duetune.knowledge.configurations.space import Space
    from duetune.knowledge.estimate import Estimates


class Capability(StrEnum):
    """What a source can tell about a configuration."""

    VALIDITY = "validity"
    THROUGHPUT = "throughput"
    MEMORY = "memory"
    UNCERTAINTY = "uncertainty"


class Objective(StrEnum):
    """What makes a configuration the best.

    - ``deadline``: the cheapest that finishes in time.
    - ``fastest``: the first to finish.
    - ``gpu-hours``: the fewest GPU-hours.
    - ``balanced``: tokens per second divided by the number of GPUs to the power 0.7.
    """

    DEADLINE = "deadline"
    FASTEST = "fastest"
    GPU_HOURS = "gpu-hours"
    BALANCED = "balanced"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a job needs and may use.

    - ``tokens``: its work.
    - ``deadline_s``: seconds from now; ``start_up_s``: seconds before the first token.
    - ``inventory``: available GPUs of each model (empty: all that the space names).
    - ``price``: dollars per GPU and hour.
    - ``min_p_valid``: configurations with a lower probability to fit are left out.
    - ``ran_out``: configurations that ran out of memory; all that need as much are left out.
    - ``top``: number of candidates to return.
    """

    tokens: float | None = None
    deadline_s: float | None = None
    start_up_s: float = 60.0
    inventory: dict[str, int] = {}
    price: dict[str, float] = {}
    min_p_valid: float = FITS
    ran_out: tuple[Configuration, ...] = ()
    top: int = 10


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration with its estimate.

    - ``score``: the best candidate has the highest.
    - ``runtime_s``, ``gpu_hours``, ``cost``: low, middle and high; None if work or price is
      unknown.
    - ``on_time``: probability to finish by the deadline.
    """

    configuration: Configuration
    estimate: Estimate
    score: float
    runtime_s: Interval | None = None
    gpu_hours: Interval | None = None
    cost: Interval | None = None
    on_time: float | None = None


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The best candidates, best first.

    - ``considered``: number of configurations that were scored.
    - ``left_out``: how many of them did not qualify, by reason.
    - ``note``: what was assumed, in words.
    """

    candidates: tuple[Candidate, ...]
    considered: int
    left_out: dict[str, int] = {}
    note: str = ""


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One addend of memory (GB) or of time (s), by name."""

    name: str
    value: float
    meaning: str = ""


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A measured run near the configuration in question; at ``distance`` 0 it is the same one."""

    observation: Observation
    distance: float
    differs: tuple[str, ...]


class EstimateExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate with the terms and the measured runs behind it."""

    estimate: Estimate
    memory: tuple[Term, ...] = ()
    time: tuple[Term, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    notes: tuple[str, ...] = ()


@runtime_checkable
class KnowledgeSource(Protocol):
    """Anything that answers questions about configurations.

    Sources are deterministic: the same history and version give the same answers, bit for bit.
    """

    @property
    def name(self) -> str:
        """Return the name under which the source is registered."""
        ...

    @property
    def version(self) -> str:
        """Return a text that changes whenever an answer could: with the code, and with the
        history.
        """
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Return what the source can tell; empty for sources that choose without estimates."""
        ...

    def query(self, configurations: Configurations) -> Estimates:
        """Return the estimates for a table, in its order; called for whole spaces at once."""
        ...

    def complete(
        self, partial: Mapping[str, object], space: Space, objective: Objective, limits: Limits
    ) -> Ranking:
        """Return the best configurations of a space for one job.

        ``partial`` are the fields that are given; ``space`` says what the others may be.
        """
        ...

    def curve(
        self,
        partial: Mapping[str, object],
        space: Space,
        gpu_models: Sequence[str],
        counts: Sequence[int],
    ) -> dict[tuple[str, int], Candidate]:
        """Return the best configuration for each GPU model and number of GPUs; schedulers call
        this.

        Combinations for which nothing fits are missing from the result.
        """
        ...

    def observe(self, observation: Observation) -> None:
        """Take in one measured run; called when a run has finished."""
        ...

    def explain(self, configuration: Configuration) -> EstimateExplanation:
        """Return the estimate of one configuration with the terms and runs behind it."""
        ...

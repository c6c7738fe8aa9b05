"""The port of configuration knowledge: what schedulers, the advisor and benchmarks ask."""

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
    VALIDITY = "validity"
    THROUGHPUT = "throughput"
    MEMORY = "memory"
    UNCERTAINTY = "uncertainty"


class Objective(StrEnum):
    """What the best configuration is: the cheapest that is done by the deadline, the one done
    first, the one with the fewest GPU-hours, or tokens per second and GPUs to the power 0.7.
    """

    DEADLINE = "deadline"
    FASTEST = "fastest"
    GPU_HOURS = "gpu-hours"
    BALANCED = "balanced"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a job may take. ``tokens`` is its work, ``deadline_s`` from now, ``start_up_s`` before
    the first token; ``inventory`` GPUs of each model that there are (all named in the space if
    empty), ``price`` dollars per GPU and hour. Configurations below ``min_p_valid`` are left out,
    and so is all that needs at least the memory of one of ``ran_out``.
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
    """A configuration with what it is believed to be like. ``runtime_s``, ``gpu_hours`` and
    ``cost`` are None where work or price is not known; intervals are low, middle, high. The best
    has the highest ``score``. ``on_time`` is the probability to be done by the deadline.
    """

    configuration: Configuration
    estimate: Estimate
    score: float
    runtime_s: Interval | None = None
    gpu_hours: Interval | None = None
    cost: Interval | None = None
    on_time: float | None = None


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The best candidates, best first; ``considered`` configurations were scored, of which
    ``left_out`` says how many did not qualify and why. ``note`` names what was assumed.
    """

    candidates: tuple[Candidate, ...]
    considered: int
    left_out: dict[str, int] = {}
    note: str = ""


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One addend of memory (GB) or time (s), by name."""

    name: str
    value: float
    meaning: str = ""


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A measured run near the one that was asked for; ``distance`` 0 is the same."""

    observation: Observation
    distance: float
    differs: tuple[str, ...]


class EstimateExplanation(msgspec.Struct, frozen=True, kw_only=True):
    estimate: Estimate
    memory: tuple[Term, ...] = ()
    time: tuple[Term, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    notes: tuple[str, ...] = ()


@runtime_checkable
class KnowledgeSource(Protocol):
    """Deterministic: the same history and version give the same answers, bit by bit."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Changes whenever an answer could: of the code, and of the history it rests on."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    def query(self, configurations: Configurations) -> Estimates: ...

    def complete(
        self, partial: Mapping[str, object], space: Space, objective: Objective, limits: Limits
    ) -> Ranking:
        """``partial`` are the fields that are given; ``space`` says what the others may be."""
        ...

    def curve(
        self,
        partial: Mapping[str, object],
        space: Space,
        gpu_models: Sequence[str],
        counts: Sequence[int],
    ) -> dict[tuple[str, int], Candidate]:
        """The best configuration for each GPU model and number of GPUs; none where nothing fits."""
        ...

    def observe(self, observation: Observation) -> None: ...

    def explain(self, configuration: Configuration) -> EstimateExplanation: ...

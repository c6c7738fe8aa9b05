"""What became of one configuration when it was run: the unit of history."""

from __future__ import annotations

import hashlib
import math
from enum import StrEnum

import msgspec

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configuration


class RunOutcome(StrEnum):
    """``rejected``: by a rule, before it was started. ``failed``: for a reason that says nothing of
    the configuration. ``stopped``: by somebody, before its pace was known.
    """

    VALID = "valid"
    REJECTED = "rejected"
    OOM = "oom"
    FAILED = "failed"
    STOPPED = "stopped"


class Origin(StrEnum):
    CAMPAIGN = "campaign"
    PRODUCTION = "production"
    IMPORT = "import"


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """``tokens_per_s`` are those of all GPUs together, ``step_s`` one micro-step. ``step_rows`` are
    the rows of one optimiser step, which the last round of micro-steps need not fill. Of one GPU's
    memory, ``peak_memory_gb`` was taken at the peak (as the driver shows it) and
    ``needed_memory_gb`` was in use, the rest being kept for later; both include what the process
    takes before it trains. ``provenance`` says where it is from (a job, a file and its row),
    ``protocol`` how it was measured. ``flags`` are notes on its quality: see ``quality``.
    """

    configuration: Configuration
    outcome: RunOutcome
    tokens_per_s: float | None = None
    step_s: float | None = None
    peak_memory_gb: float | None = None
    needed_memory_gb: float | None = None
    gpu_utilisation: float | None = None
    power_w: float | None = None
    runtime_s: float | None = None
    steps: int | None = None
    step_rows: int | None = None
    measured_at: float = 0.0
    origin: Origin = Origin.IMPORT
    provenance: str = ""
    cluster: str = ""
    protocol: str = ""
    error: str = ""
    weight: float = 1.0
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in (
            "tokens_per_s",
            "step_s",
            "peak_memory_gb",
            "needed_memory_gb",
            "runtime_s",
            "step_rows",
            "weight",
        ):
            number = getattr(self, field)
            if number is not None and not (math.isfinite(number) and number > 0):
                raise InvalidInput(field, number, "a number above 0")
        if (
            self.outcome is RunOutcome.VALID
            and self.tokens_per_s is None
            and not self.peak_memory_gb
        ):
            raise InvalidInput("tokens_per_s", None, "a number above 0, since the run was valid")

    @property
    def key(self) -> str:
        """The same for the same observation, so that nothing is taken in twice."""
        told = msgspec.to_builtins(self)
        if self.step_rows is None:
            # A field that came later: without it the key is what it was before.
            del told["step_rows"]
        text = msgspec.json.encode(told, order="sorted")
        return hashlib.blake2b(text, digest_size=8).hexdigest()

"""The result of running one configuration: the unit of history."""

from __future__ import annotations

import hashlib
import math
import re
from enum import StrEnum

import msgspec

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configuration

_DAY_S = 86_400.0
_ROW = re.compile(r":\d+$")
"""The end of a provenance that names a row of a file."""


class RunOutcome(StrEnum):
    """How a run ended.

    - ``rejected``: a rule refused it before it started.
    - ``failed``: it ended for a reason that does not concern the configuration.
    - ``stopped``: somebody stopped it before its throughput was known.
    """

    VALID = "valid"
    REJECTED = "rejected"
    OOM = "oom"
    FAILED = "failed"
    STOPPED = "stopped"


class Origin(StrEnum):
    """Where an observation comes from: a profiling campaign, a job, or an imported file."""

    CAMPAIGN = "campaign"
    PRODUCTION = "production"
    IMPORT = "import"


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run.

    - ``tokens_per_s``: throughput of all GPUs together.
    - ``step_s``: seconds of one micro-step.
    - ``step_rows``: rows of one optimiser step; the last round of micro-steps need not be full.
    - ``peak_memory_gb``: memory of one GPU at the peak, as the driver shows it.
    - ``needed_memory_gb``: the part of it that was in use; the allocator kept the rest for later.
    Both include what the process takes before training.
    - ``provenance``: where it comes from, such as a job, or a file and its row.
    - ``protocol``: how it was measured.
    - ``weight``: its weight in fits.
    - ``flags``: notes on its quality, see ``quality``.
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
    def campaign(self) -> str:
        """Return what runs share that were measured together: origin, place and day, and for
        campaigns and files their name.

        Errors of runs that were measured together are alike.
        """
        day = int(self.measured_at // _DAY_S)
        source = "" if self.origin is Origin.PRODUCTION else _ROW.sub("", self.provenance)
        return f"{self.origin} {self.cluster} {source} {day}"

    @property
    def key(self) -> str:
        """Return an identifier that is equal for equal observations, so that none is stored
        twice.
        """
        values = msgspec.to_builtins(self) | {"configuration": self.configuration.told}
        if self.step_rows is None:
            # The field was added later; keys of observations without it must not change.
            del values["step_rows"]
        text = msgspec.json.encode(values, order="sorted")
        return hashlib.blake2b(text, digest_size=8).hexdigest()

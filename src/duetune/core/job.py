"""A job: fine-tuning work, its deadline, and what finishing it is worth."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from duetune.errors import InvalidInput

MAX_SLOTS = 10_000
MAX_GPUS = 1024

NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
"""The pattern of a job's or a project's name."""
NAME_WORDS = "1 to 63 letters, digits, '.', '_' or '-', beginning and ending with a letter or digit"
"""The same pattern in words, for messages."""


class ValueShape(StrEnum):
    """How the value falls between the deadline and the hard deadline."""

    LINEAR = "linear"
    STEP = "step"
    EXPONENTIAL = "exponential"


class ReconfigurationKey(StrEnum):
    """Which changes of the GPU set cost time.

    TOTAL: only a change of the number of GPUs (the paper's model).
    COMPOSITION: also a swap between spot and on-demand, and every preemption.
    """

    TOTAL = "total"
    COMPOSITION = "composition"


class Reconfiguration(msgspec.Struct, frozen=True):
    """The fraction of a slot (mu) in which the job still computes when the set of GPUs changes.

    ``preempted`` is used with the composition key only. With the total key a preemption is a
    smaller total (``shrink``) or, if the GPU was replaced, no change.
    """

    grow: float = 0.90
    shrink: float = 0.95
    preempted: float = 0.90
    key: ReconfigurationKey = ReconfigurationKey.TOTAL

    def __post_init__(self) -> None:
        for field in ("grow", "shrink", "preempted"):
            fraction = getattr(self, field)
            if not (math.isfinite(fraction) and 0 < fraction <= 1):
                raise InvalidInput(f"reconfiguration.{field}", fraction, "a fraction in (0, 1]")

    @classmethod
    def from_delays(
        cls,
        *,
        grow_s: float,
        shrink_s: float,
        preempted_s: float,
        slot_s: float,
        key: ReconfigurationKey = ReconfigurationKey.TOTAL,
    ) -> Reconfiguration:
        """Return the fractions for measured delays (stop, checkpoint and relaunch, in seconds).

        Every delay must be shorter than one slot.
        """
        if not slot_s > 0:
            raise InvalidInput("slot_s", slot_s, "a positive slot length in seconds")
        delays = {"grow_s": grow_s, "shrink_s": shrink_s, "preempted_s": preempted_s}
        for field, delay in delays.items():
            if not 0 <= delay < slot_s:
                raise InvalidInput(
                    f"reconfiguration.{field}",
                    delay,
                    f"seconds from 0 to below the slot length {slot_s:g}; use longer slots",
                )
        return cls(
            grow=1 - grow_s / slot_s,
            shrink=1 - shrink_s / slot_s,
            preempted=1 - preempted_s / slot_s,
            key=key,
        )


class Job(msgspec.Struct, frozen=True):
    """The terms of a job. Times are in slots, counted from 1.

    ``work``: amount of work, in the unit of ``throughput``.
    ``deadline``: last slot in which finishing has its full value.
    ``value``: dollars for finishing by the deadline.
    ``throughput``: entry n is the work of n GPUs in a slot without a resize, H(n); the last index
    is the largest number of GPUs.
    ``hard_deadline_factor``: the hard deadline as a multiple of the deadline.
    ``decay``: rate per slot of an exponential ``value_shape``.
    ``budget``: the most dollars that the job may cost; None means no limit.
    ``unit``: what a unit of work is called in reasons.
    """

    work: float
    deadline: int
    value: float
    throughput: tuple[float, ...]
    min_gpus: int = 1
    hard_deadline_factor: float = 1.5
    value_shape: ValueShape = ValueShape.LINEAR
    decay: float = 0.1
    reconfiguration: Reconfiguration = Reconfiguration()
    budget: float | None = None
    name: str = "job"
    unit: str = "work units"

    def __post_init__(self) -> None:
        _require_positive("work", self.work)
        if isinstance(self.deadline, bool) or not isinstance(self.deadline, int):
            raise InvalidInput("deadline", self.deadline, "a whole number of slots")
        if not 1 <= self.deadline <= MAX_SLOTS:
            raise InvalidInput(
                "deadline", self.deadline, f"at least one slot from now, at most {MAX_SLOTS}"
            )
        _require("value", self.value, 0, "dollars, zero or more")
        _require("hard_deadline_factor", self.hard_deadline_factor, 1, "1 or more")
        if self.hard_deadline_factor * self.deadline >= MAX_SLOTS + 1:
            raise InvalidInput(
                "hard_deadline_factor",
                self.hard_deadline_factor,
                f"a hard deadline of at most {MAX_SLOTS} slots",
            )
        _require("decay", self.decay, 0, "zero or more, per slot")
        if self.budget is not None:
            _require("budget", self.budget, 0, "dollars, zero or more, or none")
        self._check_throughput()

    def _check_throughput(self) -> None:
        curve = self.throughput
        if not isinstance(curve, tuple) or len(curve) < 2:
            raise InvalidInput("throughput", curve, "a tuple of work per slot for 0, 1, ... GPUs")
        if self.max_gpus > MAX_GPUS:
            raise InvalidInput("max_gpus", self.max_gpus, f"at most {MAX_GPUS}")
        if isinstance(self.min_gpus, bool) or not isinstance(self.min_gpus, int):
            raise InvalidInput("min_gpus", self.min_gpus, "a whole number of GPUs")
        if not 1 <= self.min_gpus <= self.max_gpus:
            raise InvalidInput(
                "min_gpus", self.min_gpus, f"from 1 to max_gpus, which is {self.max_gpus}"
            )
        if curve[0] != 0:
            raise InvalidInput("throughput[0]", curve[0], "0: no GPUs do no work")
        for gpus in range(self.min_gpus, self.max_gpus + 1):
            _require_positive(f"throughput[{gpus}]", curve[gpus])
            if gpus > self.min_gpus and curve[gpus] < curve[gpus - 1]:
                raise InvalidInput(
                    f"throughput[{gpus}]",
                    curve[gpus],
                    f"at least throughput[{gpus - 1}] = {curve[gpus - 1]:g}; "
                    "max_gpus is the largest number that still helps",
                )

    @property
    def max_gpus(self) -> int:
        """Return the largest number of GPUs that the job can use."""
        return len(self.throughput) - 1

    def fewest_slots(self, work: float) -> int:
        """Return the fewest slots in which on-demand GPUs do ``work``, with a resize in the first.

        All GPUs are held, because no smaller number is faster.
        """
        most, rule = self.throughput[-1], self.reconfiguration
        first = min(rule.grow, rule.shrink, rule.preempted) * most
        return 1 + max(0, math.ceil((work - first) / most - 1e-9))

    @property
    def hard_deadline(self) -> int:
        """Return D = floor(gamma d), the last slot in which finishing has value."""
        return math.floor(self.hard_deadline_factor * self.deadline + 1e-9)


def linear_throughput(
    max_gpus: int, *, slope: float = 1.0, intercept: float = 0.0
) -> tuple[float, ...]:
    """Return the paper's throughput: H(0) = 0 and H(n) = slope n + intercept for n > 0."""
    if isinstance(max_gpus, bool) or not isinstance(max_gpus, int) or not 1 <= max_gpus <= MAX_GPUS:
        raise InvalidInput("max_gpus", max_gpus, f"a whole number, 1 to {MAX_GPUS}")
    return (0.0, *(slope * gpus + intercept for gpus in range(1, max_gpus + 1)))


def _require(field: str, number: float, least: float, allowed: str) -> None:
    if not (math.isfinite(number) and number >= least):
        raise InvalidInput(field, number, allowed)


def _require_positive(field: str, number: float) -> None:
    if not (math.isfinite(number) and number > 0):
        raise InvalidInput(field, number, "a positive number")

"""Where a job of one instance runs next, for hosts that recover jobs: spot, on-demand or nowhere.

The host says when an instance began and was lost; ``SingleInstance`` decides. ``skypilot_strategy``
is such a host. Nothing of it is here.

While an instance runs, work and time pass alike, so the reserve before the deadline does not
shrink. It is therefore enough to decide when an instance is wanted.
"""

from __future__ import annotations

import copy
import math
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec

from duetune.conversion import refusal
from duetune.errors import InvalidInput
from duetune.jobs.spec.values import parse_deadline, parse_duration
from duetune.policies import SingleInstance
from duetune.policies.single_instance import Instance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
_TICKS = 200
"""The most ticks in which a job is planned; more make the tables large and the plan no better."""


class RecoveryTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user says about a job. Durations are texts such as ``6h``, ``90m`` or ``1d``.

    - ``deadline``: how long the job may take from its submission, or a moment such as
      ``2027-01-31 18:00``.
    - ``work``: how long it would take on one instance that is never lost.
    - ``restart``: what a new instance costs in time: its start, and work since the last checkpoint.
    - ``spot_usd_h``, ``on_demand_usd_h``: prices of the instance; only their ratio matters.
    - ``spot_wait``: a spot instance that does not run in this time counts as refused.
    - ``tick``: how long a job waits before it decides again.
    - ``spot``, ``on_demand``: where instances of each kind are, for infrastructure without spot
      prices, such as ``slurm/CLUSTER/PARTITION``.
    """

    deadline: str
    work: str
    restart: str = "5m"
    spot_usd_h: float = 1.0
    on_demand_usd_h: float = 3.0
    spot_wait: str = "15m"
    tick: str = "10m"
    spot: str = ""
    on_demand: str = ""

    def __post_init__(self) -> None:
        for field in ("work", "restart", "spot_wait", "tick"):
            self.seconds(field)
        self.deadline_s(0.0)
        if bool(self.spot) != bool(self.on_demand):
            missing = "on_demand" if self.spot else "spot"
            raise InvalidInput(missing, "", "a place, as the other kind has one")
        for field in ("spot_usd_h", "on_demand_usd_h"):
            price = getattr(self, field)
            if not (math.isfinite(price) and price > 0):
                raise InvalidInput(field, price, "dollars per hour above 0")

    @classmethod
    def of(cls, config: Mapping[str, object]) -> RecoveryTerms:
        """Return the terms in the words of a task's file."""
        try:
            return msgspec.convert(config, cls, strict=False)
        except msgspec.ValidationError as error:
            raise refusal(error, config, cls).at("job_recovery.") from None
        except InvalidInput as error:
            field = f"job_recovery.{error.field}"
            raise InvalidInput(field, error.value, error.allowed) from None

    def seconds(self, field: str) -> float:
        """Return a duration in seconds."""
        return _parsed(field, getattr(self, field), parse_duration).total_seconds()

    def deadline_s(self, began_at: float) -> float:
        """Return the seconds from the job's submission to its deadline."""
        found = _parsed("deadline", self.deadline, parse_deadline)
        if isinstance(found, datetime):
            return found.timestamp() - began_at
        return found.total_seconds()


def _parsed(field: str, value: str, parse: Callable[[object], T]) -> T:
    try:
        return parse(value)
    except ValueError as error:
        raise InvalidInput(field, value, str(error)) from None


class RecoveryRecord(msgspec.Struct, kw_only=True):
    """What happened so far, in seconds since the epoch; a host keeps it beside the job.

    - ``done_s``: work that is done for good.
    - ``kind``, ``since``: the instance that runs now, and since when.
    """

    began_at: float
    done_s: float = 0.0
    kind: Instance = Instance.WAIT
    since: float = 0.0


class DeadlineRecovery:
    """Decides for one job. Call ``wants_spot``, then ``choose`` with what became of it."""

    def __init__(self, terms: RecoveryTerms, record: RecoveryRecord) -> None:
        self.terms, self.record = terms, record
        self._work_s, self._restart_s = terms.seconds("work"), terms.seconds("restart")
        self._deadline_s = terms.deadline_s(record.began_at)
        if self._deadline_s < self._work_s:
            allowed = f"at least the work ({terms.work}) from the job's submission"
            raise InvalidInput("deadline", terms.deadline, allowed)
        self.tick_s = min(terms.seconds("tick"), self._deadline_s / 2)
        self.tick_s = max(self.tick_s, self._deadline_s / _TICKS)
        self._step = SingleInstance(
            work_s=self._work_s,
            deadline_s=self._deadline_s,
            restart_overhead_s=self._restart_s,
            tick_s=self.tick_s,
            spot_price=terms.spot_usd_h,
            on_demand_price=terms.on_demand_usd_h,
            # A host notices late that an instance is gone; a tick is kept for that.
            host_safety_net=True,
        )

    def work_left_s(self, now: float) -> float:
        """Return the work that is left; a job that takes longer than was said has some left."""
        return max(self.tick_s, self._work_s - self.record.done_s - self._new_work_s(now))

    def wants_spot(self, now: float) -> bool:
        """Return whether a spot instance should be tried now. Nothing is learnt from asking."""
        return self._asked(copy.copy(self._step), now, spot=True) is Instance.SPOT

    def choose(self, now: float, *, spot: bool) -> Instance:
        """Return what should run now; ``spot`` says whether spot instances can be had."""
        return self._asked(self._step, now, spot=spot)

    def started(self, kind: Instance, now: float) -> None:
        """Take note that an instance was asked for at this time and runs."""
        self.record.kind, self.record.since = kind, now

    def lost(self, now: float) -> None:
        """Take note that the instance is gone."""
        self.record.done_s += self._new_work_s(now)
        self.record.kind = Instance.WAIT

    def _asked(self, step: SingleInstance, now: float, *, spot: bool) -> Instance:
        elapsed = now - self.record.began_at
        if elapsed > self._deadline_s - self.tick_s:
            return Instance.ON_DEMAND  # late, or nearly: the sooner it ends the better
        return step(max(0.0, elapsed), self.work_left_s(now), Instance.WAIT, 0.0, spot)

    def _new_work_s(self, now: float) -> float:
        """Return the work of the instance that runs now, which is done for good if it is lost."""
        if self.record.kind is Instance.WAIT:
            return 0.0
        return max(0.0, now - self.record.since - self._restart_s)

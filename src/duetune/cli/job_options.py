"""The options that describe one simulated job, for ``simulate`` and ``optimum``.

``launch`` reads a job spec instead; that is ``duetune.jobs.spec``.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from duetune.cli.json_output import read_document
from duetune.cli.options import bundle
from duetune.core.job import Job, Reconfiguration, ReconfigurationKey, linear_throughput
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from duetune.cli.options import MarketOptions
    from duetune.core.market import MarketTrace

    Value = TypeVar("Value")

DEFAULT_WORK = 160.0
DEFAULT_DEADLINE = "20"
DEFAULT_MIN_GPUS, DEFAULT_MAX_GPUS = 1, 12
VALUE_FACTOR = 1.5

_HOURS = {"d": 24.0, "h": 1.0, "m": 1 / 60, "min": 1 / 60, "s": 1 / 3600}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:d|h|min|m|s))+")
_DEADLINES = "slots (20), a duration (10h, 90m) or a time (2026-01-31T12:00Z)"


class JobOptions(msgspec.Struct, frozen=True):
    """The job's options as typed; None where an option was not given."""

    job: str | None = None
    work: float | None = None
    deadline: str | None = None
    value: float | None = None
    min_gpus: int | None = None
    max_gpus: int | None = None
    budget: float | None = None
    hard_deadline_factor: float | None = None
    grow: float | None = None
    shrink: float | None = None
    preempted: float | None = None
    composition: bool = False
    start: int | None = None

    def on(self, market: MarketOptions, seed: int) -> tuple[Job, MarketTrace, int]:
        """Return the job, its market and the slot in which the job starts.

        A synthetic market is made as long as the job needs, and by default the job starts after one
        day of it, so that policies have a past to learn from.
        """
        trace = market.one(seed)
        day = 0 if market.trace else round(24 / trace.slot_hours)
        start = day if self.start is None else self.start
        if start < 0:
            raise InvalidInput("start", start, "a slot of the market, 0 or more")
        if not market.trace:
            trace = market.one(seed, slots=start + 1)
        job = self._made(trace, start)
        if not market.trace:
            trace = market.one(seed, slots=start + job.hard_deadline)
        trace.window(start, job.hard_deadline)
        return job, trace, start

    def _made(self, trace: MarketTrace, start: int) -> Job:
        if start >= trace.slots:
            raise InvalidInput("start", start, f"a slot of the trace, 0 to {trace.slots - 1}")
        if self.job is None:
            return self._from_options(trace, start)
        for field in self.__struct_fields__:
            if field not in {"job", "start"} and getattr(self, field) not in {None, False}:
                flag = f"--{field.replace('_', '-')}"
                raise click.UsageError(f"{flag} cannot be used with --job: write it in the file")
        return read_document(self.job, Job, "job")

    def _from_options(self, trace: MarketTrace, start: int) -> Job:
        max_gpus = _or(self.max_gpus, DEFAULT_MAX_GPUS)
        throughput = linear_throughput(max_gpus)
        work = _or(self.work, DEFAULT_WORK)
        price = float(trace.on_demand_price[0, start])
        usual = Reconfiguration()
        return Job(
            work=work,
            deadline=deadline_slots(self.deadline or DEFAULT_DEADLINE, trace, start),
            value=_or(self.value, round(VALUE_FACTOR * work * price, 2)),
            throughput=throughput,
            min_gpus=_or(self.min_gpus, DEFAULT_MIN_GPUS),
            hard_deadline_factor=_or(self.hard_deadline_factor, 1.5),
            budget=self.budget,
            reconfiguration=Reconfiguration(
                grow=_or(self.grow, usual.grow),
                shrink=_or(self.shrink, usual.shrink),
                preempted=_or(self.preempted, usual.preempted),
                key=ReconfigurationKey.COMPOSITION if self.composition else usual.key,
            ),
        )


def deadline_slots(text: str, trace: MarketTrace, start: int) -> int:
    """Return the number of whole slots between slot ``start`` and the deadline."""
    text = text.strip()
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if _DURATION.fullmatch(text):
        parts = re.findall(r"([\d.]+)([a-z]+)", text)
        hours = sum(float(number) * _HOURS[unit] for number, unit in parts)
        return _whole_slots(text, hours, trace)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("deadline", text, _DEADLINES) from None
    if trace.start is None:
        raise InvalidInput("deadline", text, f"slots or a duration: {trace.name!r} has no times")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=trace.start.tzinfo)
    now = trace.start + timedelta(hours=start * trace.slot_hours)
    if moment <= now:
        raise InvalidInput("deadline", text, f"a time after {now.isoformat()}, when the job begins")
    return _whole_slots(text, (moment - now) / timedelta(hours=1), trace)


def _whole_slots(text: str, hours: float, trace: MarketTrace) -> int:
    slots = math.floor(hours / trace.slot_hours + 1e-9)
    if slots < 1:
        raise InvalidInput(
            "deadline", text, f"at least one slot of {trace.slot_hours * 60:g} min from now"
        )
    return slots


def _or(given: Value | None, usual: Value) -> Value:
    return usual if given is None else given


job_options = bundle(
    JobOptions,
    "wanted",
    click.option("--job", metavar="FILE", help="Read the job from a JSON file instead."),
    click.option(
        "--work",
        type=float,
        metavar="AMOUNT",
        help=f"Work to do. One GPU does 1 per undisturbed slot.  [default: {DEFAULT_WORK:g}]",
    ),
    click.option(
        "--deadline",
        metavar="WHEN",
        help=f"Deadline: {_DEADLINES}.  [default: {DEFAULT_DEADLINE}]",
    ),
    click.option(
        "--value",
        type=float,
        metavar="USD",
        help="Value of finishing on time.  "
        f"[default: {VALUE_FACTOR:g} x the on-demand cost of the work]",
    ),
    click.option(
        "--min-gpus",
        type=int,
        metavar="N",
        help=f"Fewest GPUs it can run on.  [default: {DEFAULT_MIN_GPUS}]",
    ),
    click.option(
        "--max-gpus",
        type=int,
        metavar="N",
        help=f"Most GPUs it can use.  [default: {DEFAULT_MAX_GPUS}]",
    ),
    click.option(
        "--budget", type=float, metavar="USD", help="Never spend more than this.  [default: none]"
    ),
    click.option(
        "--hard-deadline-factor",
        type=float,
        metavar="FACTOR",
        help="The value falls to zero at FACTOR x the deadline.  [default: 1.5]",
    ),
    click.option(
        "--grow",
        type=float,
        metavar="SHARE",
        help="Share of a slot that computes after GPUs were added.  [default: 0.9]",
    ),
    click.option(
        "--shrink",
        type=float,
        metavar="SHARE",
        help="The same after GPUs were released.  [default: 0.95]",
    ),
    click.option(
        "--preempted",
        type=float,
        metavar="SHARE",
        help="The same after spot GPUs were preempted; needs --composition.  [default: 0.9]",
    ),
    click.option(
        "--composition",
        is_flag=True,
        help="Exchanging spot for on-demand GPUs also costs time, not only a new number of GPUs.",
    ),
    click.option(
        "--start",
        type=int,
        metavar="SLOT",
        help="Slot of the market in which the job starts, counted from 0.  [default: 0; in a "
        "synthetic market after one day]",
    ),
)

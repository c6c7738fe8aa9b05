"""The job, from a file or from options."""

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
    """The wish as it was typed; None is what was not."""

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
        """The job, its market and the slot it begins in.

        A synthetic market is as long as the job needs it, and has a day of past by default.
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
            return self._wished(trace, start)
        for field in self.__struct_fields__:
            if field not in {"job", "start"} and getattr(self, field) not in {None, False}:
                flag = f"--{field.replace('_', '-')}"
                raise click.UsageError(f"{flag} and --job exclude each other: write it in the file")
        return read_document(self.job, Job, "job")

    def _wished(self, trace: MarketTrace, start: int) -> Job:
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
    """Whole slots from slot ``start`` until the deadline; a slot that ends after it is no help."""
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
    "wish",
    click.option("--job", metavar="FILE", help="The job as JSON, instead of the options below."),
    click.option(
        "--work",
        type=float,
        metavar="AMOUNT",
        help=f"Work to do; one GPU does 1 in a slot.  [default: {DEFAULT_WORK:g}]",
    ),
    click.option(
        "--deadline",
        metavar="WHEN",
        help=f"When it is due: {_DEADLINES}.  [default: {DEFAULT_DEADLINE}]",
    ),
    click.option(
        "--value",
        type=float,
        metavar="USD",
        help=f"What finishing on time is worth.  [default: {VALUE_FACTOR:g} x the work on demand]",
    ),
    click.option(
        "--min-gpus", type=int, help=f"The fewest it runs on.  [default: {DEFAULT_MIN_GPUS}]"
    ),
    click.option(
        "--max-gpus", type=int, help=f"The most it can use.  [default: {DEFAULT_MAX_GPUS}]"
    ),
    click.option("--budget", type=float, metavar="USD", help="Never spend more.  [default: none]"),
    click.option(
        "--hard-deadline-factor",
        type=float,
        metavar="FACTOR",
        help="Value falls to nothing at FACTOR x the deadline.  [default: 1.5]",
    ),
    click.option(
        "--grow",
        type=float,
        metavar="SHARE",
        help="Share of a slot left for work when GPUs are added.  [default: 0.9]",
    ),
    click.option(
        "--shrink",
        type=float,
        metavar="SHARE",
        help="The same when GPUs are given back.  [default: 0.95]",
    ),
    click.option(
        "--preempted",
        type=float,
        metavar="SHARE",
        help="The same when spot GPUs are taken; needs --composition.  [default: 0.9]",
    ),
    click.option(
        "--composition",
        is_flag=True,
        help="Swapping spot for on-demand costs work, too, not only a change in number.",
    ),
    click.option(
        "--start",
        type=int,
        metavar="SLOT",
        help="Slot of the market in which the job begins.  [default: 0; in a synthetic market "
        "after one day, so that there is a past to judge by]",
    ),
)

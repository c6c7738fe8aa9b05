"""What people see: tables and a few sentences."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from duetune.simulate.summary import dollars, fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.job import Job
    from duetune.core.ledger import Entry, Outcome
    from duetune.core.market import MarketTrace

WIDTH_OF_PIPES = 100
WIDTH_FOR_BARS = 120
_BAR = 8


def counting_bar() -> Progress:
    """How much of long work is done, on a terminal only and gone at the end."""
    return Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def console() -> Console:
    """Standard output; a pipe has no width of its own, so it is given one."""
    pipe = Console()
    width = None if pipe.is_terminal or "COLUMNS" in os.environ else WIDTH_OF_PIPES
    # No emoji: a policy's name such as ahap:100:1 is not one.
    return Console(highlight=False, emoji=False, width=width)


def new_table(*columns: str, left: Sequence[str] = (), gap: int = 2) -> Table:
    """Numbers to the right, the columns named in ``left`` to the left."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for column in columns:
        if column in left:
            table.add_column(column, justify="left", overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table


def slot_table(outcome: Outcome, job: Job, trace: MarketTrace, *, width: int) -> Table:
    """A run slot by slot; the bar of progress only where there is room for it."""
    reasons = any(entry.reason != "as planned" for entry in outcome.entries)
    columns = ("slot", "$/GPU-h", "avail", "spot", "on-dem", "eff", "done", "charge")
    table = new_table(*columns, *(("why",) if reasons else ()), left=("why",), gap=1)
    for entry in outcome.entries:
        cells = [
            f"{entry.slot}",
            f"{entry.spot_price / trace.slot_hours:.2f}",
            f"{entry.available}",
            _count(entry.allocation.spot, "cyan"),
            _count(entry.allocation.on_demand, "yellow"),
            f"{entry.efficiency:.0%}" if entry.allocation.total else "-",
            _progress(entry, job, bar=width >= WIDTH_FOR_BARS),
            dollars(entry.charge),
        ]
        if reasons:
            cells.append(_reason(entry))
        table.add_row(*cells, style="bold" if entry.slot == outcome.finished else "")
    return table


def outcome_table(rows: Sequence[Outcome], job: Job, optimum: float) -> Table:
    """Runs of the same job beside each other."""
    table = new_table(
        "", "finished", "on time", "cost", "value", "utility", "of optimum", left=("", "finished")
    )
    for outcome in rows:
        share = fraction(outcome.utility, optimum)
        table.add_row(
            escape(outcome.policy),
            finished_words(outcome.finished, job),
            "[green]yes[/]" if outcome.on_time else "[red]no[/]",
            dollars(outcome.cost),
            dollars(outcome.value),
            dollars(outcome.utility),
            percent(share),
        )
    return table


def finished_words(finished: int | None, job: Job) -> str:
    return "never" if finished is None else f"slot {finished} of {job.deadline}"


def percent(share: float | None, digits: int = 1) -> str:
    if share is None:
        return "-"
    return "< -999%" if share < -9.99 else f"{share:.{digits}%}"


def job_words(job: Job) -> str:
    """The job in one line."""
    budget = "" if job.budget is None else f", budget {dollars(job.budget)}"
    return (
        f"{escape(job.name)}: {job.work:g} work on {job.min_gpus} to {job.max_gpus} GPUs, due in "
        f"slot {job.deadline} (worth nothing after {job.hard_deadline}), "
        f"value {dollars(job.value)}{budget}"
    )


def market_words(trace: MarketTrace, start: int | None = None) -> str:
    """The market in one line."""
    pool = trace.pools[0].name
    place = "" if pool == "default" else f", pool {pool}"
    begin = "" if start is None else f", from slot {start}"
    length = f"{trace.slots} slots of {trace.slot_hours * 60:g} min"
    return escape(f"{trace.name}{place}: {length}{begin}")


def _count(gpus: int, colour: str) -> str:
    return f"[{colour}]{gpus}[/]" if gpus else "[dim]0[/]"


def _progress(entry: Entry, job: Job, *, bar: bool) -> str:
    share = min(1.0, entry.progress / job.work)
    # Rounded down: 100% is for work that is done.
    words = f"{int(share * 100 + 1e-7):>3}%"
    if not bar:
        return words
    full = int(share * _BAR + 1e-7)
    return f"[green]{'█' * full}[/][dim]{'░' * (_BAR - full)}[/] {words}"


def _reason(entry: Entry) -> str:
    lost = f"[red]{entry.preempted} preempted[/]; " if entry.preempted else ""
    return lost + escape(entry.reason)

"""Tables, progress bars and one-line descriptions that several commands print.

It imports rich, so commands import this module when they print, not at the top.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from duetune.simulate.summary import dollars, fraction

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from duetune.core.job import Job
    from duetune.core.ledger import Entry, Outcome
    from duetune.core.market import MarketTrace

WIDTH_OF_PIPES = 100
WIDTH_FOR_BARS = 120
_BAR = 8


def counting_bar() -> Progress:
    """Return a progress bar on standard error; only a terminal shows it, until the end."""
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
    """Return a console for standard output, with a fixed width if it is not a terminal."""
    pipe = Console()
    width = None if pipe.is_terminal or "COLUMNS" in os.environ else WIDTH_OF_PIPES
    # Without emoji: rich would read a policy such as ahap:100:1 as one.
    return Console(highlight=False, emoji=False, width=width)


def new_table(*columns: str, left: Sequence[str] = (), gap: int = 2) -> Table:
    """Return an empty table: columns in ``left`` are left-aligned, all others right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for column in columns:
        if column in left:
            table.add_column(column, justify="left", overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table


def slot_table(outcome: Outcome, job: Job, trace: MarketTrace, *, width: int) -> Table:
    """Return a run as a table of slots, with a progress bar if the screen is wide enough."""
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
    """Return a table that compares runs of the same job."""
    table = new_table(
        "", "finished", "on time", "cost", "value", "utility", "% of optimum", left=("", "finished")
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
    """Return the slot in which a run finished, and the deadline."""
    return "never" if finished is None else f"slot {finished} of {job.deadline}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as a percentage; a dash if it is unknown."""
    if share is None:
        return "-"
    return "< -999%" if share < -9.99 else f"{share:.{digits}%}"


def job_words(job: Job) -> str:
    """Describe the job in one line."""
    budget = "" if job.budget is None else f", budget {dollars(job.budget)}"
    return (
        f"{escape(job.name)}: {job.work:g} work on {job.min_gpus} to {job.max_gpus} GPUs, due in "
        f"slot {job.deadline} (no value after slot {job.hard_deadline}), "
        f"value {dollars(job.value)}{budget}"
    )


def market_words(trace: MarketTrace, start: int | None = None) -> str:
    """Describe the market in one line."""
    pool = trace.pools[0].name
    place = "" if pool == "default" else f", pool {pool}"
    begin = "" if start is None else f", from slot {start}"
    length = f"{trace.slots} slots of {trace.slot_hours * 60:g} min"
    return escape(f"{trace.name}{place}: {length}{begin}")


def names_words(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return escape(", ".join(names[:3])) + more


def print_written(*paths: Path | None) -> None:
    """Print which files a command wrote, rows as CSV or a plot; None stands for no file."""
    for path in filter(None, paths):
        click.echo(f"{'Rows' if path.suffix == '.csv' else 'Plot'}: {path}")


def _count(gpus: int, colour: str) -> str:
    return f"[{colour}]{gpus}[/]" if gpus else "[dim]0[/]"


def _progress(entry: Entry, job: Job, *, bar: bool) -> str:
    share = min(1.0, entry.progress / job.work)
    # Rounded down: only finished work shows 100%.
    words = f"{int(share * 100 + 1e-7):>3}%"
    if not bar:
        return words
    full = int(share * _BAR + 1e-7)
    return f"[green]{'█' * full}[/][dim]{'░' * (_BAR - full)}[/] {words}"


def _reason(entry: Entry) -> str:
    lost = f"[red]{entry.preempted} preempted[/]; " if entry.preempted else ""
    return lost + escape(entry.reason)

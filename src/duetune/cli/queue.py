"""``duetune queue`` and ``duetune cost-report``: tables over all jobs of the home."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetune.cli.context import Answer, duration_words, json_option, print_answer
from duetune.home import Home

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.events import Status
    from duetune.store.rows import CostLine, JobRow

WIDTH_FOR_POLICIES = 110
"""A narrower screen shows no policies, and priorities and shares only if jobs have them."""

COLOURS = {
    "QUEUED": "yellow",
    "RUNNING": "cyan",
    "PAUSED": "yellow",
    "STOPPING": "yellow",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "dim",
}


class QueueAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``queue --json``; ``controller`` is the process id, None if none runs.

    ``fleet_silent_s`` is for how many seconds the fleet has not answered.
    """

    controller: int | None
    jobs: tuple[JobRow, ...]
    fleet_silent_s: float | None = None


class CostAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``cost-report --json``, in dollars."""

    by: str
    total: float
    lines: tuple[CostLine, ...]


@click.command()
@click.option("--all", "everything", is_flag=True, help="Show finished jobs, too.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=50,
    metavar="N",
    help="Show at most N jobs.",
)
@json_option
def queue(everything: bool, limit: int, as_json: bool) -> None:
    """List the jobs that are not finished, newest first."""
    from duetune.core.events import Status

    home = Home()
    alive = [each for each in Status if not each.final]
    rows = home.store.jobs(status=None if everything else alive, limit=limit)
    if as_json:
        print_answer(
            QueueAnswer(
                command="queue",
                controller=home.controller,
                jobs=tuple(rows),
                fleet_silent_s=_silent_s(home, rows),
            )
        )
        return
    if not rows:
        click.echo("No jobs." if everything else "No unfinished jobs; --all shows all jobs.")
        return
    _show(rows, home)


def _show(rows: list[JobRow], home: Home) -> None:
    from rich.markup import escape

    from duetune.cli import tables
    from duetune.jobs.controller_process import LOG_FILE
    from duetune.jobs.status import given_up_text
    from duetune.simulate.summary import dollars

    fleet = home.fleet
    now = None if fleet is None else fleet.clock.now()
    screen = tables.console()
    wide = screen.width >= WIDTH_FOR_POLICIES
    columns: dict[str, Callable[[JobRow], str]] = {"job": lambda row: escape(row.id)}
    if wide or any(row.priority for row in rows):
        columns["prio"] = lambda row: str(row.priority)
    columns |= {
        "status": lambda row: status_words(row.status),
        "steps": lambda row: f"{row.step}/{row.total_steps}",
    }
    if wide:
        columns["spot"] = lambda row: str(row.spot)
        columns["on-dem"] = lambda row: str(row.on_demand)
    else:
        columns["spot+od"] = lambda row: f"{row.spot}+{row.on_demand}"
    if wide or any(row.limited for row in rows):
        columns["share"] = _share
    columns |= {"spent": lambda row: dollars(row.spent), "due": lambda row: _due(row, now)}
    if wide:
        columns["policy"] = lambda row: escape(row.policy)
    table = tables.new_table(*columns, left=("job", "policy"), gap=2 if wide else 1)
    for column in table.columns:
        if column.header in {"status", "due"}:
            column.justify = "left"
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    screen.print(table)
    for row in rows:
        if row.given_up is not None:
            words = given_up_text(row.given_up, row.updated_at if now is None else now)
            click.echo(f"{row.id}: {words}.")
    if all(row.status.final for row in rows):
        return
    if note := home.controller_note():
        click.echo(note)
    elif (silent_s := _silent_s(home, rows)) is not None:
        click.echo(f"The fleet has not answered for {silent_s:.0f} s.")
    elif fleet is None:
        log = home.settings.home / LOG_FILE
        click.echo(
            f"The fleet is not running. The controller will start it again; if not, see {log}."
        )


def _silent_s(home: Home, rows: list[JobRow]) -> float | None:
    """Return for how many seconds the fleet has not answered, as one of the jobs knows it."""
    active = [row.id for row in rows if not row.status.final]
    return home.fleet_silent_s(active[0]) if active else None


def status_words(status: Status) -> str:
    """Return a job's status in its colour, as rich markup."""
    colour = COLOURS[status.value]
    return f"[{colour}]{status.value}[/]"


def _share(row: JobRow) -> str:
    """Return the GPUs the job may hold and those it asks for, if the queue limits it."""
    return f"{row.share} of {row.wish}" if row.limited else "-"


def _due(row: JobRow, now: float | None) -> str:
    if row.status.final:
        if row.finished_at is None:
            return "-"
        spare = row.deadline_at - row.finished_at
        return f"{duration_words(abs(spare))} {'early' if spare >= 0 else 'late'}"
    if now is None:
        return "?"
    left = row.deadline_at - now
    return f"in {duration_words(left)}" if left >= 0 else f"{duration_words(-left)} ago"


@click.command("cost-report")
@click.option(
    "--by",
    type=click.Choice(["job", "day", "kind", "tag"]),
    default="job",
    help="How to group the charges.",
)
@json_option
def cost_report(by: str, as_json: bool) -> None:
    """Add up what was charged, by job, day, kind of GPU or tag."""
    from duetune.cli import tables
    from duetune.simulate.summary import dollars
    from duetune.store.rows import CostBy

    home = Home()
    lines = home.store.cost_report(CostBy(by))
    total = sum(charge.dollars for charge in home.store.charges())
    if as_json:
        print_answer(CostAnswer(command="cost-report", by=by, total=total, lines=tuple(lines)))
        return
    if not lines:
        click.echo("Nothing was charged yet.")
        return
    table = tables.new_table(by, "cost", "GPU-hours", "nodes", left=(by,))
    for line in lines:
        table.add_row(
            line.key or "(none)", dollars(line.dollars), f"{line.gpu_hours:.2f}", str(line.nodes)
        )
    screen = tables.console()
    screen.print(table)
    screen.print(f"Total {dollars(total)}" + (" (tags may overlap)" if by == "tag" else ""))

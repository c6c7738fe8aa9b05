"""``duetune queue`` and ``duetune cost-report``: tables over all jobs of the home."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec

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


class FleetInQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet with unfinished jobs; ``now`` is its clock, None if the fleet is not running.

    ``silent_s`` is for how many seconds it has not answered. ``problem`` says why it cannot be
    used, if its file or its name is wrong.
    """

    fleet: str
    controller: int | None
    now: float | None = None
    silent_s: float | None = None
    problem: str = ""


class QueueAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``queue --json``.

    ``fleets`` are those of the unfinished jobs. ``controller`` is the process id of the default
    fleet's controller, None if none runs. ``fleet_silent_s`` is for how many seconds a fleet has
    not answered; None if all do.
    """

    controller: int | None
    jobs: tuple[JobRow, ...]
    fleet_silent_s: float | None = None
    fleets: tuple[FleetInQueue, ...] = ()


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
        fleets = tuple(_fleets(home, rows).values())
        silent = [each.silent_s for each in fleets if each.silent_s is not None]
        print_answer(
            QueueAnswer(
                command="queue",
                controller=home.controller,
                jobs=tuple(rows),
                fleet_silent_s=max(silent, default=None),
                fleets=fleets,
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
    from duetune.jobs.status import given_up_text
    from duetune.simulate.summary import dollars

    fleets = _fleets(home, rows)
    clocks = {name: found.now for name, found in fleets.items()}
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
    columns |= {
        "spent": lambda row: dollars(row.spent),
        "due": lambda row: _due(row, clocks.get(row.fleet)),
    }
    names = {row.fleet: home.settings.on(row.fleet).fleet_name for row in rows}
    if len(set(names.values())) > 1:
        columns["fleet"] = lambda row: escape(names[row.fleet])
    if wide:
        columns["policy"] = lambda row: escape(row.policy)
    table = tables.new_table(*columns, left=("job", "fleet", "policy"), gap=2 if wide else 1)
    for column in table.columns:
        if column.header in {"status", "due"}:
            column.justify = "left"
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    screen.print(table)
    for row in rows:
        if row.given_up is not None:
            now = clocks.get(row.fleet)
            words = given_up_text(row.given_up, row.updated_at if now is None else now)
            click.echo(f"{row.id}: {words}.")
    for name, found in fleets.items():
        if note := _note(home, name, found):
            click.echo(f"{found.fleet}: {note}" if len(fleets) > 1 else note)


def _fleets(home: Home, rows: list[JobRow]) -> dict[str, FleetInQueue]:
    """Return the fleets of the unfinished jobs, by their names in the rows.

    A fleet that does not answer, or whose file is wrong, does not hide the jobs of another.
    """
    from duetune.errors import DuetuneError
    from duetune.fleets.host import answered

    found: dict[str, FleetInQueue] = {}
    for row in rows:
        if row.status.final or row.fleet in found:
            continue
        name, pid = home.settings.on(row.fleet).fleet_name, home.controller_of(row.fleet)
        now = silent = None
        problem = ""
        try:
            fleet = answered(partial(home.connected, name))
            now = None if fleet is None else fleet.clock.now()
            silent = home.fleet_silent_s(row.id)
        except DuetuneError as error:
            problem = str(error)
        found[row.fleet] = FleetInQueue(
            fleet=name, controller=pid, now=now, silent_s=silent, problem=problem
        )
    return found


def _note(home: Home, name: str, found: FleetInQueue) -> str:
    """Return what to tell a user who waits for jobs on a fleet; empty if all is well."""
    from duetune.jobs.controller_process import controller_files

    if found.problem:
        return f"{found.problem}."
    if note := home.controller_note(name):
        return note
    if found.silent_s is not None:
        return f"The fleet has not answered for {found.silent_s:.0f} s."
    if found.now is None:
        log = controller_files(home.settings.on(name)).log
        return f"The fleet is not running. The controller will start it again; if not, see {log}."
    return ""


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
    type=click.Choice(["job", "day", "kind", "tag", "fleet"]),
    default="job",
    help="How to group the charges.",
)
@json_option
def cost_report(by: str, as_json: bool) -> None:
    """Add up what was charged, by job, day, kind of GPU, tag or fleet."""
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

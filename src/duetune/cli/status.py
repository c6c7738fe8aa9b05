"""``duetune status``, and the live view of ``launch``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetune.cli.context import Answer, duration_words, json_option, print_answer
from duetune.home import Home

if TYPE_CHECKING:
    from rich.console import Group

    from duetune.jobs.status import JobStatus

BAR = 40


class StatusAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``--json``."""

    status: JobStatus


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Keep showing the status until the job ends.")
@click.option(
    "--plot",
    metavar="FILE",
    help="Write a plot of loss, evaluation loss and speed to this .png, .svg or .pdf file.",
)
@json_option
def status(job: str, follow: bool, plot: str | None, as_json: bool) -> None:
    """Show the state of a job: steps, losses, GPUs, prices, cost, deadline and expected finish."""
    from duetune import plots
    from duetune.cli import tables

    home = Home()
    target = None if plot is None else plots.checked_plot(plot, "--plot")
    row = home.store.job(job)
    name = row.id
    if follow and not as_json:
        watch(home, name)
    found = home.status(name)
    if target is not None:
        plots.save_figure(plots.loss_figure(row.name, home.metrics(name)), target)
    if follow and not as_json:
        tables.print_written(target)
        return
    if as_json:
        print_answer(StatusAnswer(command="status", status=found))
        return
    tables.console().print(panel(found))
    if not found.job.status.final and (note := home.controller_note(found.job.fleet)):
        click.echo(note)
    tables.print_written(target)


def watch(home: Home, job: str, *, silent: bool = False) -> JobStatus:
    """Show a job until it is over; in a pipe, print a line whenever something has changed."""
    from rich.live import Live

    from duetune.cli import tables

    screen = tables.console()
    if silent or not screen.is_terminal:
        return _lines(home, job, silent=silent)
    found = home.status(job)
    with Live(panel(found), console=screen, refresh_per_second=4) as live:
        for found in home.follow(job):
            live.update(panel(found))
    return found


def _lines(home: Home, job: str, *, silent: bool) -> JobStatus:
    printed = ""
    for found in home.follow(job):
        held = f"{found.held.spot} spot, {found.held.on_demand} on-demand{found.node_text}"
        if found.fleet_silent_s is not None:
            held += " (the fleet does not answer)"
        words = f"{found.job.status.value} slot {found.slot}: {held}"
        words += f"; {found.given_up_text}" if found.given_up is not None else ""
        words += f"; {found.trouble}" if found.trouble else ""
        if words != printed and not silent:
            progress = found.progress
            # Before the first report of a node the number of steps is not known.
            steps = f"; step {progress.step}/{progress.total_steps}" if progress.total_steps else ""
            loss = "" if progress.loss is None else f", loss {progress.loss:.3f}"
            click.echo(f"{words}{steps}{loss}, ${found.spent:.2f}")
            printed = words
    return found


def panel(found: JobStatus) -> Group:
    """Return the status of a job as a few lines for the screen."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    from duetune.cli.queue import status_words
    from duetune.control.queue import held_by
    from duetune.core.events import Status
    from duetune.settings import EMBEDDED
    from duetune.simulate.summary import dollars

    row, progress = found.job, found.progress
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    total = progress.total_steps or row.total_steps
    share = min(1.0, progress.step / total) if total else 0.0
    full = int(share * BAR)
    bar = f"[green]{'█' * full}[/][dim]{'░' * (BAR - full)}[/] {int(share * 100):>3}%"
    grid.add_row("steps", f"{bar}  {progress.step} of {total}")
    if found.loss_text:
        grid.add_row("loss", escape(found.loss_text))
    if progress.message and row.status is not Status.FAILED:
        grid.add_row("note", escape(progress.message))
    grid.add_row("GPUs", _gpus(found))
    fleet = "" if row.fleet == EMBEDDED else escape(row.fleet)
    if found.fleet_silent_s is not None:
        words = f"[red]has not answered for {found.fleet_silent_s:.0f} s[/]"
        grid.add_row("fleet", f"{fleet} {words}".strip())
    elif fleet:
        grid.add_row("fleet", fleet)
    if row.limited:
        words = f"{row.share} of {row.wish} (slot {found.share_slot}): {found.share_reason}"
        grid.add_row("share", escape(words))
        grid.add_row(
            "others", escape(", ".join(held_by(found.holders)) or "no other job has a GPU")
        )
    if found.market is not None:
        grid.add_row(
            "market",
            f"spot {dollars(found.market.spot_price)}, {found.market.available} available; "
            f"on demand {dollars(found.market.on_demand_price)} per GPU-hour",
        )
    budget = "" if row.budget is None else f" of at most {dollars(row.budget)}"
    grid.add_row("spent", f"{dollars(found.spent)}{budget}")
    grid.add_row("due", _due(found))
    grid.add_row("policy", escape(row.policy))
    if row.reason:
        grid.add_row("why", escape(row.reason))
    if progress.trainer:
        grid.add_row("trainer", escape(progress.trainer))
    if found.given_up is not None:
        grid.add_row("[red]warning[/]", f"[red]{escape(found.given_up_text)}[/]")
    if found.trouble:
        grid.add_row("trouble", f"[red]{escape(found.trouble)}[/]")
    if found.log_tail:
        grid.add_row("log", escape("\n".join(found.log_tail)))
    if row.output:
        grid.add_row("output", escape(row.output))
    title = Text.from_markup(f"[bold]{escape(row.id)}[/]  {status_words(row.status)}")
    return Group(title, grid)


def _gpus(found: JobStatus) -> str:
    if found.job.status.final:
        lost = f"{found.job.preemptions} preempted, {found.resizes} resizes"
        return f"released ({lost}, {found.lost_steps} steps repeated)"
    running = [node for node in found.nodes if node.state.value == "running"]
    coming = sum(node.gpus for node in found.nodes if node.state.value == "requested")
    going = sum(node.gpus for node in running if node.notice_at is not None)
    held = found.held
    words = f"[cyan]{held.spot} spot[/], [yellow]{held.on_demand} on demand[/]{found.node_text}"
    words += f", {coming} requested" if coming else ""
    words += f", [red]{going} about to be preempted[/]" if going else ""
    return f"{words}; {found.job.preemptions} preempted so far"


def _due(found: JobStatus) -> str:
    row = found.job
    if row.status.final:
        if row.finished_at is None:
            return "not finished"
        spare = row.deadline_at - row.finished_at
        words = f"{duration_words(abs(spare))} {'before' if spare >= 0 else 'after'} the deadline"
        return f"[green]{words}[/]" if spare >= 0 else f"[red]{words}[/]"
    if found.now is None:
        return found.slot_text
    left = row.deadline_at - found.now
    words = f"in {duration_words(left)}" if left >= 0 else f"[red]{duration_words(-left)} ago[/]"
    finish = ""
    if found.projected_finish is not None:
        ahead = duration_words(found.projected_finish - found.now)
        finish = f"; finished in {ahead} with the present GPUs"
        if found.projected_finish > row.deadline_at:
            finish += ", [red]which is late[/]"
    return f"{words} ({found.slot_text}){finish}"

"""``duetune explain``: the decisions of a job and their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetune.cli.context import Answer, json_option, print_answer
from duetune.home import Home

if TYPE_CHECKING:
    from rich.console import Console

    from duetune.jobs.explain import Explanation, SlotExplained
    from duetune.store.rows import JobRow


class ExplainAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``--json``."""

    explanation: Explanation


@click.command()
@click.argument("job")
@click.argument("slot", type=int, required=False)
@click.option(
    "--plot",
    metavar="FILE",
    help="Write a plot of the run over time to this .png, .svg or .pdf file.",
)
@json_option
def explain(job: str, slot: int | None, plot: str | None, as_json: bool) -> None:
    """Explain every decision of a job; with SLOT, one decision in full."""
    from duetune import plots
    from duetune.cli import tables

    home = Home()
    target = None if plot is None else plots.checked_plot(plot, "--plot")
    row = home.store.job(job)
    explanation = home.explain(row.id, slot)
    if target is not None:
        story = home.store.journal.read(row.id)
        plots.save_figure(plots.timeline_figure(row.name, story), target)
    if as_json:
        print_answer(ExplainAnswer(command="explain", explanation=explanation))
        return
    if slot is None:
        _show_run(row, explanation)
    else:
        for each in explanation.slots:
            _show_slot(each, explanation.policy)
    tables.print_written(target)


def _show_run(row: JobRow, explanation: Explanation) -> None:
    from rich.markup import escape

    from duetune.cli import tables
    from duetune.simulate.summary import dollars

    screen = tables.console()
    screen.print(f"{escape(row.id)}: policy {escape(explanation.policy)} ({explanation.chosen})")
    screen.print()
    table = tables.new_table(
        *("slot", "$/GPU-h", "avail", "had", "spot", "on-dem", "step", "spent", "why"),
        left=("why",),
        gap=1,
    )
    for each in explanation.slots:
        table.add_row(
            str(each.slot),
            f"{each.spot_price:.2f}",
            str(each.available),
            f"{each.held.spot}+{each.held.on_demand}",
            f"[cyan]{each.decided.spot}[/]",
            f"[yellow]{each.decided.on_demand}[/]",
            f"{each.step:.0f}",
            dollars(each.spent),
            escape(each.why),
        )
    screen.print(table)
    _say_members(screen, explanation.gpus_per_member)
    for slot, words in explanation.disturbances:
        screen.print(f"Slot {slot}: {escape(words)}.")
    if not explanation.whole_runs:
        return
    screen.print()
    runs = tables.new_table(
        *("on the same market", "finished", "cost", "value less cost"), left=("on the same market",)
    )
    if explanation.cost is not None:
        runs.add_row("[bold]this job, as billed[/]", _finished(row), dollars(explanation.cost), "")
    for run in explanation.whole_runs:
        finished = "never" if run.finished is None else f"slot {run.finished}"
        late = "" if run.on_time else " [red](late)[/]"
        runs.add_row(escape(run.policy), finished + late, dollars(run.cost), dollars(run.utility))
    screen.print(runs)
    screen.print(
        "[dim]The other runs are simulated with the measured speed and the expected cost of "
        "resizes, so the real run may be better than the simulated optimum; no simulated run is. "
        "Slots after the end of the job are assumed to be like its last slot.[/]"
    )
    if any(each.share is not None for each in explanation.slots):
        screen.print("[dim]They have the whole fleet, while this job had to share it.[/]")


def _say_members(screen: Console, gpus: int) -> None:
    """Say what the reasons of a policy count, if a member has several GPUs."""
    if gpus > 1:
        screen.print(f"[dim]Reasons count members of {gpus} GPUs.[/]")


def _finished(row: JobRow) -> str:
    return "never" if row.finished_at is None else "done"


def _show_slot(each: SlotExplained, policy: str) -> None:
    from rich.markup import escape

    from duetune.cli import tables
    from duetune.simulate.summary import dollars

    screen = tables.console()
    ahead = ", ".join(f"{count} at ${price:.2f}" for price, count in each.expected)
    pace = ", ".join(f"{gpus} GPU: {steps:.1f}" for gpus, steps in each.pace.items())
    screen.print(f"[bold]Slot {each.slot}[/]")
    screen.print(
        f"  seen      spot ${each.spot_price:.2f} with {each.available} available, on demand "
        f"${each.on_demand_price:.2f} per GPU-hour"
    )
    screen.print(f"  expected  {ahead}")
    screen.print(
        f"  progress  step {each.step:.0f} of {each.work:.0f}; spent {dollars(each.spent)}; "
        f"had {each.held.spot} spot and {each.held.on_demand} on demand"
    )
    screen.print(f"  speed     {pace or 'not measured yet'} (steps per slot)")
    if each.share is not None and each.share < (each.wish or 0):
        screen.print(f"  share     {each.share} of {each.wish} GPUs: {escape(each.share_reason)}")
    screen.print(
        f"  decided   [cyan]{each.decided.spot} spot[/], "
        f"[yellow]{each.decided.on_demand} on demand[/] for {dollars(each.charge)}"
    )
    screen.print(f"  why       {escape(policy)}: {escape(each.why)}")
    _say_members(screen, each.gpus_per_member)
    if each.others:
        screen.print()
        table = tables.new_table(
            *("other policy", "spot", "on-dem", "charge", "why"), left=("other policy", "why")
        )
        for other in each.others:
            table.add_row(
                escape(other.policy),
                str(other.allocation.spot),
                str(other.allocation.on_demand),
                dollars(other.charge),
                escape(other.reason),
            )
        screen.print(table)

"""``duetune cancel``, ``pause``, ``resume`` and ``amend``: requests that change a running job.

A request is written to the store at once. The controller carries it out, after a restart if needed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from duetune.cli.context import Answer, json_option, print_answer, waiting
from duetune.home import Home

if TYPE_CHECKING:
    from duetune.core.events import UserRequest
    from duetune.jobs.quote_document import QuoteDocument


class RequestAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``--json``; ``wish_id`` is the number of the request in the store.

    ``quote`` is about the rest of the job on amended terms.
    """

    job: str
    wish_id: int
    controller: int | None
    quote: QuoteDocument | None = None


@click.command()
@click.argument("job")
@json_option
def cancel(job: str, as_json: bool) -> None:
    """Stop a job permanently. Its last checkpoint is kept."""
    from duetune.core.events import Cancel

    _ask("cancel", job, Cancel(), "will be cancelled", as_json=as_json)


@click.command()
@click.argument("job")
@json_option
def pause(job: str, as_json: bool) -> None:
    """Release a job's GPUs until it is resumed. Its deadline does not change."""
    from duetune.core.events import Pause

    _ask("pause", job, Pause(), "will be paused", as_json=as_json)


@click.command()
@click.argument("job")
@json_option
def resume(job: str, as_json: bool) -> None:
    """Continue a paused job."""
    from duetune.core.events import Resume

    _ask("resume", job, Resume(), "will continue", as_json=as_json)


@click.command()
@click.argument("job")
@click.option(
    "--deadline",
    metavar="WHEN",
    help="The new deadline: a duration from now, such as 3h, or a date and time.",
)
@click.option("--budget", metavar="USD", help="The new budget for the whole job.")
@click.option("--value", metavar="USD", help="What finishing by the deadline is worth now.")
@click.option(
    "--priority", type=int, metavar="N", help="The new priority, for nodes requested from now on."
)
@click.option("--force", is_flag=True, help="Accept terms that cannot be met.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before spending.")
@click.option("--seed", type=int, default=0, metavar="N", help="Seed of the scenarios.")
@json_option
def amend(
    job: str,
    deadline: str | None,
    budget: str | None,
    value: str | None,
    priority: int | None,
    force: bool,
    yes: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Change the deadline, budget, value or priority of a job that is not finished.

    Shows a new quote for the rest of the job and asks. Terms that cannot be met are refused. A new
    priority alone changes no price, so it is not asked about. A job stays on its fleet: to move it,
    cancel it and launch it again.
    """
    priced = any(each is not None for each in (deadline, budget, value))
    if not priced and priority is None:
        options = "--deadline, --budget, --value or --priority"
        raise click.UsageError(f"nothing to change: give {options}")
    home = Home()
    with waiting("Simulating the rest of the job on scenarios"):
        amended = home.amendment(
            job,
            deadline=deadline,
            budget=budget,
            value=value,
            priority=priority,
            force=force,
            seed=seed,
        )
    if priced and not as_json:
        if amended.quote is None:
            click.echo("These terms cannot be met.")
        else:
            from duetune.cli.plan_tables import show_rest

            show_rest(amended.job.id, amended.quote)
    if priced and not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("new terms may spend money: confirm with --yes")
        if not click.confirm("Amend it?"):
            click.echo("Nothing was changed.")
            return
    _ask("amend", amended.job.id, amended.request, "has new terms", amended.quote, as_json=as_json)


def _ask(
    command: str,
    name: str,
    request: UserRequest,
    words: str,
    quote: QuoteDocument | None = None,
    *,
    as_json: bool,
) -> None:
    row, number, controller = Home().ask(name, request)
    if as_json:
        answer = RequestAnswer(
            command=command, job=row.id, wish_id=number, controller=controller, quote=quote
        )
        print_answer(answer)
    else:
        click.echo(f"Job {row.id} {words}.")

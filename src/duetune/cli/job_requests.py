"""``duetune cancel``, ``pause``, ``resume`` and ``amend``: requests that change a running job.

A request is written to the store at once. The controller carries it out, after a restart if needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetune.cli.context import Answer, json_option, print_answer
from duetune.home import Home

if TYPE_CHECKING:
    from duetune.core.events import UserRequest


class RequestAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``--json``; ``wish_id`` is the number of the request in the store."""

    job: str
    wish_id: int
    controller: int | None


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
@json_option
def amend(job: str, deadline: str | None, budget: str | None, as_json: bool) -> None:
    """Change the deadline or the budget of a job that is not finished."""
    from duetune.jobs.user_requests import amended_terms

    if deadline is None and budget is None:
        raise click.UsageError("nothing to change: give --deadline or --budget")
    home = Home()
    terms = amended_terms(home.store.job(job), home.fleet, deadline, budget)
    _ask("amend", job, terms, "has new terms", as_json=as_json)


def _ask(command: str, name: str, request: UserRequest, words: str, *, as_json: bool) -> None:
    from duetune.jobs.user_requests import asked

    home = Home()
    home.check_settings()
    row, number = asked(home.store, name, request)
    controller = home.start_controller()
    if as_json:
        print_answer(
            RequestAnswer(command=command, job=row.id, wish_id=number, controller=controller)
        )
    else:
        click.echo(f"Job {row.id} {words}.")

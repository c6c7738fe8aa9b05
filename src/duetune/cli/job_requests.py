"""``duetune cancel``, ``pause``, ``resume`` and ``amend``: what can be asked of a running job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetune.cli.context import Answer, json_option, print_answer
from duetune.home import Home

if TYPE_CHECKING:
    from duetune.core.events import UserRequest


class WishAnswer(Answer, frozen=True, kw_only=True):
    job: str
    wish_id: int
    controller: int | None


@click.command()
@click.argument("job")
@json_option
def cancel(job: str, as_json: bool) -> None:
    """Stop a job for good. Its last checkpoint is kept."""
    from duetune.core.events import Cancel

    _ask("cancel", job, Cancel(), "will be cancelled", as_json=as_json)


@click.command()
@click.argument("job")
@json_option
def pause(job: str, as_json: bool) -> None:
    """Give back a job's GPUs until it is resumed; its deadline stays."""
    from duetune.core.events import Pause

    _ask("pause", job, Pause(), "will be paused", as_json=as_json)


@click.command()
@click.argument("job")
@json_option
def resume(job: str, as_json: bool) -> None:
    """Let a paused job go on."""
    from duetune.core.events import Resume

    _ask("resume", job, Resume(), "will go on", as_json=as_json)


@click.command()
@click.argument("job")
@click.option("--deadline", metavar="WHEN", help="From now, such as 3h, or a moment.")
@click.option("--budget", metavar="USD", help="Dollars in all.")
@json_option
def amend(job: str, deadline: str | None, budget: str | None, as_json: bool) -> None:
    """Change the deadline or the budget of a job that is not over."""
    from duetune.jobs.user_requests import amended_terms

    if deadline is None and budget is None:
        raise click.UsageError("nothing to change: give --deadline or --budget")
    home = Home()
    wish = amended_terms(home.store.job(job), home.fleet, deadline, budget)
    _ask("amend", job, wish, "has new terms", as_json=as_json)


def _ask(command: str, name: str, wish: UserRequest, words: str, *, as_json: bool) -> None:
    from duetune.jobs.user_requests import asked

    home = Home()
    home.check_settings()
    row, number = asked(home.store, name, wish)
    controller = home.start_controller()
    if as_json:
        print_answer(WishAnswer(command=command, job=row.id, wish_id=number, controller=controller))
    else:
        click.echo(f"Job {row.id} {words}.")

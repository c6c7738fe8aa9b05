"""``duetune controller``: start and show the process that runs the jobs."""

from __future__ import annotations

import logging

import click

from duetune.cli.context import Answer, json_option, print_answer
from duetune.home import Home


class ControllerAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``--json``; ``pid`` is None if no controller is running."""

    running: bool
    pid: int | None = None


@click.group()
def controller() -> None:
    """Start or show the process that runs the jobs.

    `launch` and changes to a job start it, and it ends when all jobs have ended. It may be killed
    at any time: workers continue, and the next controller continues from the journal.
    """


@controller.command()
def run() -> None:
    """Run the controller in the foreground."""
    from duetune.jobs.controller_process import sole_controller
    from duetune.wiring import run_controller

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    settings = Home().settings
    with sole_controller(settings) as alone:
        if alone:
            run_controller(settings)
        else:
            click.echo("Another controller is already running.")


@controller.command()
@json_option
def start(as_json: bool) -> None:
    """Start the controller in the background, unless one is running."""
    pid = Home().start_controller()
    if as_json:
        print_answer(ControllerAnswer(command="controller start", running=True, pid=pid))
    else:
        click.echo(f"Controller {pid} is running.")


@controller.command()
@json_option
def status(as_json: bool) -> None:
    """Show whether a controller is running."""
    pid = Home().controller
    if as_json:
        print_answer(
            ControllerAnswer(command="controller status", running=pid is not None, pid=pid)
        )
    else:
        click.echo(f"Controller {pid} is running." if pid else "No controller is running.")

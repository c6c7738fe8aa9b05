"""``duetune controller``: start and show the process that runs the jobs."""

from __future__ import annotations

import logging
import sys

import click

from duetune.cli.context import Answer, json_option, print_answer
from duetune.home import Home


class ControllerAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``--json``; ``pid`` is None if no controller is running.

    ``supervisor`` is the process that starts the controller again when it dies.
    """

    running: bool
    pid: int | None = None
    supervisor: int | None = None


@click.group()
def controller() -> None:
    """Start or show the process that runs the jobs.

    `launch` and changes to a job start it, and it ends when all jobs have ended. It may be killed
    at any time: workers continue, and its supervisor starts the next controller, which continues
    from the journal.
    """


@controller.command()
def run() -> None:
    """Run the controller in the foreground, without a supervisor."""
    from duetune.core.node_contract import HOPELESS
    from duetune.errors import StoreLost
    from duetune.jobs.controller_process import sole_controller
    from duetune.wiring import run_controller

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    settings = Home().settings
    with sole_controller(settings) as alone:
        if not alone:
            click.echo("Another controller is already running.")
            return
        try:
            run_controller(settings)
        except StoreLost as error:
            click.echo(f"duetune: {error}", err=True)
            sys.exit(HOPELESS)


@controller.command()
@json_option
def start(as_json: bool) -> None:
    """Start the controller in the background, unless one is running."""
    home = Home()
    pid = home.start_controller()
    if as_json:
        print_answer(_answer("controller start", home, pid))
    else:
        click.echo(f"Controller {pid} is running.")


@controller.command()
@json_option
def status(as_json: bool) -> None:
    """Show whether a controller is running."""
    home = Home()
    pid = home.controller
    if as_json:
        print_answer(_answer("controller status", home, pid))
    else:
        click.echo(f"Controller {pid} is running." if pid else home.controller_note())


def _answer(command: str, home: Home, pid: int | None) -> ControllerAnswer:
    from duetune.jobs.controller_process import supervisor_of

    found = supervisor_of(home.settings)
    supervisor = None if found is None else found.pid
    return ControllerAnswer(
        command=command, running=pid is not None, pid=pid, supervisor=supervisor
    )

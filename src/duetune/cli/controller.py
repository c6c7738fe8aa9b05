"""``duetune controller``: start, stop and show the processes that run the jobs."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.context import Answer, fleet_option, json_option, print_answer
from duetune.home import Home

if TYPE_CHECKING:
    from collections.abc import Callable

    Body = Callable[..., int | None]


class ControllerRow(msgspec.Struct, frozen=True, kw_only=True):
    """The controller of one fleet; ``pid`` is None if it is not running.

    ``supervisor`` is the process that starts the controller again when it dies.
    """

    fleet: str
    running: bool
    pid: int | None = None
    supervisor: int | None = None


class ControllerAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``--json``.

    ``controllers`` has every fleet that was meant. The other fields are those of the fleet in
    ``--fleet``, or of the default fleet.
    """

    running: bool
    pid: int | None = None
    supervisor: int | None = None
    controllers: tuple[ControllerRow, ...] = ()


@click.group()
def controller() -> None:
    """Start, stop or show the processes that run the jobs.

    Each fleet with jobs has a controller of its own. `launch` and changes to a job start it, and it
    ends when all jobs on its fleet have ended. It may be killed at any time: workers continue, and
    its supervisor starts the next controller, which continues from the journal.
    """


@controller.command()
@fleet_option("that of config.toml")
def run(fleet: str | None) -> None:
    """Run a controller in the foreground, without a supervisor."""
    from duetune.core.node_contract import HOPELESS
    from duetune.errors import StoreLost
    from duetune.jobs.controller_process import sole_controller
    from duetune.wiring import run_controller

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    settings = Home().on(fleet or "")
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
@fleet_option("all fleets with unfinished jobs")
@json_option
def start(fleet: str | None, as_json: bool) -> None:
    """Start a controller in the background, unless one is running."""
    from duetune.errors import DuetuneError

    home = Home()
    names = [home.on(fleet).fleet_name] if fleet else home.busy_fleets() or [""]
    failures = []
    for name in names:
        # One fleet that cannot be used must not keep the jobs of another waiting.
        try:
            home.start_controller(name)
        except DuetuneError as error:
            if len(names) == 1:
                raise
            click.echo(f"duetune: fleet {name}: {error}", err=True)
            failures.append(error)
    _show("controller start", home, fleet, names, as_json=as_json)
    if failures:
        sys.exit(failures[0].exit_code)


@controller.command()
@fleet_option("all fleets")
@json_option
def stop(fleet: str | None, as_json: bool) -> None:
    """Stop a controller and its supervisor. Nodes and training continue.

    `controller start` continues the jobs. On fleets of others, nodes leave by themselves if no
    controller comes back within the fleet's lease_minutes.
    """
    from duetune.jobs.controller_process import fleets_with_locks, stop_controller

    home = Home()
    names = [home.on(fleet).fleet_name] if fleet else fleets_with_locks(home.settings.home)
    names = [name for name in names if _runs(home, name)]
    for name in names:
        stop_controller(home.settings.on(name))
    if as_json:
        print_answer(_answer("controller stop", home, fleet, names))
    elif names:
        click.echo(f"Stopped the controller of {', '.join(names)}.")
    else:
        click.echo("No controller was running.")


@controller.command()
@fleet_option("all fleets that have or had a controller")
@json_option
def status(fleet: str | None, as_json: bool) -> None:
    """Show whether controllers are running. The database is not needed."""
    from duetune.jobs.controller_process import fleets_with_locks

    home = Home()
    seen = fleets_with_locks(home.settings.home)
    names = (
        [home.on(fleet).fleet_name] if fleet else [name for name in seen if _is_known(home, name)]
    )
    _show("controller status", home, fleet, names or [""], as_json=as_json)


def _is_known(home: Home, fleet: str) -> bool:
    """Return whether a fleet is still one of the home, or its controller still runs."""
    from duetune.errors import InvalidInput

    try:
        home.on(fleet)
    except InvalidInput:
        return _runs(home, fleet)
    return True


def _runs(home: Home, fleet: str) -> bool:
    found = _row(home, fleet)
    return found.running or found.supervisor is not None


def _row(home: Home, fleet: str) -> ControllerRow:
    from duetune.jobs.controller_process import supervisor_of

    settings = home.settings.on(fleet)
    pid, supervisor = home.controller_of(fleet), supervisor_of(settings)
    return ControllerRow(
        fleet=settings.fleet_name,
        running=pid is not None,
        pid=pid,
        supervisor=None if supervisor is None else supervisor.pid,
    )


def _show(command: str, home: Home, fleet: str | None, names: list[str], *, as_json: bool) -> None:
    """Print one line for each fleet; the fleet is named if it is not the only one to speak of."""
    if as_json:
        print_answer(_answer(command, home, fleet, names))
        return
    default = home.settings.fleet_name
    for name in names:
        found = _row(home, name)
        named = len(names) > 1 or found.fleet != default
        words = f"Controller {found.pid} is running."
        words = words if found.running else home.controller_note(name)
        click.echo(f"{found.fleet}: {words}" if named else words)


def _answer(command: str, home: Home, fleet: str | None, names: list[str]) -> ControllerAnswer:
    asked = _row(home, fleet or "")
    return ControllerAnswer(
        command=command,
        running=asked.running,
        pid=asked.pid,
        supervisor=asked.supervisor,
        controllers=tuple(_row(home, name) for name in names),
    )

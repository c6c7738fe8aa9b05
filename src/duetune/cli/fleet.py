"""``duetune fleet``: the embedded fleet; fleets of others are in ``fleet_connections``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.context import Answer, json_option, print_answer
from duetune.cli.fleet_connections import add, check, list_, remove
from duetune.home import Home

if TYPE_CHECKING:
    from duetune.fleets.host import Connected
    from duetune.settings import Settings


class FleetAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``--json``. Prices are dollars per GPU-hour."""

    running: bool
    pid: int | None = None
    market: str | None = None
    speed: float | None = None
    spot_price: float | None = None
    available: int | None = None
    on_demand_price: float | None = None
    spot_held: int = 0
    on_demand_held: int = 0
    spent: float = 0.0
    warm: str | None = None


@click.group()
def fleet() -> None:
    """Connect fleets that others run, or start the embedded one on this machine.

    `add`, `list`, `check` and `remove` are for fleets that others run, such as a Slurm cluster.
    The embedded fleet emulates spot and on-demand GPUs. It replays a recorded or synthetic market,
    if wanted faster than real time. It grants, preempts and bills nodes as a cloud would; a node is
    a group of processes. `launch` starts it if needed.
    """


for command in (add, list_, check, remove):
    fleet.add_command(command)


@fleet.command()
@click.option("--market", metavar="KIND", help="A synthetic market (see 'duetune markets').")
@click.option("--trace", metavar="FILE", help="A recorded market instead.")
@click.option("--pool", metavar="NAME", help="The pool of the trace.  [default: the first]")
@click.option(
    "--slot-hours",
    type=float,
    metavar="HOURS",
    help="Length of a slot; the market is resampled to it.",
)
@click.option(
    "--history",
    type=int,
    metavar="SLOTS",
    help="Slots that are known before the replay starts.  [default: a week, at most half of all]",
)
@click.option(
    "--speed", type=float, metavar="FACTOR", help="Market seconds per real second.  [default: 1]"
)
@click.option(
    "--max-gpus", type=int, metavar="N", help="Most GPUs that one job may hold.  [default: 4]"
)
@click.option(
    "--accelerator",
    metavar="NAME",
    help="The GPU model, such as H100; `plan` then knows its memory and speed.",
)
@click.option(
    "--emulated-microbatch",
    type=float,
    metavar="SECONDS",
    help="Emulate a GPU: a microbatch takes at least this time.",
)
@click.option(
    "--grant-delay", type=float, metavar="SECONDS", help="Time from the request to the node."
)
@click.option(
    "--notice", type=float, metavar="SECONDS", help="Time from the notice to the preemption."
)
@click.option(
    "--silent",
    type=float,
    metavar="SHARE",
    help="Share of nodes that are preempted without notice.",
)
@click.option("--seed", type=int, metavar="N", help="Seed of the random numbers.")
@click.option(
    "--warm/--cold",
    default=None,
    help="Whether to keep the training libraries loaded, so that workers start at once. Jobs with"
    " their own command do not need it.  [default: warm]",
)
@click.argument("name", required=False)
@json_option
def start(name: str | None, as_json: bool, **chosen: object) -> None:
    """Start the fleet. Options that are not given are taken from config.toml.

    NAME is `embedded` if config.toml names another fleet.
    """
    from duetune.settings import EMBEDDED
    from duetune.wiring import start_fleet

    settings = Home().on(name or "")
    names = {
        "history": "history_slots",
        "emulated_microbatch": "emulated_microbatch_s",
        "grant_delay": "grant_delay_s",
        "notice": "notice_s",
        "silent": "silent_share",
    }
    changes = {names.get(key, key): value for key, value in chosen.items() if value is not None}
    found = settings.fleet_name
    if changes and found != EMBEDDED:
        raise click.UsageError(f"these options are for the embedded fleet; site.fleet is {found!r}")
    site = msgspec.structs.replace(settings.site, **changes)
    _show("fleet start", start_fleet(settings, site), as_json=as_json)


@fleet.command()
@click.argument("name", required=False)
@json_option
def status(name: str | None, as_json: bool) -> None:
    """Show the market and the GPUs in use. NAME is by default the fleet of config.toml."""
    home = Home()
    _show("fleet status", home.connected(home.on(name or "").fleet_name), as_json=as_json)


@fleet.command()
@click.argument("name", required=False)
@click.option("--force", is_flag=True, help="Stop it while jobs run, and stop their controller.")
@json_option
def stop(name: str | None, force: bool, as_json: bool) -> None:
    """Stop the fleet and all its nodes. Unfinished jobs keep their checkpoints.

    It refuses while jobs run on it, unless --force is given. `controller start` continues such
    jobs. NAME is `embedded` if config.toml names another fleet.
    """
    from duetune.fleets.embedded import stop_provider
    from duetune.jobs.controller_process import stop_controller
    from duetune.settings import EMBEDDED

    home = Home()
    settings = home.on(name or "")
    found = settings.fleet_name
    if found != EMBEDDED:
        raise click.UsageError(f"duetune stops the embedded fleet only; site.fleet is {found!r}")
    running = _running_jobs(home, settings)
    if running and not force:
        names = ", ".join(running[:5])
        raise click.UsageError(f"jobs are running ({names}): cancel them, or use --force")
    if running:
        stop_controller(settings)
    was_running = stop_provider(settings.fleet)
    if as_json:
        print_answer(FleetAnswer(command="fleet stop", running=False))
    else:
        click.echo("The fleet is stopped." if was_running else "No fleet was running.")


def _running_jobs(home: Home, settings: Settings) -> list[str]:
    """Return the unfinished jobs of a fleet if its controller runs: it would start the fleet again
    for them.
    """
    from duetune.core.events import Status
    from duetune.jobs.controller_process import controller_pid, supervisor_of

    if controller_pid(settings) is None and supervisor_of(settings) is None:
        return []
    rows = home.store.jobs(status=[each for each in Status if not each.final])
    return [row.id for row in rows if row.fleet in settings.names_in_rows]


def _show(command: str, found: Connected | None, *, as_json: bool) -> None:
    from duetune.fleets.host import answered

    answer = FleetAnswer(command=command, running=False)
    if found is not None:
        answer = answered(lambda: _answer(command, found))
    if as_json:
        print_answer(answer)
        return
    if not answer.running:
        click.echo("No fleet is running.")
        return
    prices = (
        f"spot ${answer.spot_price:.2f}, {answer.available} available, "
        f"on demand ${answer.on_demand_price:.2f} per GPU-hour"
    )
    if answer.pid is None:
        click.echo(f"The fleet is running: {prices}.")
        return
    click.echo(
        f"Fleet {answer.pid} on market {answer.market} at {answer.speed:g}x: {prices}; "
        f"in use: {answer.spot_held} spot, {answer.on_demand_held} on demand."
    )


def _answer(command: str, found: Connected) -> FleetAnswer:
    report = found.feed.now()
    hours = report.slot_s / 3600
    answer = FleetAnswer(
        command=command,
        running=True,
        speed=found.speed,
        spot_price=report.slot.spot_price / hours,
        available=report.slot.available,
        on_demand_price=report.slot.on_demand_price / hours,
    )
    return _with_provider(answer, found)


def _with_provider(answer: FleetAnswer, found: Connected) -> FleetAnswer:
    """Add what only the embedded fleet reports: its process, market and nodes."""
    from duetune.fleets.embedded.client import EmbeddedFleet

    if not isinstance(found.fleet, EmbeddedFleet):
        return answer
    status = found.fleet.status()
    return msgspec.structs.replace(
        answer,
        pid=status.pid,
        market=status.market,
        spot_held=status.spot_held,
        on_demand_held=status.on_demand_held,
        spent=status.spent,
        warm=status.warm,
    )

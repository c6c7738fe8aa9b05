"""``duetune fleet add|list|check|remove``: fleets that others run, such as a Slurm cluster."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.context import Answer, json_option, print_answer
from duetune.home import Home

if TYPE_CHECKING:
    from duetune.fleets.fleet_file import Option
    from duetune.registry.engines import EngineHost


class FleetRow(msgspec.Struct, frozen=True):
    """One fleet. ``chosen``: jobs that name no fleet run on it."""

    name: str
    engine: str
    accelerator: str | None
    max_gpus: int
    chosen: bool


class FleetsAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``fleet list --json``."""

    fleets: tuple[FleetRow, ...]


class CheckAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``fleet check --json``: what was checked, and what is wrong with it if so."""

    fleet: str
    checked: dict[str, str]


@click.command()
@click.argument("name")
@click.option("--engine", required=True, help="What runs the fleet: slurm, ray or a plug-in.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="A field of the fleet's file, or an option of the engine. May be given several times.",
)
def add(name: str, engine: str, assignments: tuple[str, ...]) -> None:
    """Connect a fleet that others run. It is written to fleets/NAME.toml in the home."""
    from duetune.conversion import refusal
    from duetune.fleets.fleet_file import FleetFile, write_fleet
    from duetune.registry.engines import driver_of

    settings = Home().settings
    known = set(FleetFile.__struct_fields__) - {"engine", "options"}
    fields: dict[str, object] = {"engine": engine, "options": {}}
    options: dict[str, Option] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--set {text}: write KEY=VALUE")
        (fields if key in known else options)[key] = _value(value)
    fields["options"] = options
    try:
        file = msgspec.convert(fields, FleetFile)
    except msgspec.ValidationError as error:
        raise refusal(error, fields, FleetFile).at("") from None
    # A driver that cannot be made refuses its options; then nothing is written.
    driver_of(file, "dt")
    path = write_fleet(settings, name, file)
    click.echo(f"Wrote {path}. Check it with 'duetune fleet check {name}'.")
    click.echo(f"Choose it with 'fleet: {name}' in a job file, or for all jobs that name none")
    click.echo(f'with fleet = "{name}" under [site] in {settings.home}/config.toml.')


@click.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the fleets of this home."""
    from duetune.cli.tables import console, new_table
    from duetune.fleets.fleet_file import fleet_files, read_fleet
    from duetune.settings import EMBEDDED

    settings = Home().settings
    site = settings.site
    own = FleetRow(EMBEDDED, EMBEDDED, site.accelerator, site.max_gpus, site.fleet == EMBEDDED)
    rows = [own]
    for name, path in fleet_files(settings).items():
        file = read_fleet(path)
        rows.append(
            FleetRow(name, file.engine, file.accelerator, file.max_gpus, site.fleet == name)
        )
    if as_json:
        print_answer(FleetsAnswer(command="fleet list", fleets=tuple(rows)))
        return
    table = new_table("fleet", "engine", "GPU", "GPUs a job", "chosen", left=("fleet", "engine"))
    for row in rows:
        gpu, chosen = row.accelerator or "-", "yes" if row.chosen else ""
        table.add_row(row.name, row.engine, gpu, str(row.max_gpus), chosen)
    console().print(table)


@click.command()
@click.argument("name")
@json_option
def check(name: str, as_json: bool) -> None:
    """Check the settings of a fleet, its engine, limits and storage, without starting a node."""
    from duetune.errors import FleetError
    from duetune.fleets.driver import CheckedDriver, Finding
    from duetune.fleets.storage_check import check_storage

    host = _host(name)
    findings: list[Finding] = []
    if host.file.storage:
        findings.append(check_storage(host.file.storage))
    if isinstance(host.driver, CheckedDriver):
        findings += host.driver.check()
    if not any(finding.wrong for finding in findings):
        try:
            count = len(host.driver.list())
            findings.append(Finding(f"the engine answers; it knows {count} of our nodes"))
        except FleetError as error:
            findings.append(Finding("the engine answers", str(error)))
    wrong = [finding for finding in findings if finding.wrong]
    if as_json:
        checked = {finding.what: finding.wrong for finding in findings}
        print_answer(CheckAnswer(command="fleet check", fleet=name, checked=checked))
    else:
        for finding in findings:
            click.echo(f"{'no ' if finding.wrong else 'ok '} {finding.what}")
            if finding.wrong:
                click.echo(f"    {finding.wrong}")
    if wrong:
        raise FleetError(f"fleet {name}: {len(wrong)} of {len(findings)} checks failed")


@click.command()
@click.argument("name")
def remove(name: str) -> None:
    """Forget a fleet. It is refused while the fleet has nodes or unfinished jobs."""
    from duetune.errors import InvalidInput
    from duetune.fleets.node_ledger import NodeLedger

    home, host = Home(), _host(name)
    unfinished = home.store.active(home.settings.on(name).names_in_rows)
    if unfinished:
        allowed = f"a fleet without unfinished jobs; cancel {', '.join(unfinished[:5])}"
        raise InvalidInput("NAME", name, allowed)
    ledger = NodeLedger(home.store.ledger(name))
    alive = sorted({entry.node.job for entry in ledger.open() if entry.node.state.alive})
    if alive:
        raise InvalidInput("NAME", name, f"a fleet without nodes; cancel {', '.join(alive[:5])}")
    if ledger.open():
        # Nobody has looked since the last job ended; what its engine still runs is stopped now.
        host.start().fleet.observe("")
    for file in (host.path, host.path.with_suffix(".token")):
        file.unlink(missing_ok=True)
    click.echo(f"Removed fleet {name}.")


def _host(name: str) -> EngineHost:
    from duetune.errors import InvalidInput
    from duetune.fleets.fleet_file import fleet_files
    from duetune.registry.engines import EngineHost

    settings = Home().settings
    files = fleet_files(settings)
    if name not in files:
        known = ", ".join(files) or "none yet; see 'duetune fleet add --help'"
        raise InvalidInput("NAME", name, f"a fleet of this home ({known})")
    return EngineHost(settings, files[name])


def _value(text: str) -> Option:
    """Return a value as TOML would read it; anything else is a text."""
    try:
        found: Option = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return found

"""``duetune plan`` and ``duetune launch``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from duetune.cli.context import Answer, Home, json_option, print_answer, waiting

if TYPE_CHECKING:
    from duetune.jobs.configure import TrainingPlan
    from duetune.jobs.quote_document import QuoteDocument
    from duetune.jobs.status import Look
    from duetune.jobs.submit import PreparedJob

OVER_BADLY = 1


class PlanAnswer(Answer, frozen=True, kw_only=True):
    name: str
    policy: str
    chosen: str
    plan: TrainingPlan
    quote: QuoteDocument


class LaunchAnswer(Answer, frozen=True, kw_only=True):
    job: str
    policy: str
    controller: int
    status: Look | None = None


@click.command()
@click.argument("spec", metavar="JOB.YAML")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the scenarios.")
@json_option
def plan(spec: str, seed: int, as_json: bool) -> None:
    """What a job would be, cost and take: nothing is started or spent."""
    home = Home()
    prepared = _prepared(home, spec, seed)
    if as_json:
        print_answer(
            PlanAnswer(
                command="plan",
                name=prepared.spec.name,
                policy=prepared.policy,
                chosen=prepared.chosen,
                plan=prepared.plan,
                quote=prepared.quote.document,
            )
        )
        return
    from duetune.cli.plan_tables import show_plan

    show_plan(prepared)


@click.command()
@click.argument("spec", metavar="JOB.YAML")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before spending.")
@click.option("-d", "--detach", is_flag=True, help="Return at once; the job goes on.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the scenarios.")
@json_option
def launch(spec: str, yes: bool, detach: bool, seed: int, as_json: bool) -> None:
    """Plan a job, ask, run it, and show how it goes.

    The job goes on when this command is interrupted; `duetune cancel` stops it. The exit status is
    0 if the job succeeded, 1 if it failed or was cancelled.
    """
    from duetune.cli.status import watch
    from duetune.jobs.submit import submit
    from duetune.wiring import desk_site, start_fleet

    home = Home()
    _require_training(spec)
    prepared = _prepared(home, spec, seed)
    if not as_json:
        from duetune.cli.plan_tables import show_plan

        show_plan(prepared)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("this spends money: confirm with --yes")
        if not click.confirm("Launch it?"):
            click.echo("Nothing was launched.")
            return
    fleet = start_fleet(home.settings)
    controller = home.start_controller()
    job = submit(
        prepared,
        home.settings,
        home.store,
        site=desk_site(home.settings),
        market=fleet.feed.now(),
    )
    if detach:
        if as_json:
            print_answer(
                LaunchAnswer(
                    command="launch", job=job, policy=prepared.policy, controller=controller
                )
            )
        else:
            click.echo(f"Job {job} is launched: 'duetune status {job} -f' follows it.")
        return
    try:
        look = watch(home, job, silent=as_json)
    except KeyboardInterrupt:
        click.echo(f"\nJob {job} goes on: 'duetune status {job} -f', 'duetune cancel {job}'.")
        raise
    if as_json:
        print_answer(
            LaunchAnswer(
                command="launch",
                job=job,
                policy=prepared.policy,
                controller=controller,
                status=look,
            )
        )
    elif not sys.stdout.isatty():
        from duetune.cli import tables
        from duetune.cli.status import panel

        tables.console().print(panel(look))
    if look.job.status.value != "SUCCEEDED":
        sys.exit(OVER_BADLY)


def _prepared(home: Home, spec: str, seed: int) -> PreparedJob:
    from duetune.jobs.spec.load import load_checked
    from duetune.jobs.submit import prepare
    from duetune.wiring import desk

    loaded = load_checked(spec)
    with waiting("Playing the policies on scenarios; the first time compiles for up to a minute"):
        return prepare(loaded, desk(home.settings), home.store, seed=seed)


def _require_training(spec: str) -> None:
    """Before anything is started: what the job will run with must be installed."""
    from importlib.util import find_spec

    from duetune.errors import MissingExtra
    from duetune.jobs.spec.load import load_checked

    own_command = load_checked(spec).run is not None
    if not own_command and any(find_spec(name) is None for name in ("torch", "torchft", "peft")):
        raise MissingExtra("training", "train")

"""``duetune plan`` and ``duetune launch``: the cost of a job, and the job itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from duetune.cli.context import Answer, fleet_option, json_option, print_answer, waiting
from duetune.home import Home

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.jobs.configure import TrainingPlan
    from duetune.jobs.preflight import Preflight
    from duetune.jobs.quote_document import QuoteDocument
    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.jobs.status import JobStatus
    from duetune.jobs.submit import PreparedJob
    from duetune.jobs.training_settings import TrainingSetting

    Body = Callable[..., int | None]

OVER_BADLY = 1


class PlanAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``plan --json``.

    ``chosen`` is the reason for the policy, ``settings`` are all training settings with where they
    come from, and ``preflight`` is what was found to be wrong.
    """

    name: str
    policy: str
    chosen: str
    plan: TrainingPlan
    quote: QuoteDocument
    settings: tuple[TrainingSetting, ...]
    preflight: Preflight


class LaunchAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``launch --json``; ``status`` is None with --detach."""

    job: str
    policy: str
    controller: int
    status: JobStatus | None = None


@click.command()
@click.argument("spec", metavar="JOB.YAML")
@fleet_option("that of the job file, else of config.toml")
@click.option("--seed", type=int, default=0, metavar="N", help="Seed of the scenarios.")
@json_option
def plan(spec: str, fleet: str | None, seed: int, as_json: bool) -> None:
    """Check a job, and show how it would be trained, its cost and its finish time.

    Nothing is started or spent. The exit status is 2 if the job would certainly fail, as it is
    with `launch`.
    """
    home = Home()
    prepared = _prepared(home, home.spec(spec, fleet=fleet), seed)
    if as_json:
        print_answer(
            PlanAnswer(
                command="plan",
                name=prepared.spec.name,
                policy=prepared.policy,
                chosen=prepared.chosen,
                plan=prepared.plan,
                quote=prepared.quote.document,
                settings=prepared.settings,
                preflight=prepared.preflight,
            )
        )
    else:
        from duetune.cli.plan_tables import show_plan

        show_plan(prepared)
    prepared.preflight.refuse()


@click.command()
@click.argument("spec", metavar="JOB.YAML")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before spending.")
@click.option("-d", "--detach", is_flag=True, help="Return at once and leave the job running.")
@fleet_option("that of the job file, else of config.toml")
@click.option("--seed", type=int, default=0, metavar="N", help="Seed of the scenarios.")
@json_option
def launch(spec: str, yes: bool, detach: bool, fleet: str | None, seed: int, as_json: bool) -> None:
    """Plan a job, ask for confirmation, run it, and show its progress.

    If this command is interrupted, the job continues; `duetune cancel` stops it. The exit status is
    0 if the job succeeded, 1 if it failed or was cancelled.
    """
    from duetune.cli.status import watch

    home = Home()
    job_spec = home.spec(spec, fleet=fleet)
    home.require_training(job_spec)
    prepared = _prepared(home, job_spec, seed)
    prepared.preflight.refuse()
    if not as_json:
        from duetune.cli.plan_tables import show_plan

        show_plan(prepared)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("launching a job spends money: confirm with --yes")
        if not click.confirm("Launch it?"):
            click.echo("Nothing was launched.")
            return
    job = home.launch(prepared)
    controller = home.start_controller(job_spec.fleet)
    if detach:
        if as_json:
            print_answer(
                LaunchAnswer(
                    command="launch", job=job, policy=prepared.policy, controller=controller
                )
            )
        else:
            click.echo(f"Job {job} was launched: 'duetune status {job} -f' follows it.")
        return
    try:
        found = watch(home, job, silent=as_json)
    except KeyboardInterrupt:
        click.echo(f"\nJob {job} continues: 'duetune status {job} -f', 'duetune cancel {job}'.")
        raise
    if as_json:
        print_answer(
            LaunchAnswer(
                command="launch",
                job=job,
                policy=prepared.policy,
                controller=controller,
                status=found,
            )
        )
    elif not sys.stdout.isatty():
        from duetune.cli import tables
        from duetune.cli.status import panel

        tables.console().print(panel(found))
    if found.job.status.value != "SUCCEEDED":
        sys.exit(OVER_BADLY)


def _prepared(home: Home, spec: JobSpec, seed: int) -> PreparedJob:
    with waiting("Simulating policies on scenarios; the first call compiles for up to a minute"):
        return home.plan(spec, seed=seed)

"""The program: its commands, imported when called, and how it ends when something is wrong."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING

import click

from duetune import __version__
from duetune.cli.options import CommandOptions
from duetune.errors import DuetuneError

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
UNEXPECTED = 70

COMMANDS = {
    "plan": ("duetune.cli.launch:plan", "What a job would be, cost and take."),
    "launch": ("duetune.cli.launch:launch", "Run a job by its deadline at the least cost."),
    "queue": ("duetune.cli.queue:queue", "Jobs that are not over."),
    "status": ("duetune.cli.status:status", "How a job is doing."),
    "logs": ("duetune.cli.logs:logs", "What a job's nodes wrote."),
    "explain": ("duetune.cli.explain:explain", "Why a job held what it held."),
    "cost-report": ("duetune.cli.queue:cost_report", "Every cent that was charged."),
    "cancel": ("duetune.cli.job_requests:cancel", "Stop a job for good."),
    "pause": ("duetune.cli.job_requests:pause", "Give back a job's GPUs for now."),
    "resume": ("duetune.cli.job_requests:resume", "Let a paused job go on."),
    "amend": ("duetune.cli.job_requests:amend", "Change the deadline or budget of a running job."),
    "fleet": ("duetune.cli.fleet:fleet", "The emulated fleet of this machine."),
    "controller": ("duetune.cli.controller:controller", "The process that runs the jobs."),
    "simulate": (
        "duetune.cli.simulate:simulate",
        "One job, slot by slot, every decision explained.",
    ),
    "optimum": (
        "duetune.cli.optimum:optimum",
        "The best plan there is for a market that is known.",
    ),
    "tournament": ("duetune.cli.tournament:tournament", "Many policies on many jobs, ranked."),
    "select": ("duetune.cli.select:select", "Learn over jobs which policy of a pool to choose."),
    "cluster": (
        "duetune.cli.cluster:cluster",
        "Many jobs on one stock of GPUs, simulated and compared.",
    ),
    "policies": ("duetune.cli.catalogue:policies", "The policies, groups and selectors by name."),
    "markets": (
        "duetune.cli.catalogue:markets",
        "The synthetic markets, and what files can be read.",
    ),
    "market": (
        "duetune.cli.market:market",
        "What a market is like, and how predictable.",
    ),
    "forecast": (
        "duetune.cli.forecast:forecast",
        "What a market will do next, and how well forecasters do.",
    ),
    "recommend": (
        "duetune.cli.recommend:recommend",
        "Fill in what a job leaves open, and say why.",
    ),
    "fits": ("duetune.cli.fits:fits", "Does a model fit on a GPU?"),
    "history": ("duetune.cli.history:history", "What was measured, here and elsewhere."),
    "profile": (
        "duetune.cli.profile:profile",
        "Measure configurations on the GPU of this machine.",
    ),
    "import": ("duetune.cli.spec_import:import_", "A job spec from a file of another tool."),
    "export": ("duetune.cli.spec_export:export", "A job spec as a file of another tool."),
    "schema": ("duetune.cli.schema:schema", "The JSON Schema of a job spec."),
}


class LazyGroup(click.Group):
    """Knows its commands by name; a command's module is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(import_module(module), attribute)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="duetune", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the trace of an error; so does DUETUNE_DEBUG=1.")
@click.pass_context
def app(context: click.Context, *, debug: bool) -> None:
    """Fine-tune by the due date at the least cost, on spot and on-demand GPUs.

    `launch` runs a job; `simulate` and the commands after it ask what policies would do on
    recorded or synthetic markets.
    """
    if debug and isinstance(context.obj, CommandOptions):
        context.obj.debug = True
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    session = CommandOptions(debug=os.environ.get("DUETUNE_DEBUG", "") not in {"", "0"})
    try:
        status = app.main(
            args=None if arguments is None else list(arguments),
            prog_name="duetune",
            standalone_mode=False,
            obj=session,
        )
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.ClickException as error:
        return _refused(error)
    except BrokenPipeError:
        # Whoever read us has enough.
        return _unheard()
    except DuetuneError as error:
        return _failed(session, error, str(error), error.exit_code)
    except Exception as error:  # noqa: BLE001 - the last line of defence
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            _say("no space is left for what is written")
            return _unheard()
        name = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        advice = "a bug in duetune; please report it with the command and what --debug shows"
        return _failed(session, error, f"unexpected {name}; {advice}", UNEXPECTED)
    return status if isinstance(status, int) else 0


def _unheard() -> int:
    """What is still buffered must not fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _refused(error: click.ClickException) -> int:
    context = error.ctx if isinstance(error, click.UsageError) else None
    advice = f" See '{context.command_path} --help'." if context is not None else ""
    message = error.format_message()
    _say(message + ("" if message.endswith((".", "?")) else ".") + advice)
    return error.exit_code


def _failed(session: CommandOptions, error: Exception, message: str, status: int) -> int:
    if session.debug:
        traceback.print_exception(error)
    _say(message)
    return status


def _say(message: str) -> None:
    click.echo(f"duetune: {' '.join(message.split())}", err=True)

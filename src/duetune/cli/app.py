"""The program ``duetune``: the table of its commands, and the exit status when one fails.

A command's module is imported when the command is called, so ``duetune --help`` starts fast.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING

import click

from duetune import __version__
from duetune.cli.context import CommandOptions
from duetune.errors import DuetuneError

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
UNEXPECTED = 70

COMMANDS = {
    "plan": ("duetune.cli.launch:plan", "Show what a job would cost and when it would finish."),
    "launch": ("duetune.cli.launch:launch", "Run a job by its deadline at the least cost."),
    "queue": ("duetune.cli.queue:queue", "List the jobs that are not finished."),
    "status": ("duetune.cli.status:status", "Show the state of a job."),
    "logs": ("duetune.cli.logs:logs", "Print the logs of a job's nodes."),
    "explain": ("duetune.cli.explain:explain", "Explain the decisions of a job."),
    "cost-report": ("duetune.cli.queue:cost_report", "Add up what was charged."),
    "cancel": ("duetune.cli.job_requests:cancel", "Stop a job permanently."),
    "pause": ("duetune.cli.job_requests:pause", "Release a job's GPUs until it is resumed."),
    "resume": ("duetune.cli.job_requests:resume", "Continue a paused job."),
    "amend": (
        "duetune.cli.job_requests:amend",
        "Change the deadline, budget, value or priority of a job.",
    ),
    "merge": ("duetune.cli.merge:merge", "Merge the adapter of a job into its base model."),
    "fleet": ("duetune.cli.fleet:fleet", "Connect, check, start, show or stop fleets."),
    "node": ("duetune.cli.node:node", "Run the work of one node; engines call it."),
    "controller": (
        "duetune.cli.controller:controller",
        "Start, stop or show the processes that run the jobs.",
    ),
    "simulate": ("duetune.cli.simulate:simulate", "Simulate one job and explain each decision."),
    "optimum": ("duetune.cli.optimum:optimum", "Compute the best plan for a known market."),
    "tournament": ("duetune.cli.tournament:tournament", "Rank policies on many simulated jobs."),
    "select": ("duetune.cli.select:select", "Learn over many jobs which policy to choose."),
    "cluster": ("duetune.cli.cluster:cluster", "Simulate many jobs on one cluster of GPUs."),
    "policies": ("duetune.cli.catalogue:policies", "List policies, policy groups and selectors."),
    "markets": (
        "duetune.cli.catalogue:markets",
        "List synthetic markets, trace formats, forecasters and fleets.",
    ),
    "market": (
        "duetune.cli.market:market",
        "Show, record and import markets; measure how predictable they are.",
    ),
    "forecast": ("duetune.cli.forecast:forecast", "Forecast a market, and score forecasters."),
    "recommend": (
        "duetune.cli.recommend:recommend",
        "Choose the fields that a job spec leaves open.",
    ),
    "fits": ("duetune.cli.fits:fits", "Check whether a model fits on a GPU."),
    "history": ("duetune.cli.history:history", "Import, export and show measured runs."),
    "profile": ("duetune.cli.profile:profile", "Measure configurations on this machine's GPU."),
    "import": ("duetune.cli.spec_files:import_", "Convert another tool's file to a job spec."),
    "export": ("duetune.cli.spec_files:export", "Convert a job spec to another tool's file."),
    "schema": ("duetune.cli.spec_files:schema", "Print the JSON Schema of a job spec."),
}


class LazyGroup(click.Group):
    """The group of all commands. It imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of that name, or None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(import_module(module), attribute)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line per command for the help page, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name="duetune", message="%(prog)s %(version)s")
@click.option(
    "--debug", is_flag=True, help="Show the traceback of an error. DUETUNE_DEBUG=1 does the same."
)
@click.pass_context
def app(context: click.Context, *, debug: bool) -> None:
    """Fine-tune models by a deadline at the least cost, on spot and on-demand GPUs.

    `plan` shows the cost of a job and `launch` runs it. `simulate` tries policies on recorded or
    synthetic markets. `fits` and `recommend` help to choose a configuration.
    """
    if debug and isinstance(context.obj, CommandOptions):
        context.obj.debug = True
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program, by default with the arguments of the process; return its exit status."""
    session = CommandOptions(debug=os.environ.get("DUETUNE_DEBUG", "") not in {"", "0"})
    try:
        with session.notice:
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
        # The reader of our output, such as `head`, has closed the pipe.
        return _discard_output()
    except DuetuneError as error:
        return _failed(session, error, str(error), error.exit_code)
    except Exception as error:  # noqa: BLE001 - the last line of defence
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            _say("no space left on the device for the output")
            return _discard_output()
        name = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        advice = (
            "this is a bug in duetune; please report it with the command and the --debug output"
        )
        return _failed(session, error, f"unexpected {name}; {advice}", UNEXPECTED)
    return status if isinstance(status, int) else 0


def _discard_output() -> int:
    """Send buffered output to nowhere, so that flushing it at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _refused(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
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

"""The moment in which a fork of an agent becomes what its node is for."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn, TextIO

from duetune.core.node_contract import HOPELESS

if TYPE_CHECKING:
    from duetune.fleets.embedded.channel import Assignment

CRASHED = 1


def become_worker(assignment: Assignment) -> NoReturn:
    """Never returns, whatever happens: the caller's stack belongs to the agent."""
    code = CRASHED
    try:
        _leave_the_agent_behind(assignment)
        code = _run_command(assignment) if assignment.command else _run_module(assignment)
    except SystemExit as leaving:
        code = _exit_code(leaving.code)
    except BaseException:  # noqa: BLE001 - the last resort before the process ends
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        # The interpreter's own exit would run what was registered for the process forked from.
        os._exit(code)


def _leave_the_agent_behind(assignment: Assignment) -> None:
    # A group of its own within the node's session.
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(assignment.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for life
    sys.stdout = _lines(1)
    sys.stderr = _lines(2)
    os.chdir(assignment.folder)
    os.environ.clear()
    os.environ.update(assignment.environment)


def _run_command(assignment: Assignment) -> int:
    program, *_ = assignment.command
    # Python ignores SIGPIPE; other programs expect it to end them, which is set above.
    try:
        os.execvp(program, assignment.command)  # noqa: S606 - the job's own command
    except OSError as error:
        sys.stderr.write(f"[duetune] {program!r} cannot be started: {error.strerror}\n")
    return HOPELESS


def _run_module(assignment: Assignment) -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.argv = [assignment.module, *assignment.arguments]
    for place in reversed(assignment.environment.get("PYTHONPATH", "").split(os.pathsep)):
        if place and place not in sys.path:
            sys.path.insert(0, place)
    return _exit_code(importlib.import_module(assignment.module).main())


def _exit_code(value: object) -> int:
    """As ``sys.exit`` takes it."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    sys.stderr.write(f"{value}\n")
    return CRASHED


def _lines(descriptor: int) -> TextIO:
    return open(
        descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )

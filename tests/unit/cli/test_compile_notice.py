"""A terminal is told that code is compiled; pipes, and commands that do not compile, are not."""

from __future__ import annotations

import io

import numba
import pytest
from numba.core import event

from duetune.cli.compile_notice import CompileNotice
from support.patience import until


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_the_line_is_shown_while_numba_compiles_and_erased_after():
    screen = Terminal()
    with CompileNotice(screen, enough_s=0.0) as notice:
        # Numba's own words for "a function is being compiled", for as long as we like.
        until(lambda: event._registered["numba:compile"], "the notice to listen")
        with event.trigger_event("numba:compile"):
            until(lambda: "Compiling for the first use" in screen.getvalue(), "the line")
        until(lambda: screen.getvalue().endswith("\r\033[K"), "the end of the line")
        notice.held = True
        before = screen.getvalue()
        with event.trigger_event("numba:compile"):
            assert screen.getvalue() == before
    assert notice not in event._registered["numba:compile"]
    assert max(map(len, screen.getvalue().split("\r"))) < 80


def test_a_pipe_is_told_nothing():
    pipe = io.StringIO()
    with CompileNotice(pipe, enough_s=0.0), event.trigger_event("numba:compile"):
        pass
    assert pipe.getvalue() == ""

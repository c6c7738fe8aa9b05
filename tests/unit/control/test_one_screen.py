"""The live loop and the simulator show the same verbs in the same order."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

from duetune.control import Controller
from duetune.simulate.episode import Episode

VERBS = ("observe", "forecast", "share", "decide", "write", "act", "account", "learn")
SCREEN = 50


def called(function) -> list[str]:
    """Methods of its own that a function calls, in the order of its text."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    own = [
        call
        for call in calls
        if isinstance(call, ast.Attribute)
        and isinstance(call.value, ast.Name)
        and call.value.id == "self"
    ]
    return [call.attr.removeprefix("_") for call in sorted(own, key=lambda call: call.lineno)]


@pytest.mark.parametrize("tick", [Controller.tick, Episode.tick])
def test_a_tick_is_the_eight_verbs_on_one_screen(tick):
    assert tuple(verb for verb in called(tick) if verb in VERBS) == VERBS
    assert len(inspect.getsource(tick).splitlines()) <= SCREEN

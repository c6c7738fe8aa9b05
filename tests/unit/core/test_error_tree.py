from __future__ import annotations

import inspect

import pytest

from duetune import errors


def test_codes_for_programs_and_shells_are_stable():
    kinds = {
        name: (kind.code, kind.exit_code)
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.DuetuneError)
    }
    assert kinds == {
        "Bug": ("bug", 70),
        "DuetuneError": ("error", 70),
        "FleetError": ("fleet", 4),
        "InvalidInput": ("invalid_input", 2),
        "MissingExtra": ("missing_extra", 2),
        "NotFound": ("not_found", 3),
        "OutOfMemory": ("out_of_memory", 2),
        "SolverStopped": ("solver_stopped", 4),
        "StaleController": ("stale_controller", 4),
        "StorageError": ("storage", 4),
        "StoreError": ("store", 4),
        "StoreLost": ("store_lost", 4),
    }


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            errors.InvalidInput("budget", -1, "zero or more"),
            "budget: -1 is not allowed; expected zero or more",
        ),
        (errors.NotFound("pool", "x", "a, b"), "no pool named 'x'; known: a, b"),
        (errors.NotFound("pool", "x"), "no pool named 'x'"),
        (
            errors.MissingExtra("a plot", "plot"),
            "a plot needs an optional part: pip install 'duetune[plot]'",
        ),
    ],
)
def test_a_message_is_one_clear_line(error, message):
    assert str(error) == message


def test_a_long_value_is_cut():
    text = str(errors.InvalidInput("curve", list(range(1000)), "fewer"))
    assert len(text) < 130
    assert "..." in text

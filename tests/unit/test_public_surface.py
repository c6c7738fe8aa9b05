"""What users build on does not change by accident. ``make snapshots`` renews what is stored."""

from __future__ import annotations

import pytest

import duetune
import duetune.testing
from support.surface import (
    command_lines,
    compare,
    journal_lines,
    module_lines,
    without_docstring,
)


@pytest.mark.parametrize("module", [duetune, duetune.testing], ids=lambda module: module.__name__)
def test_the_names_of_a_public_module_and_their_signatures(module):
    compare(module.__name__, module_lines(module))


@pytest.mark.parametrize("module", [duetune, duetune.testing], ids=lambda module: module.__name__)
def test_every_public_name_says_what_it_is(module):
    assert without_docstring(module) == []


def test_the_commands_and_their_options():
    compare("command-line", command_lines())


def test_the_events_of_the_journal_and_their_fields():
    compare("journal", journal_lines())

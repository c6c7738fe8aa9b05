"""The documentation is true: its examples print what it says, its Python runs.

After a change of what the program prints, write the examples anew with
``DUETUNE_UPDATE_DOCS=1 .venv/bin/pytest -n0 tests/e2e/test_documentation.py``.
"""

from __future__ import annotations

import os
import re

import click
import pytest

from duetune.cli.app import COMMANDS, app
from duetune.cli.json_output import read_document
from duetune.core.job import Job
from support.examples import EXAMPLE, printed
from support.places import ROOT

PAGE = ROOT / "docs" / "reference" / "cli.md"
README = ROOT / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = [
    (page, found)
    for page in (PAGE, README)
    for found in EXAMPLE.finditer(page.read_text(encoding="utf-8"))
]
PYTHON = [
    (page, code)
    for page in (README, *sorted((ROOT / "docs").rglob("*.md")))
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
]


@pytest.mark.parametrize(
    ("page", "example"),
    EXAMPLES,
    ids=[f"{page.name}:{found['arguments'][:50]}" for page, found in EXAMPLES],
)
def test_an_example_prints_what_the_page_says(page, example, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    now = printed(example["arguments"], capsys)
    if os.environ.get("DUETUNE_UPDATE_DOCS"):
        old = f"$ duetune{example['arguments']}\n{example['output']}```"
        new = f"$ duetune{example['arguments']}\n{now}```"
        page.write_text(page.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    else:
        assert now == example["output"], f"write it anew: {__doc__}"


@pytest.mark.parametrize(
    ("page", "code"), PYTHON, ids=[f"{page.name}-{place}" for place, (page, _) in enumerate(PYTHON)]
)
def test_the_python_of_a_page_runs(page, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(page), "exec"), {"__name__": page.stem})  # noqa: S102 - our own pages


def test_the_page_has_every_command_and_option():
    context = click.Context(app)
    for name in COMMANDS:
        assert f"## duetune {name}" in TEXT
        command = app.get_command(context, name)
        options = [each for each in command.params if isinstance(each, click.Option)]
        for option in (flag for parameter in options for flag in parameter.opts):
            assert f"`{option}" in TEXT, f"{option} of {name}"


def test_the_job_file_of_the_page_is_a_job(tmp_path):
    (written,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "job.json").write_text(written)
    assert read_document(str(tmp_path / "job.json"), Job, "job").name == "adapter"

"""The documentation is true: its examples print what it says, its Python runs.

After a change of what the program prints, write the examples anew with
``DUETUNE_UPDATE_DOCS=1 .venv/bin/pytest -n0 tests/e2e/test_documentation.py``.
"""

from __future__ import annotations

import os
import re

import pytest

from duetune.cli.json_output import read_document
from duetune.core.job import Job
from support.command_reference import BLOCK, blocks
from support.examples import EXAMPLE, printed
from support.places import ROOT

PAGE = ROOT / "docs" / "reference" / "cli.md"
README = ROOT / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")
NOW = dict(blocks())
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


def test_the_page_has_the_help_of_every_command():
    text = PAGE.read_text(encoding="utf-8")  # the examples above may have been written anew
    now = BLOCK.sub(
        lambda found: f"<!-- generated: {found['name']} -->\n{NOW[found['name']]}<!-- end -->", text
    )
    if os.environ.get("DUETUNE_UPDATE_DOCS"):
        PAGE.write_text(now, encoding="utf-8")
    else:
        assert now == text, f"write it anew: {__doc__}"
    assert sorted(found["name"] for found in BLOCK.finditer(TEXT)) == sorted(NOW)


def test_the_job_file_of_the_page_is_a_job(tmp_path):
    (written,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "job.json").write_text(written)
    assert read_document(str(tmp_path / "job.json"), Job, "job").name == "adapter"

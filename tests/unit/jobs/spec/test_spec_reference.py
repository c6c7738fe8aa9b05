"""The published page and schema are those of the code.

After a change of the spec, write them anew with
``DUETUNE_UPDATE_DOCS=1 .venv/bin/pytest -n0 tests/unit/jobs/spec/test_spec_reference.py``.
"""

from __future__ import annotations

import dataclasses
import importlib
import os

import msgspec
import pytest

from duetune.core import node_contract
from duetune.interop.export_jobs import to_skypilot
from duetune.interop.export_jobs.script import environment_lines
from duetune.jobs.spec.job_spec import JobSpec, MethodChoice
from duetune.jobs.spec.reference import reference_page, schema_text
from duetune.jobs.spec.training_fields import SCHEDULES, Training
from duetune.jobs.spec.training_names import UNSUPPORTED
from duetune.knowledge.configurations.configuration import Method, Precision
from duetune.training.learning_rate import Schedule
from duetune.training.task import TrainingMethod, TrainingPrecision, TrainingTask
from support.places import ROOT

REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.parametrize(
    ("name", "text"), [("job-spec.md", reference_page()), ("job-spec.schema.json", schema_text())]
)
def test_what_is_published_is_what_the_code_says(name, text):
    path = REFERENCE / name
    if os.environ.get("DUETUNE_UPDATE_DOCS"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, f"write it anew: {__doc__}"


def test_the_page_has_every_field():
    page = reference_page()
    for model in (JobSpec, Training):
        for field in model.model_fields:
            assert f"| `{field}` |" in page


def test_what_can_be_asked_for_can_be_trained():
    known = {field.name for field in msgspec.structs.fields(TrainingTask)}
    # Written in the task as ``method``, as the text of a template, and not at all.
    other = {"load_in_4bit", "chat_template_path", "packing"}
    assert set(Training.model_fields) - known == other
    assert set(SCHEDULES) == set(Schedule)
    assert {str(method) for method in MethodChoice} - {"auto"} == set(TrainingMethod)
    assert set(TrainingMethod) <= set(Method)
    assert set(TrainingPrecision) == set(Precision)


def test_exports_set_what_the_contract_names():
    lines = environment_lines(JobSpec(run="x", deadline="8h"))
    for name in (
        node_contract.JOB_ID,
        node_contract.NODE_ID,
        node_contract.EPOCH,
        node_contract.JOB_DIR,
        node_contract.CHECKPOINT_DIR,
        node_contract.OUTPUT_DIR,
        node_contract.PROGRESS_FILE,
    ):
        assert f"{name}=" in lines
    assert to_skypilot.LEFT == node_contract.LEFT


@pytest.mark.torch
@pytest.mark.parametrize(
    ("library", "name"),
    [("transformers", "TrainingArguments"), ("peft", "LoraConfig"), ("trl", "SFTConfig")],
)
def test_every_argument_of_a_library_is_supported_or_refused_by_name(library, name):
    arguments = getattr(importlib.import_module(library), name)  # slow to import
    names = {field.name for field in dataclasses.fields(arguments)}
    assert names - set(Training.model_fields) - set(UNSUPPORTED) == set()


def test_nothing_is_both_supported_and_refused():
    assert not set(Training.model_fields) & set(UNSUPPORTED)

"""The job spec in Python: what is filled in, what follows from it, what it can be turned into."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duetune.errors import InvalidInput
from duetune.jobs.spec.job_spec import JobSpec, MethodChoice, spec_json_schema
from duetune.jobs.spec.load import load_text
from duetune.jobs.spec.sections import Spot


def job(**fields):
    return JobSpec(**{"model": "Qwen/Qwen3-0.6B", "dataset": "d.jsonl", "deadline": "8h"} | fields)


def own(**fields):
    return JobSpec(**{"run": "python train.py", "deadline": "8h"} | fields)


def refused(make, **fields):
    with pytest.raises(InvalidInput) as error:
        make(**fields)
    return str(error.value)


class TestDefaults:
    def test_three_fields_are_enough(self):
        spec = job()
        assert spec.deadline == timedelta(hours=8)
        assert (spec.method, spec.policy, spec.priority) == (MethodChoice.AUTO, "auto", 0)
        assert spec.resources.spot is Spot.AUTO
        assert spec.gpus == (None, 1, None)
        assert spec.training.given == {}
        assert (spec.checkpoint.every, spec.checkpoint.keep) == ("auto", 2)

    def test_an_own_command_needs_no_model(self):
        spec = own()
        assert (spec.model, spec.dataset, spec.name) == (None, None, "job")

    @pytest.mark.parametrize(
        ("model", "dataset", "name"),
        [
            ("Qwen/Qwen3-0.6B", "trl-lib/Capybara", "qwen3-0.6b-capybara"),
            ("./models/Llama 3.1/", "/data/My Train.jsonl", "llama-3.1-my-train"),
            ("gpt2", "imdb", "gpt2-imdb"),
            ("a" * 60, "b" * 60, "a" * 60 + "-bb"),
            ("...", "___x", "x"),
        ],
    )
    def test_the_name_comes_from_model_and_dataset(self, model, dataset, name):
        assert job(model=model, dataset=dataset).name == name

    def test_a_given_name_is_kept(self):
        assert job(name="My.job_1").name == "My.job_1"

    def test_a_spec_cannot_be_changed(self):
        with pytest.raises(Exception, match="frozen"):
            job().name = "x"

    def test_json_of_the_wire_is_read_as_well(self):
        spec = JobSpec.model_validate_json('{"model": "a/b", "dataset": "c", "deadline": "8h"}')
        assert spec == JobSpec(model="a/b", dataset="c", deadline=timedelta(hours=8))


class TestValues:
    @pytest.mark.parametrize(
        ("given", "spot"),
        [("auto", Spot.AUTO), (True, Spot.ONLY), ("only", Spot.ONLY), (False, Spot.NEVER),
         ("never", Spot.NEVER), (Spot.ONLY, Spot.ONLY)],
    )  # fmt: skip
    def test_spot(self, given, spot):
        assert job(resources={"spot": given}).resources.spot is spot

    def test_gpus(self):
        assert job(resources={"accelerators": "H100:1..8"}).gpus == ("H100", 1, 8)
        assert job(resources={"accelerators": {"L4": 2}}).gpus == ("L4", 2, 2)

    def test_modules_are_a_word_or_a_list(self):
        assert job(training={"lora_target_modules": "all-linear"}).training.given == {
            "lora_target_modules": "all-linear"
        }
        spec = job(training={"lora_target_modules": ["q_proj", "v_proj"]})
        assert spec.training.lora_target_modules == ("q_proj", "v_proj")

    def test_whole_numbers_will_do_for_numbers(self):
        assert job(training={"num_train_epochs": 3}).training.num_train_epochs == 3.0

    def test_checkpoints(self):
        spec = job(checkpoint={"every": "10m", "keep": 5, "dir": "ck"})
        assert spec.checkpoint.every == timedelta(minutes=10)
        assert (spec.checkpoint.keep, spec.checkpoint.dir) == (5, "ck")


class TestDeadline:
    def test_a_duration_counts_from_submission(self):
        assert job().deadline_at(1000.0) == 1000.0 + 8 * 3600
        assert job().deadline_s(1000.0) == 8 * 3600

    def test_a_moment_is_a_moment(self):
        spec = job(deadline=datetime(2026, 1, 1, 12, tzinfo=UTC))
        now = datetime(2026, 1, 1, 10, tzinfo=UTC).timestamp()
        assert spec.deadline_s(now) == 2 * 3600

    def test_a_moment_that_has_passed_is_refused(self):
        spec = job(deadline="2026-01-01T12:00Z")
        now = datetime(2026, 1, 1, 12, 30, tzinfo=UTC).timestamp()
        with pytest.raises(InvalidInput) as error:
            spec.deadline_s(now)
        assert str(error.value) == (
            "deadline: '2026-01-01T12:00:00+00:00' is not allowed; expected a moment in the "
            "future; it is now 2026-01-01 12:30+00:00"
        )

    def test_max_duration_in_seconds(self):
        assert job(max_duration="90m").max_duration_s == 5400
        assert job().max_duration_s is None


class TestEnvironment:
    def test_null_is_taken_from_the_submitter(self):
        spec = own(envs={"A": "1", "B": None})
        assert spec.environment({"B": "2", "C": "3"}) == {"A": "1", "B": "2"}

    def test_null_that_is_not_there_is_refused(self):
        with pytest.raises(InvalidInput) as error:
            own(envs={"B": None}).environment({})
        assert str(error.value) == (
            "envs.B is required; expected a value, or $B set in the environment where you submit"
        )

    def test_secrets_print_as_stars(self):
        found = own(secrets=["TOKEN"]).secret_values({"TOKEN": "hunter2"})
        assert "hunter2" not in repr(found)
        assert found["TOKEN"].get_secret_value() == "hunter2"

    def test_a_secret_that_is_not_there_is_refused(self):
        with pytest.raises(InvalidInput) as error:
            own(secrets=["TOKEN"]).secret_values({})
        assert str(error.value) == (
            "secrets: 'TOKEN' is not allowed; expected names of variables that are set; $TOKEN is "
            "not set"
        )

    def test_a_name_is_a_variable_or_a_secret(self):
        assert refused(own, envs={"A": "1"}, secrets=["A"]) == (
            "secrets: ['A'] is not allowed; expected names that are not in envs; A is in both"
        )


class TestResolved:
    def test_paths_are_relative_to_the_folder(self, tmp_path):
        (tmp_path / "model").mkdir()
        spec = job(
            model="model",
            dataset="data/../d.jsonl",
            training={"eval_dataset": "e.jsonl", "seed": 3},
            checkpoint={"dir": "ck", "keep": 4},
        ).resolved(tmp_path)
        assert spec.model == str(tmp_path / "model")
        assert spec.dataset == str(tmp_path / "d.jsonl")
        assert spec.training.given == {"eval_dataset": str(tmp_path / "e.jsonl"), "seed": 3}
        assert (spec.checkpoint.dir, spec.checkpoint.keep) == (str(tmp_path / "ck"), 4)
        assert spec.workdir is None

    def test_names_on_the_hub_stay(self, tmp_path):
        assert job(dataset="a/b").resolved(tmp_path).model == "Qwen/Qwen3-0.6B"

    def test_an_own_command_starts_in_the_folder(self, tmp_path):
        assert own().resolved(tmp_path).workdir == str(tmp_path)
        assert own(workdir="src").resolved(tmp_path).workdir == str(tmp_path / "src")

    def test_the_name_stays_when_paths_become_long(self, tmp_path):
        spec = job(dataset="../../d.jsonl")
        assert spec.resolved(tmp_path).name == spec.name

    def test_doing_it_twice_changes_nothing(self, tmp_path):
        once = own(workdir="src", checkpoint={"dir": "ck"}).resolved(tmp_path)
        assert once.resolved(Path("/elsewhere")) == once


class TestForms:
    def test_a_document_has_what_was_said(self):
        assert job().document() == {
            "model": "Qwen/Qwen3-0.6B",
            "dataset": "d.jsonl",
            "deadline": "8h",
        }

    def test_a_document_is_json_and_a_spec_again(self):
        spec = own(
            name="x",
            deadline="2026-11-20T18:00Z",
            max_duration="1d",
            budget="$20",
            value=3,
            max_price=1.5,
            resources={"accelerators": "H100:1..8", "spot": True},
            training={"max_steps": 10},
            checkpoint={"every": "10m"},
            workdir=".",
            setup="pip install x",
            envs={"A": None, "B": 2},
            secrets=["C"],
            tags=["t"],
            priority=-3,
            policy="ahap:5",
        )
        document = json.loads(json.dumps(spec.document()))
        assert JobSpec.model_validate(document) == spec
        assert load_text(spec.to_yaml()) == spec

    def test_amended_checks_again(self):
        assert job().amended(deadline="2h", budget=5).budget == 5.0
        assert refused(job().amended, budget=-1) == (
            "budget: -1 is not allowed; expected dollars above zero, such as 20 or $20"
        )

    def test_amended_does_not_keep_a_name_that_followed_from_the_model(self):
        assert job().amended(model="gpt2").name == "gpt2-d"
        assert job(name="mine").amended(model="gpt2").name == "mine"


class TestSchema:
    def test_it_names_every_field_and_nothing_else(self):
        schema = spec_json_schema()
        assert list(schema["properties"]) == list(JobSpec.model_fields)
        assert schema["additionalProperties"] is False
        assert schema["required"] == ["deadline"]
        assert schema["anyOf"] == [{"required": ["model", "dataset"]}, {"required": ["run"]}]

    def test_every_field_is_described(self):
        schema = spec_json_schema()
        models = [schema, *schema["$defs"].values()]
        for model in models:
            for name, field in model["properties"].items():
                assert "Expected: " in field["description"], name

    def test_it_has_no_leftovers_of_python(self):
        text = json.dumps(spec_json_schema())
        assert "pydantic" not in text
        assert "datetime" not in text

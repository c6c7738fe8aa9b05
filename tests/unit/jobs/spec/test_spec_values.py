"""GPUs, dollars, names and places, as they may stand in a spec."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_core import PydanticCustomError

from duetune.errors import InvalidInput
from duetune.jobs.spec import values, variables
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.spec.values import Accelerators, parse_accelerators
from duetune.jobs.spec.variables import parse_envs, parse_secrets, parse_tags


def allowed_of(parse, value):
    with pytest.raises(PydanticCustomError) as refused:
        parse(value)
    return refused.value.context["allowed"]


class TestAccelerators:
    @pytest.mark.parametrize(
        ("given", "expected", "written"),
        [
            ("auto", Accelerators(), "auto"),
            ("H100", Accelerators("H100", 1, None), "H100"),
            ("h100", Accelerators("H100", 1, None), "H100"),
            ("H100:4", Accelerators("H100", 4, 4), "H100:4"),
            ("H100 : 4", Accelerators("H100", 4, 4), "H100:4"),
            ("H100:1..8", Accelerators("H100", 1, 8), "H100:1..8"),
            ("H100:2..", Accelerators("H100", 2, None), "H100:2.."),
            ("H100:4..4", Accelerators("H100", 4, 4), "H100:4"),
            ("a100-80gb", Accelerators("A100-80GB", 1, None), "A100-80GB"),
            ("MyChip", Accelerators("MyChip", 1, None), "MyChip"),
            ("auto:1..4", Accelerators(None, 1, 4), "auto:1..4"),
            ({"H100": 4}, Accelerators("H100", 4, 4), "H100:4"),
            ({"H100": "1..8"}, Accelerators("H100", 1, 8), "H100:1..8"),
            (Accelerators("L4", 2, 3), Accelerators("L4", 2, 3), "L4:2..3"),
        ],
    )
    def test_are_read_in_every_form(self, given, expected, written):
        assert parse_accelerators(given) == expected
        assert str(expected) == written
        assert parse_accelerators(written) == expected

    @pytest.mark.parametrize(
        "given",
        [
            "", " ", ":4", "H100:", "H100:0", "H100:-1", "H100:4..2", "H100:0..2", "H100:1.5",
            "H100:many", "H100:1025", "H100:1..1025", "4", "H100:1...8", "H 100", "H100;rm", 4,
            None, True, {}, {"H100": None}, {"H100": 1.5}, {"H100": True}, {"": 4}, {1: 4}, [],
            ["H100"],
        ],
    )  # fmt: skip
    def test_anything_else_is_refused(self, given):
        assert allowed_of(parse_accelerators, given) == values.ACCELERATORS

    @pytest.mark.parametrize("given", [["H100", "A100"], {"H100": 4, "A100": 8}])
    def test_two_kinds_are_refused(self, given):
        assert allowed_of(parse_accelerators, given) == (
            f"{values.ACCELERATORS}; only one kind, because all GPUs of a job must be the same"
        )


class TestDollars:
    @pytest.mark.parametrize(
        ("given", "dollars"),
        [(20, 20.0), (0.5, 0.5), ("$20", 20.0), ("$ 20.50", 20.5), ("$1,234.50", 1234.5), ("7", 7)],
    )
    def test_are_read_with_and_without_a_sign(self, given, dollars):
        assert job(budget=given).budget == dollars

    @pytest.mark.parametrize(
        "given",
        ["", "$", "$-5", "-5", "20 EUR", "20€", "$1,23", "1e3", "$nan", True, [], float("nan"),
         float("inf"), -1, 0, 10**400],
    )  # fmt: skip
    def test_anything_else_is_refused(self, given):
        with pytest.raises(InvalidInput) as refused:
            job(budget=given)
        assert refused.value.field == "budget"
        assert refused.value.allowed == "dollars above zero, such as 20 or $20"

    def test_a_value_may_be_nothing_but_a_budget_may_not(self):
        assert job(value=0).value == 0


def job(**fields):
    return JobSpec(model="m", dataset="d", deadline="8h", **fields)


class TestEnvironment:
    def test_values_become_text(self):
        found = parse_envs({"A": 1, "B": 1.5, "C": True, "D": "x", "E": None, "_F": ""})
        assert found == {"A": "1", "B": "1.5", "C": "true", "D": "x", "E": None, "_F": ""}

    @pytest.mark.parametrize("given", [[], "A=1", 1, {f"A{n}": "" for n in range(1001)}])
    def test_only_a_mapping_will_do(self, given):
        assert allowed_of(parse_envs, given) == variables.ENVS

    @pytest.mark.parametrize(
        "name", ["", "1A", "A-B", "A B", "A=B", "é", "DUETUNE_JOB_ID", "duetune_x", "A\n", 1, None]
    )
    def test_names_that_no_shell_takes_are_refused(self, name):
        assert allowed_of(parse_envs, {name: "x"}) == (
            f"{variables.ENVS}; the name {str(name)!r} cannot be used"
        )

    @pytest.mark.parametrize("value", [[], {}, "a\0b", float("nan"), "x" * 100_001])
    def test_values_that_are_no_text_are_refused(self, value):
        assert (
            allowed_of(parse_envs, {"A": value})
            == f"{variables.ENVS}; the value of A is neither text nor null"
        )

    @pytest.mark.parametrize("given", [["A", "B"], ("A", "B"), {"A": None, "B": None}])
    def test_secrets_are_names(self, given):
        assert parse_secrets(given) == ("A", "B")

    def test_a_secret_with_its_value_is_refused_without_repeating_it(self):
        found = allowed_of(parse_secrets, {"TOKEN": "hunter2"})
        assert found == f"{variables.SECRETS}; remove the value of TOKEN from the file"

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ("hunter2", ""),
            (["A", "hunter 2"], "; entry 2 is not a variable name"),
            (["A", "A"], "; each name only once"),
            ([1], "; entry 1 is not a variable name"),
            ({"hunter 2": None}, "; entry 1 is not a variable name"),
        ],
    )
    def test_what_is_no_name_of_a_secret_is_not_repeated(self, given, why):
        assert allowed_of(parse_secrets, given) == variables.SECRETS + why

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (["a", "b"], {"a": "", "b": ""}),
            ({"team": "research", "run": 3}, {"team": "research", "run": "3"}),
            ({"a": None}, {"a": ""}),
            ([], {}),
        ],
    )
    def test_tags_are_a_mapping_or_a_list(self, given, expected):
        assert parse_tags(given) == expected

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ("a", ""),
            ([[]], ""),
            (["a", "a"], "; each tag only once"),
            (["a b"], "; the tag 'a b' cannot be used"),
            ({"a": []}, "; the value of a must be printable, at most 255 characters"),
            ({"a": "x\ny"}, "; the value of a must be printable, at most 255 characters"),
            ({"a": "x" * 256}, "; the value of a must be printable, at most 255 characters"),
        ],
    )
    def test_other_tags_are_refused(self, given, why):
        assert allowed_of(parse_tags, given) == variables.TAGS + why


class TestPlaces:
    @pytest.mark.parametrize(
        "place",
        ["./model", "../m", "/m", "~/m", ".", "data.jsonl", "data/train.JSONL", "a/b/c", "a b",
         "x.csv", "owner//name", "a..b/c"],
    )  # fmt: skip
    def test_paths_are_known_by_their_look(self, place):
        assert values.is_path(place)

    @pytest.mark.parametrize("place", ["gpt2", "Qwen/Qwen3-0.6B", "meta-llama/Llama-3.1-8B", "a_b"])
    def test_what_could_be_a_name_on_the_hub_is_none(self, place):
        assert not values.is_path(place)

    def test_a_folder_of_that_name_goes_before_the_hub(self, tmp_path):
        (tmp_path / "owner" / "name").mkdir(parents=True)
        assert values.resolved_place("owner/name", tmp_path) == str(tmp_path / "owner" / "name")
        assert values.resolved_place("other/name", tmp_path) == "other/name"

    def test_paths_become_absolute(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", "/home/me")
        assert values.resolved_place("./x/../d.jsonl", tmp_path) == str(tmp_path / "d.jsonl")
        assert values.resolved_place("/d.jsonl", tmp_path) == "/d.jsonl"
        assert values.resolved_place("~/d.jsonl", tmp_path) == "/home/me/d.jsonl"

    @pytest.mark.parametrize("given", ["", " ", 1, None, [], "a\nb", "x" * 5000])
    def test_what_is_no_place_is_refused(self, given):
        assert allowed_of(values.parse_dataset, given) == values.DATASET

    @pytest.mark.parametrize("given", ["s3://bucket/x", "https://x/y.jsonl", "hf://a/b"])
    def test_addresses_are_refused(self, given):
        expected = f"{values.MODEL}; web addresses are not supported, so download it first"
        assert allowed_of(values.parse_model, given) == expected

    def test_spaces_around_it_are_refused(self):
        expected = f"{values.PATH}; remove the spaces around it"
        assert allowed_of(values.parse_path, " x") == expected

    def test_a_path_object_is_text(self):
        assert values.parse_dataset(Path("/data/x.jsonl")) == "/data/x.jsonl"

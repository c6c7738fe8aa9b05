"""YAML as it is written by hand, and as it is written to break things."""

from __future__ import annotations

import math

import pytest
import yaml

from duetune.errors import InvalidInput
from duetune.jobs.spec.yaml_document import (
    LARGEST,
    parse_document,
    read_document,
    scalar,
    written_yaml,
)


def refused(text, source="job.yaml"):
    with pytest.raises(InvalidInput) as error:
        parse_document(text, source)
    return str(error.value)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("on", "on"), ("off", "off"), ("yes", "yes"), ("no", "no"), ("NO", "NO"), ("y", "y"),
        ("1:30", "1:30"), ("190:20:30", "190:20:30"), ("0o17", 15), ("0x1F", 31), ("017", 17),
        ("1_000", "1_000"), ("2e-4", 2e-4), ("1e5", 1e5), ("1.", 1.0), (".5", 0.5), ("-3", -3),
        ("+3", 3), ("1.5", 1.5), ("true", True), ("False", False), ("null", None), ("~", None),
        ("", None), ("2026-11-20", "2026-11-20"), ("2026-11-20 18:00:00", "2026-11-20 18:00:00"),
        (".inf", math.inf), ("-.Inf", -math.inf), ("0b11", "0b11"), ("8h", "8h"), ("=", "="),
        ("9" * 41, "9" * 41),
    ],
)  # fmt: skip
def test_plain_words_are_what_yaml_1_2_says(word, value):
    assert scalar(word) == value
    assert type(scalar(word)) is type(value)


def test_not_a_number_is_one_of_the_words():
    assert math.isnan(scalar(".nan"))


def test_quoted_words_are_text():
    found = parse_document("a: '1'\nb: \"true\"\nc: |\n  8\nd: >-\n  null\n", "x").fields
    assert found == {"a": "1", "b": "true", "c": "8\n", "d": "null"}


def test_keys_are_text_whatever_they_look_like():
    assert parse_document("on: 1\n2: x\nnull: y\n", "x").fields == {"on": 1, "2": "x", "null": "y"}


def test_lines_are_known_by_path():
    document = parse_document("a: 1\nb:\n  c: 2\n  d:\n    e: 3\n", "job.yaml")
    assert document.lines == {
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 3,
        ("b", "d"): 4,
        ("b", "d", "e"): 5,
    }
    assert document.where(("b", "d", "e", "f")) == "job.yaml:5 "
    assert document.where(("z",)) == "job.yaml "


def test_anchors_and_merges_work():
    text = "base: &b {x: 1, y: 2}\nother:\n  <<: *b\n  y: 3\nboth:\n  <<: [*b, {z: 4, x: 9}]\n"
    fields = parse_document(text, "x").fields
    assert fields["other"] == {"x": 1, "y": 3}
    assert fields["both"] == {"x": 1, "y": 2, "z": 4}


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "job.yaml: 'an empty file' is not allowed; expected a spec: a mapping of fields"),
        ("# only a comment\n",
         "job.yaml: 'an empty file' is not allowed; expected a spec: a mapping of fields"),
        ("---\n", "job.yaml: 'an empty file' is not allowed; expected a spec: a mapping of fields"),
        ("~\n", "job.yaml: 'an empty file' is not allowed; expected a spec: a mapping of fields"),
        ("- a\n- b\n",
         ("job.yaml: 'a list' is not allowed; expected a spec: a mapping of fields such as "
         "'name: x'")),
        ("just words\n",
         ("job.yaml: 'just words' is not allowed; expected a spec: a mapping of fields such as "
         "'name: x'")),
        ("a: 1\n---\nb: 2\n",
         "job.yaml:3: 'a second document (---)' is not allowed; expected one document per file"),
        ("a: 1\nb: 2\na: 3\n",
         "job.yaml:3 a: 'a' is not allowed; expected each field only once; it is also in line 1"),
        ("x:\n  a: 1\n  a: 1\n",
         "job.yaml:3 x a: 'a' is not allowed; expected each field only once; it is also in line 2"),
        ("a:\n\tb: 1\n",
         "job.yaml:2: 'b: 1' is not allowed; expected YAML (tabs cannot indent; use spaces)"),
        ("a: [1, 2\n",
         ("job.yaml:2: '' is not allowed; expected YAML (expected ',' or ']', but got "
         "'<stream end>')")),
        ("a: 'x\n",
         "job.yaml:2: '' is not allowed; expected YAML (found unexpected end of stream)"),
        ("a: b: c\n",
         ("job.yaml:1: 'a: b: c' is not allowed; expected YAML (mapping values are not allowed "
         "here)")),
        ("a: *nothing\n",
         ("job.yaml:1: 'a: *nothing' is not allowed; expected YAML (found undefined alias "
         "'nothing')")),
        ("a: !!python/object:os.system x\n",
         "job.yaml:1 a: '!!python/object:os.system' is not allowed; expected no YAML tag"),
        ("a: !mine x\n", "job.yaml:1 a: '!mine' is not allowed; expected no YAML tag"),
        ("a: !!int '3'\n", "job.yaml:1 a: '!!int' is not allowed; expected no YAML tag"),
        ("[a, b]: c\n",
         ("job.yaml:1: 'a list or mapping as a key' is not allowed; expected a plain word as the "
          "key")),
        ("a: &a [*a]\n",
         ("job.yaml:1: 'too many values' is not allowed; expected at most 50000 values, 60 levels "
         "deep")),
        (BOMB,
         ("job.yaml:1: 'too many values' is not allowed; expected at most 50000 values, 60 levels "
         "deep")),
        ("a: {<<: 3}\n",
         "job.yaml:1 a: '<<' is not allowed; expected a mapping, or an alias of one, after <<"),
        ("a: &a {<<: *a}\n",
         ("job.yaml:1: 'too many values' is not allowed; expected at most 50000 values, 60 levels "
         "deep")),
        ("a: " + "[" * 5000,
         "job.yaml: 'too deep nesting' is not allowed; expected at most 60 levels"),
        ("a: " + "[" * 100 + "]" * 100,
         ("job.yaml:1: 'too many values' is not allowed; expected at most 50000 values, 60 levels "
         "deep")),
        ("a: \0\n",
         ("job.yaml: 'a special character' is not allowed; expected YAML (unacceptable character "
         "#x0000: special characters are not allowed)")),
        ("a: " + "x" * LARGEST,
         (f"job.yaml: '{LARGEST + 3} characters' is not allowed; expected at most {LARGEST} "
         "characters")),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_place(text, message):
    assert refused(text) == message


class TestFiles:
    def read(self, path):
        with pytest.raises(InvalidInput) as error:
            read_document(path)
        return str(error.value)

    def test_one_that_does_not_exist(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert self.read("no.yaml") == (
            "spec file: 'no.yaml' is not allowed; expected a readable file "
            "(No such file or directory)"
        )

    def test_a_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert self.read(".") == (
            "spec file: '.' is not allowed; expected a readable file (Is a directory)"
        )

    def test_a_name_no_file_can_have(self):
        assert self.read("a\0b") == (
            "spec file: 'a\\x00b' is not allowed; expected a readable file (embedded null byte)"
        )

    def test_one_that_is_not_utf_8(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "j.yaml").write_bytes(b"name: \xff\n")
        assert self.read("j.yaml") == (
            "spec file: 'j.yaml' is not allowed; expected text in UTF-8 (byte 6 is not UTF-8)"
        )

    def test_a_huge_one(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "j.yaml").write_bytes(b"#" * (LARGEST + 1))
        assert self.read("j.yaml") == (
            "spec file: 'j.yaml' is not allowed; expected a file of at most 256 KiB"
        )

    def test_a_byte_order_mark_is_no_harm(self, tmp_path):
        (tmp_path / "j.yaml").write_bytes("\ufeffa: 1\n".encode())
        assert read_document(tmp_path / "j.yaml").fields == {"a": 1}

    def test_a_text_is_told_from_a_path(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "odd: name.yaml").write_text("a: 2\n")
        assert read_document("a: 1").fields == {"a": 1}
        assert read_document("{a: 1}").fields == {"a": 1}
        assert read_document("odd: name.yaml").fields == {"a": 2}


@pytest.mark.parametrize(
    "text",
    ["on", "yes", "1:30", "2e-4", "1e5", "017", "0o7", "null", "~", "", "2026-11-20", "8h", " x ",
     "a\nb", "a\n", "a \nb\n", "tab\there", "#no comment", "a: b", "é", "'", '"', "\\", "- x", "=",
     "<<", "\u2028", "x\n\n", "\n", "1_000", ".5", "!x", "%", "@", "`", "\x85", "\x1b",
     "\U0001f600", "a\x85\nb", "\ufeff"],
)  # fmt: skip
def test_written_text_is_text_again_for_us_and_for_yaml_1_1(text):
    written = written_yaml({"a": text, "b": {"c": [text]}})
    expected = {"a": text, "b": {"c": [text]}}
    assert parse_document(written, "x").fields == expected
    assert yaml.safe_load(written) == expected

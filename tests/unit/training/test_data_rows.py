"""What a dataset may be, and that what it may not be is refused with its place."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from duetune.errors import InvalidInput
from duetune.training.dataset_rows import RowKind, check_dataset, rows_of

TEXT = [{"text": "one"}, {"text": "two and more"}]
PAIRS = [{"prompt": "2 + 2 =", "completion": " 4"}, {"prompt": "", "completion": "hm"}]
CHAT = [
    {
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "good day"},
        ]
    }
]


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("rows", "kind", "characters"),
    [
        (TEXT, RowKind.TEXT, 15),
        (PAIRS, RowKind.COMPLETION, 11),
        (CHAT, RowKind.CONVERSATION, 13),
    ],
)
def test_every_kind_of_row_is_known(tmp_path, rows, kind, characters):
    summary = check_dataset(lines(tmp_path / "rows.jsonl", rows))
    assert (summary.rows, summary.kind, summary.characters) == (len(rows), kind, characters)
    assert summary.complete


def test_the_same_rows_are_read_from_every_format(tmp_path):
    polars = pytest.importorskip("polars")
    lines(tmp_path / "rows.jsonl", PAIRS)
    (tmp_path / "rows.json").write_text(json.dumps(PAIRS), encoding="utf-8")
    (tmp_path / "rows.csv").write_text('prompt,completion\n2 + 2 =," 4"\n"",hm\n', encoding="utf-8")
    polars.DataFrame(PAIRS).write_parquet(tmp_path / "rows.parquet")
    expected = list(rows_of(tmp_path / "rows.jsonl"))
    for name in ("rows.json", "rows.csv", "rows.parquet"):
        assert list(rows_of(tmp_path / name)) == expected, name


def test_a_folder_by_save_to_disk_is_read_and_its_training_split_taken(tmp_path):
    polars = pytest.importorskip("polars")
    for split, rows in (("train", CHAT), ("test", TEXT)):
        folder = tmp_path / "saved" / split
        folder.mkdir(parents=True)
        polars.DataFrame(rows).write_ipc_stream(folder / "data-00000-of-00001.arrow")
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": split}
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
        (folder / "dataset_info.json").write_text("{}", encoding="utf-8")
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert check_dataset(tmp_path / "saved").kind is RowKind.CONVERSATION
    assert check_dataset(tmp_path / "saved" / "test").kind is RowKind.TEXT


def test_a_folder_of_files_is_read_in_order_and_without_its_test_files(tmp_path):
    lines(tmp_path / "train-2.jsonl", TEXT[1:])
    lines(tmp_path / "train-1.jsonl", TEXT[:1])
    lines(tmp_path / "test.jsonl", [{"text": "never"}])
    (tmp_path / "README.md").write_text("not data")
    assert [row.text for row in rows_of(tmp_path)] == ["one", "two and more"]


@pytest.mark.parametrize(
    ("content", "place", "words"),
    [
        ('{"text": "good"}\n{"text": \n', ":2:", "one JSON object per line"),
        ('{"text": "good"}\n\n{"txt": "bad"}\n', ":3:", "'prompt' and 'completion'"),
        ('{"text": 7}\n', ":1:", "Expected `str"),
        ('{"text": "  "}\n', ":1:", "not empty"),
        ('["text"]\n', ":1:", "'messages'"),
        ('{"prompt": "p"}\n', ":1:", "'prompt' and 'completion'"),
        ('{"prompt": "p", "completion": ""}\n', ":1:", "'completion' that is not empty"),
        ('{"messages": [{"role": "user", "content": "hi"}]}\n', ":1:", "message of the assistant"),
        ('{"messages": [{"role": "user"}]}\n', ":1:", "content"),
        ('{"text": "a"}\n{"prompt": "p", "completion": "c"}\n', ":2:", "as in the first row"),
        ('{"text": "\udcff"}\n', ":1:", "one JSON object per line"),
        ("", "dataset", "at least one row"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path, content, place, words):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(InvalidInput) as refused:
        check_dataset(path)
    assert place in str(refused.value)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_bad_row_of_a_table_is_refused_with_its_line(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("prompt,completion\na,b\nonly one\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"rows\.csv:3: .* expected 2 columns"):
        check_dataset(path)


@pytest.mark.parametrize("name", ["rows.txt", "empty"])
def test_what_is_no_dataset_is_refused_with_what_is_one(tmp_path, name):
    (tmp_path / "rows.txt").write_text("text")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="save_to_disk"):
        check_dataset(tmp_path / name)


def test_only_the_first_rows_are_looked_at_with_a_limit(tmp_path):
    path = lines(tmp_path / "rows.jsonl", [*TEXT, {"text": "three"}])
    with path.open("a") as file:
        file.write("broken\n")
    summary = check_dataset(path, limit=2)
    assert (summary.rows, summary.complete) == (2, False)
    with pytest.raises(InvalidInput, match=":4:"):
        check_dataset(path)


def test_checking_needs_neither_torch_nor_transformers():
    code = (
        "import sys, duetune.training.dataset_rows, duetune.training.task;"
        "print(sorted({'torch', 'transformers', 'peft', 'polars'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_rows_of_alpaca_and_sharegpt_are_conversations(tmp_path):
    alpaca = [{"instruction": "Add", "input": "1 2", "output": "3", "system": "Be brief"}]
    (row,) = rows_of(lines(tmp_path / "alpaca.jsonl", alpaca))
    assert [(turn.role, turn.content) for turn in row.messages] == [
        ("system", "Be brief"),
        ("user", "Add\n1 2"),
        ("assistant", "3"),
    ]
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    (row,) = rows_of(lines(tmp_path / "sharegpt.jsonl", [{"conversations": turns}]))
    assert [(turn.role, turn.content) for turn in row.messages] == [
        ("user", "Hi"),
        ("assistant", "Hello"),
    ]

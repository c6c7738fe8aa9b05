"""Rows of conversations: tools, prompts of messages, templates by name, and what counts."""

from __future__ import annotations

import json

import pytest

from duetune.errors import InvalidInput
from duetune.training.chat_templates import TEMPLATES
from duetune.training.dataset_rows import DataRow, Message, RowKind, check_dataset, rows_of
from duetune.training.task import TrainingTask
from duetune.training.tokenizer_file import FileTokenizer, file_tokenizer, read_template
from duetune.training.tokens import EVERY_RULE, LossRules, tokenized, tokenized_dataset
from support.model_folder import model_folder, rows_file

TEMPLATE = (
    "{% if tools %}[tools]{{ tools | length }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for call in m.tool_calls or [] %}"
    "<{{ call.function.name }} {{ call.function.arguments.city }}>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {}}}
CALL = {"function": {"name": "weather", "arguments": '{"city": "Rome"}'}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("models") / "byte")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return FileTokenizer(folder, TEMPLATE)


def texts(row, tokenizer, rules=EVERY_RULE):
    """What is written, and what of it counts."""
    ids, counts = tokenized([row], tokenizer, 10_000, rules).row(0)
    back = {place: word for word, place in tokenizer._backend.get_vocab().items()}

    def written(chosen):
        return "".join(back[int(token)] for token in chosen).replace("Ġ", " ").replace("Ċ", "\n")

    return written(ids), written(ids[counts])


def only_row(tmp_path, content, **options):
    (row,) = rows_of(rows_file(tmp_path / "rows.jsonl", [content]), **options)
    return row


def test_tools_and_calls_reach_the_template(tmp_path, tokenizer):
    row = only_row(
        tmp_path,
        {
            "messages": [
                {"role": "user", "content": "Sun?"},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "name": "weather", "content": "yes"},
                {"role": "assistant", "content": "Sunny."},
            ],
            "tools": [TOOL],
        },
    )
    whole, counts = texts(row, tokenizer)
    assert whole == "[tools]1[user]Sun?[assistant]<weather Rome>[tool]yes[assistant]Sunny."
    assert counts == "<weather Rome>Sunny."


def test_calls_of_sharegpt_are_calls_and_tools_may_be_text(tmp_path, tokenizer):
    turns = [
        {"from": "human", "value": "Sun?"},
        {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Rome"}}'},
        {"from": "observation", "value": "yes"},
        {"from": "gpt", "value": "Sunny."},
    ]
    row = only_row(tmp_path, {"conversations": turns, "tools": json.dumps([TOOL])})
    whole, _ = texts(row, tokenizer)
    assert whole == "[tools]1[user]Sun?[assistant]<weather Rome>[tool]yes[assistant]Sunny."


def test_a_prompt_may_be_messages(tmp_path, tokenizer, folder):
    content = {
        "prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "completion": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}],
    }
    row = only_row(tmp_path, content)
    assert row.kind is RowKind.ANSWER
    with pytest.raises(InvalidInput, match="at the end"):
        # This template asks for an answer after a prompt, and the completion begins with a user.
        texts(row, tokenizer)
    content["completion"] = content["completion"][1:]
    row = only_row(tmp_path, content)
    assert (
        texts(row, FileTokenizer(folder, TEMPLATE.replace("[assistant]{% endif", "{% endif")))[1]
        == "[assistant]d"
    )
    assert texts(row, FileTokenizer(folder))[1] == "d</s>"
    with pytest.raises(InvalidInput, match="both be texts or messages"):
        only_row(tmp_path, {"prompt": "a", "completion": content["completion"]})


def test_rows_of_alpaca_have_their_usual_text_without_a_template(tmp_path, tokenizer, folder):
    row = only_row(tmp_path, {"instruction": "Add", "input": "1 2", "output": "3"})
    assert texts(row, tokenizer)[0] == "[user]Add\n1 2[assistant]3"
    whole, counts = texts(row, FileTokenizer(folder))
    assert whole.startswith("Below is an instruction that describes a task, paired with an input")
    assert whole.endswith("\n\n### Instruction:\nAdd\n\n### Input:\n1 2\n\n### Response:\n3</s>")
    assert counts == "3</s>"
    bare = only_row(tmp_path, {"instruction": "Go", "input": "", "output": "3"})
    assert "### Input" not in texts(bare, FileTokenizer(folder))[0]


def test_more_counts_where_it_is_asked_for(tokenizer):
    talk = DataRow(messages=(Message("user", "so?"), Message("assistant", "yes")))
    pair = DataRow(prompt="so?", completion="yes")
    everything = LossRules(assistant_only_loss=False, completion_only_loss=False)
    assert texts(talk, tokenizer, everything)[1] == "[user]so?[assistant]yes"
    assert texts(pair, tokenizer, everything)[1] == "so?yes</s>"
    assert texts(talk, tokenizer, LossRules(completion_only_loss=False))[1] == "yes"
    assert texts(pair, tokenizer, LossRules(assistant_only_loss=False))[1] == "yes</s>"
    given = TrainingTask(model="", dataset="")
    assert LossRules.of(given) == LossRules()


def test_texts_may_be_in_another_column(tmp_path):
    path = rows_file(tmp_path / "rows.jsonl", [{"body": "one", "text": "no"}])
    assert [row.text for row in rows_of(path, "body")] == ["one"]
    assert check_dataset(path, text_field="body").characters == 3


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_named_template_writes_answers_at_the_end(name, folder):
    talk = DataRow(
        messages=(
            Message("system", "Be brief."),
            Message("user", "so?"),
            Message("assistant", "yes"),
            Message("user", "why?"),
            Message("assistant", "because"),
        )
    )
    task = TrainingTask(model="", dataset="", chat_template=name)
    whole, counts = texts(talk, file_tokenizer(folder, task))
    assert all(word in whole for word in ("Be brief.", "so?", "why?"))
    assert "yes" in counts
    assert "because" in counts
    assert not any(word in counts for word in ("brief", "so?", "why?"))


def test_templates_are_read_from_files_and_folders(tmp_path):
    (tmp_path / "one.jinja").write_text("{{ messages }}")
    assert read_template(tmp_path / "one.jinja") == "{{ messages }}"
    other = model_folder(tmp_path / "model", template="{{ other }}")
    assert read_template(other) == "{{ other }}"
    with pytest.raises(InvalidInput, match="chat_template_path"):
        read_template(tmp_path / "none.jinja")
    with pytest.raises(InvalidInput, match="that has one"):
        read_template(tmp_path)


def test_messages_without_a_template_are_warned_of_once(folder, tmp_path, caplog):
    turns = [{"role": "user", "content": "so?"}, {"role": "assistant", "content": "yes"}]
    path = rows_file(tmp_path / "rows.jsonl", [{"messages": turns}] * 2)
    tokenized_dataset(str(path), FileTokenizer(folder), 100, tmp_path / "cache")
    (said,) = [record.message for record in caplog.records]
    assert said.startswith("no chat template: messages are written as '### role' and their text;")

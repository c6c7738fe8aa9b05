"""The rows of a dataset: which forms a row may have, and checks of all rows of a dataset.

A row is a ``text``, a ``prompt`` with its ``completion`` (as texts or as lists of messages), or the
``messages`` of a conversation. Two forms of other tools are read as ``messages``: ``instruction``,
``input`` and ``output`` (Alpaca), and ``conversations`` with ``from`` and ``value`` (ShareGPT).
Messages may have tool calls, and a row ``tools``. Other columns are ignored. Neither torch nor
transformers is needed, so a wrong dataset is refused before it costs anything. File formats are
read in ``records``; tokens are made in ``tokens``.
"""

from __future__ import annotations

import contextlib
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.training.records import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JsonObject = dict[str, object]
"""An object of JSON that is passed to the chat template as it is."""

TEXT_FIELD = "text"
CHARACTERS_PER_TOKEN = 4.0
"""The average of English text with common tokenizers."""

SAMPLE = 500
"""A sample of a large dataset has at least this many rows, and fewer than twice as many."""

ROW = (
    "an object with 'text', with 'prompt' and 'completion', with 'messages', with 'conversations', "
    "or with 'instruction' and 'output'"
)
_ROLES = {"human": "user", "gpt": "assistant", "observation": "tool"}
_CALL = "function_call"
_ALPACA = (
    "Below is an instruction that describes a task{more}. Write a response that appropriately "
    "completes the request."
)
_ALPACA_INPUT = ", paired with an input that provides further context"


class RowKind(StrEnum):
    """The form of a row; all rows of a dataset have the same."""

    TEXT = "text"
    COMPLETION = "prompt and completion"
    CONVERSATION = "messages"
    ANSWER = "prompt and completion of messages"


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation. What templates need for tools is passed to them as it is;
    arguments of calls that are written as JSON text are decoded.
    """

    role: str
    content: str | None = None
    tool_calls: tuple[JsonObject, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None

    @property
    def turn(self) -> JsonObject:
        """The message as chat templates expect it."""
        found: JsonObject = {"content": self.content or "", **msgspec.to_builtins(self)}
        if self.tool_calls:
            found["tool_calls"] = [_decoded_call(call) for call in self.tool_calls]
        return found

    @property
    def text(self) -> str:
        """Everything that the message says, for models without a chat template."""
        calls = [msgspec.json.encode(call).decode() for call in self.tool_calls or ()]
        return "\n".join(filter(None, (self.reasoning_content, self.content, *calls)))


class DataRow(msgspec.Struct, frozen=True):
    """One training example.

    - The loss covers the text, the completion, or the assistant's messages.
    - ``asked``: the first messages, which are a prompt; the loss covers all others. None where each
      message of the assistant is learned.
    - ``messages`` beside ``prompt`` and ``completion``: the same row as a conversation, for models
      with a chat template.
    - ``tools``: functions that the assistant may call, as JSON schemas.
    """

    text: str | None = None
    prompt: str | None = None
    completion: str | None = None
    messages: tuple[Message, ...] | None = None
    asked: int | None = None
    tools: tuple[JsonObject, ...] | None = None

    @property
    def kind(self) -> RowKind | None:
        """Return the form of the row; None if required fields are missing."""
        if self.messages is not None:
            return RowKind.CONVERSATION if self.asked is None else RowKind.ANSWER
        if self.prompt is not None and self.completion is not None:
            return RowKind.COMPLETION
        return RowKind.TEXT if self.text is not None else None

    @property
    def characters(self) -> int:
        """Return the length of all texts of the row."""
        if self.messages is not None:
            return sum(len(message.text) for message in self.messages)
        if self.completion is not None and self.prompt is not None:
            return len(self.prompt) + len(self.completion)
        return len(self.text or "")

    @property
    def learned(self) -> str:
        """Return the text that the loss covers."""
        if self.messages is None:
            return self.completion or self.text or ""
        if self.asked is not None:
            return "".join(message.text for message in self.messages[self.asked :])
        return "".join(each.text for each in self.messages if each.role == "assistant")


class _Record(msgspec.Struct, frozen=True):
    """The columns of a row that are read, in any of the forms."""

    text: str | None = None
    prompt: str | tuple[Message, ...] | None = None
    completion: str | tuple[Message, ...] | None = None
    messages: tuple[Message, ...] | None = None
    tools: str | tuple[JsonObject, ...] | None = None

    def row(self) -> DataRow:
        """Return the row; without a kind if it has none of the forms."""
        tools = self.tools
        if isinstance(tools, str):
            tools = (
                msgspec.json.decode(tools, type=tuple[JsonObject, ...]) if tools.strip() else None
            )
        if self.messages is not None:
            return DataRow(messages=self.messages, tools=tools or None)
        prompt, completion = self.prompt, self.completion
        if isinstance(prompt, tuple) and isinstance(completion, tuple):
            messages = (*prompt, *completion)
            return DataRow(messages=messages, asked=len(prompt), tools=tools or None)
        if isinstance(prompt, tuple) or isinstance(completion, tuple):
            raise msgspec.ValidationError("prompt and completion must both be texts or messages")
        return DataRow(text=self.text, prompt=prompt, completion=completion)


class _Turn(msgspec.Struct, frozen=True):
    """One message of a conversation in the form of ShareGPT."""

    role: str = msgspec.field(name="from")
    content: str = msgspec.field(name="value")

    def message(self) -> Message:
        """Return it as a message; a call of a function is JSON with name and arguments."""
        if self.role == _CALL:
            call = msgspec.json.decode(self.content, type=JsonObject | list[JsonObject])
            calls = call if isinstance(call, list) else [call]
            return Message("assistant", tool_calls=tuple({"function": one} for one in calls))
        return Message(_ROLES.get(self.role, self.role), self.content)


class _ForeignRow(msgspec.Struct, frozen=True):
    """A row in the form of Alpaca or ShareGPT."""

    instruction: str = ""
    input: str | None = None
    output: str = ""
    system: str | None = None
    conversations: tuple[_Turn, ...] = ()
    tools: str | tuple[JsonObject, ...] | None = None

    def row(self) -> DataRow:
        """Return the row as a conversation; empty if it has none of the two forms."""
        before = (Message("system", self.system),) if self.system else ()
        if self.conversations:
            messages = (*before, *(turn.message() for turn in self.conversations))
            return _Record(messages=messages, tools=self.tools).row()
        if not (self.instruction and self.output):
            return DataRow()
        question = f"{self.instruction}\n{self.input}" if self.input else self.instruction
        messages = (*before, Message("user", question), Message("assistant", self.output))
        header = self.system or _ALPACA.format(more=_ALPACA_INPUT if self.input else "")
        given = f"### Input:\n{self.input}\n\n" if self.input else ""
        prompt = f"{header}\n\n### Instruction:\n{self.instruction}\n\n{given}### Response:\n"
        return DataRow(prompt=prompt, completion=self.output, messages=messages)


def _decoded_call(call: JsonObject) -> JsonObject:
    """Return a call of a tool with its arguments as an object, as templates expect them."""
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    arguments: object = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(msgspec.MsgspecError):
            arguments = msgspec.json.decode(arguments)
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


class DatasetSummary(msgspec.Struct, frozen=True):
    """Figures of a dataset. ``complete`` is false if only its first rows were read.

    ``sample`` has all rows of a small dataset, and of a large one every n-th row.
    """

    rows: int
    kind: RowKind
    characters: int
    longest: int
    complete: bool = True
    sample: tuple[DataRow, ...] = ()

    @property
    def tokens_per_row(self) -> float:
        """Return the estimated tokens per row, from the number of characters."""
        return max(1.0, self.characters / self.rows / CHARACTERS_PER_TOKEN)


def rows_of(place: str | Path, text_field: str = TEXT_FIELD) -> Iterator[DataRow]:
    """Yield the checked rows of a file, a folder or a dataset on the hub; all have one form.

    ``text_field`` is the column of texts.
    """
    first: RowKind | None = None
    for record in read_records(place):
        row = _checked(record.content, record.where, text_field)
        if first is None:
            first = row.kind
        elif row.kind != first:
            allowed = f"a row with {first}, as in the first row"
            raise InvalidInput(record.where, f"a row with {row.kind}", allowed)
        yield row
    if first is None:
        raise InvalidInput("dataset", str(place), f"at least one row: {ROW}")


def check_dataset(
    place: str | Path, limit: int | None = None, text_field: str = TEXT_FIELD
) -> DatasetSummary:
    """Return figures of a dataset or its first ``limit`` rows; ``InvalidInput`` for a wrong row."""
    rows = characters = longest = 0
    kind: RowKind | None = None
    complete = True
    sample: list[DataRow] = []
    every = 1
    for row in rows_of(place, text_field):
        if limit is not None and rows >= limit:
            complete = False
            break
        if rows % every == 0:
            sample.append(row)
        if len(sample) == 2 * SAMPLE:
            sample, every = sample[::2], 2 * every
        rows += 1
        kind = row.kind
        characters += row.characters
        longest = max(longest, row.characters)
    if kind is None:
        raise InvalidInput("limit", limit, "a whole number from 1 on")
    return DatasetSummary(rows, kind, characters, longest, complete, tuple(sample))


def _checked(content: object, where: str, text_field: str) -> DataRow:
    if text_field != TEXT_FIELD and isinstance(content, dict) and text_field in content:
        content = {TEXT_FIELD: content[text_field]}
    try:
        row = msgspec.convert(content, _Record).row()
        if row.kind is None:
            row = msgspec.convert(content, _ForeignRow).row()
    except msgspec.MsgspecError as error:
        raise InvalidInput(where, content, f"{ROW} ({error})") from None
    if row.kind is None:
        raise InvalidInput(where, content, ROW)
    for message in row.messages or ():
        if message.content is None and not message.tool_calls:
            raise InvalidInput(where, content, "messages with 'content', or with 'tool_calls'")
    if not row.learned.strip():
        raise InvalidInput(where, content, _NOT_EMPTY[row.kind])
    return row


_NOT_EMPTY = {
    RowKind.TEXT: "a 'text' that is not empty",
    RowKind.COMPLETION: "a 'completion' that is not empty",
    RowKind.CONVERSATION: "'messages' with a message of the assistant that is not empty",
    RowKind.ANSWER: "a 'completion' with a message that is not empty",
}

"""The rows of a dataset: which forms a row may have, and checks of all rows of a dataset.

A row is a ``text``, a ``prompt`` with its ``completion``, or the ``messages`` of a conversation.
Two forms of other tools are read as ``messages``: ``instruction``, ``input`` and ``output``
(Alpaca), and ``conversations`` with ``from`` and ``value`` (ShareGPT). Other columns are ignored.
Neither torch nor transformers is needed, so a wrong dataset is refused before it costs anything.
File formats are read in ``records``; tokens are made in ``tokens``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.training.records import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHARACTERS_PER_TOKEN = 4.0
"""The average of English text with common tokenizers."""

SAMPLE = 500
"""A sample of a large dataset has at least this many rows, and fewer than twice as many."""

ROW = (
    "an object with 'text', with 'prompt' and 'completion', with 'messages', with 'conversations', "
    "or with 'instruction' and 'output'"
)
_ROLES = {"human": "user", "gpt": "assistant"}


class RowKind(StrEnum):
    """The form of a row; all rows of a dataset have the same."""

    TEXT = "text"
    COMPLETION = "prompt and completion"
    CONVERSATION = "messages"


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str


class DataRow(msgspec.Struct, frozen=True):
    """One training example. The loss covers the text, the completion, or the assistant's turns."""

    text: str | None = None
    prompt: str | None = None
    completion: str | None = None
    messages: tuple[Message, ...] | None = None

    @property
    def kind(self) -> RowKind | None:
        """Return the form of the row; None if required fields are missing."""
        if self.messages is not None:
            return RowKind.CONVERSATION
        if self.prompt is not None and self.completion is not None:
            return RowKind.COMPLETION
        return RowKind.TEXT if self.text is not None else None

    @property
    def characters(self) -> int:
        """Return the length of all texts of the row."""
        if self.messages is not None:
            return sum(len(message.content) for message in self.messages)
        if self.completion is not None and self.prompt is not None:
            return len(self.prompt) + len(self.completion)
        return len(self.text or "")


class _Turn(msgspec.Struct, frozen=True):
    """One message of a conversation in the form of ShareGPT."""

    role: str = msgspec.field(name="from")
    content: str = msgspec.field(name="value")


class _ForeignRow(msgspec.Struct, frozen=True):
    """A row in the form of Alpaca or ShareGPT."""

    instruction: str = ""
    input: str | None = None
    output: str = ""
    system: str | None = None
    conversations: tuple[_Turn, ...] = ()

    def row(self) -> DataRow:
        """Return the row as a conversation; empty if it has none of the two forms."""
        turns = [(_ROLES.get(turn.role, turn.role), turn.content) for turn in self.conversations]
        if not turns and self.instruction and self.output:
            question = f"{self.instruction}\n{self.input}" if self.input else self.instruction
            turns = [("user", question), ("assistant", self.output)]
        if turns and self.system:
            turns.insert(0, ("system", self.system))
        return DataRow(messages=tuple(Message(*turn) for turn in turns)) if turns else DataRow()


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


def rows_of(place: str | Path) -> Iterator[DataRow]:
    """Yield the checked rows of a file, a folder or a dataset on the hub; all have one form."""
    first: RowKind | None = None
    for record in read_records(place):
        row = _checked(record.content, record.where)
        if first is None:
            first = row.kind
        elif row.kind != first:
            allowed = f"a row with {first}, as in the first row"
            raise InvalidInput(record.where, f"a row with {row.kind}", allowed)
        yield row
    if first is None:
        raise InvalidInput("dataset", str(place), f"at least one row: {ROW}")


def check_dataset(place: str | Path, limit: int | None = None) -> DatasetSummary:
    """Return figures of a dataset or its first ``limit`` rows; ``InvalidInput`` for a wrong row."""
    rows = characters = longest = 0
    kind: RowKind | None = None
    complete = True
    sample: list[DataRow] = []
    every = 1
    for row in rows_of(place):
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


def _checked(content: object, where: str) -> DataRow:
    try:
        row = msgspec.convert(content, DataRow)
        if row.kind is None:
            row = msgspec.convert(content, _ForeignRow).row()
    except msgspec.ValidationError as error:
        raise InvalidInput(where, content, f"{ROW} ({error})") from None
    if row.kind is None:
        raise InvalidInput(where, content, ROW)
    answers = (one.content for one in row.messages or () if one.role == "assistant")
    learned = {
        RowKind.TEXT: row.text or "",
        RowKind.COMPLETION: row.completion or "",
        RowKind.CONVERSATION: "".join(answers),
    }
    if not learned[row.kind].strip():
        raise InvalidInput(where, content, _NOT_EMPTY[row.kind])
    return row


_NOT_EMPTY = {
    RowKind.TEXT: "a 'text' that is not empty",
    RowKind.COMPLETION: "a 'completion' that is not empty",
    RowKind.CONVERSATION: "'messages' with a message of the assistant that is not empty",
}

"""Examples to train on: what a row may be, and whether a dataset holds such rows.

A row is a ``text``, a ``prompt`` with its ``completion``, or ``messages`` of a conversation; other
columns are ignored. Needs neither torch nor transformers, so that a dataset can be refused before
anything is spent on it.
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
"""Of text in English with the usual tokenizers."""

ROW = "an object with 'text', with 'prompt' and 'completion', or with 'messages'"


class RowKind(StrEnum):
    TEXT = "text"
    COMPLETION = "prompt and completion"
    CONVERSATION = "messages"


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str


class DataRow(msgspec.Struct, frozen=True):
    """The loss counts on the text, on the completion, or on what the assistant says."""

    text: str | None = None
    prompt: str | None = None
    completion: str | None = None
    messages: tuple[Message, ...] | None = None

    @property
    def kind(self) -> RowKind | None:
        if self.messages is not None:
            return RowKind.CONVERSATION
        if self.prompt is not None and self.completion is not None:
            return RowKind.COMPLETION
        return RowKind.TEXT if self.text is not None else None

    @property
    def characters(self) -> int:
        if self.messages is not None:
            return sum(len(message.content) for message in self.messages)
        if self.completion is not None and self.prompt is not None:
            return len(self.prompt) + len(self.completion)
        return len(self.text or "")


class DatasetSummary(msgspec.Struct, frozen=True):
    """``complete`` is false where only the first rows were looked at."""

    rows: int
    kind: RowKind
    characters: int
    longest: int
    complete: bool = True

    @property
    def tokens_per_row(self) -> float:
        """About how many, by characters: no tokenizer is asked."""
        return max(1.0, self.characters / self.rows / CHARACTERS_PER_TOKEN)


def rows_of(place: str | Path) -> Iterator[DataRow]:
    """All rows of a file or folder, or of a name on the hub; all are of one kind."""
    first: RowKind | None = None
    for record in read_records(place):
        row = _checked(record.content, record.where)
        if first is None:
            first = row.kind
        elif row.kind != first:
            raise InvalidInput(
                record.where, f"a row with {row.kind}", f"{first}, as in the rows before"
            )
        yield row
    if first is None:
        raise InvalidInput("dataset", str(place), f"at least one row: {ROW}")


def check_dataset(place: str | Path, limit: int | None = None) -> DatasetSummary:
    """Read a dataset, or its first ``limit`` rows, and refuse what cannot be trained on."""
    rows = characters = longest = 0
    kind: RowKind | None = None
    complete = True
    for row in rows_of(place):
        if limit is not None and rows >= limit:
            complete = False
            break
        rows += 1
        kind = row.kind
        characters += row.characters
        longest = max(longest, row.characters)
    if kind is None:
        raise InvalidInput("limit", limit, "a whole number from 1 on")
    return DatasetSummary(rows, kind, characters, longest, complete)


def _checked(content: object, where: str) -> DataRow:
    try:
        row = msgspec.convert(content, DataRow)
    except msgspec.ValidationError as error:
        raise InvalidInput(where, content, f"{ROW} ({error})") from None
    match row.kind:
        case None:
            raise InvalidInput(where, content, ROW)
        case RowKind.TEXT:
            empty = not (row.text or "").strip()
        case RowKind.COMPLETION:
            empty = not (row.completion or "").strip()
        case RowKind.CONVERSATION:
            empty = not any(
                message.role == "assistant" and message.content.strip()
                for message in row.messages or ()
            )
    if empty:
        raise InvalidInput(where, content, _NOT_EMPTY[row.kind])
    return row


_NOT_EMPTY = {
    RowKind.TEXT: "a 'text' that is not empty",
    RowKind.COMPLETION: "a 'completion' that is not empty",
    RowKind.CONVERSATION: "'messages' in which the assistant says something",
}

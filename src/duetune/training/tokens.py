"""Converts rows to tokens and marks the tokens that count in the loss; cached once per job.

- ``text``: its tokens and the end-of-text token; all of them count.
- ``prompt`` and ``completion``: joined; the completion and the end-of-text token count.
- ``messages``: formatted by the tokenizer's chat template; the assistant's messages count. Without
  a template, rows of Alpaca get their usual text. In others each message becomes ``### role``, the
  content and an empty line, and the assistant's content is followed by the end-of-text token.
- ``prompt`` and ``completion`` of messages: likewise; all messages of the completion count.

``LossRules`` say where the rest of a row counts too.

Rows are cut at ``max_length`` tokens. Rows without a token that counts are left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.errors import InvalidInput
from duetune.files import whole_file
from duetune.training.dataset_rows import TEXT_FIELD, DataRow, Message, RowKind, rows_of
from duetune.training.records import dataset_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from duetune.training.dataset_rows import JsonObject
    from duetune.training.task import TrainingTask

_log = logging.getLogger(__name__)

# Increase this whenever the same row gives other tokens, so that old caches are not used.
_VERSION = 2


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    chat_template: str | None
    bos_token_id: int | None
    eos_token_id: int | None
    name_or_path: str

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the tokens of a text."""

    def apply_chat_template(
        self,
        conversation: Sequence[JsonObject],
        *,
        tools: Sequence[JsonObject] | None,
        tokenize: bool,
        add_generation_prompt: bool,
    ) -> str:
        """Return a conversation as one text."""

    def save_pretrained(self, folder: Path) -> object:
        """Write the tokenizer to a folder."""


class LossRules(msgspec.Struct, frozen=True):
    """Which tokens count in the loss, in the names of TRL: only those of the assistant, and only
    those of completions.
    """

    assistant_only_loss: bool = True
    completion_only_loss: bool = True

    @classmethod
    def of(cls, task: TrainingTask) -> LossRules:
        """Return the rules of a task."""
        return cls(task.assistant_only_loss, task.completion_only_loss is not False)

    def all_of(self, row: DataRow) -> bool:
        """Return whether all tokens of a row count."""
        conversation = row.kind is RowKind.CONVERSATION
        return not (self.assistant_only_loss if conversation else self.completion_only_loss)


EVERY_RULE = LossRules()


class Part(msgspec.Struct, frozen=True):
    """A piece of a row.

    - ``counts``: its tokens count in the loss.
    - ``ends``: the end-of-text token follows.
    """

    text: str
    counts: bool
    ends: bool = False


class TokenizedRows(msgspec.Struct, frozen=True):
    """Tokenized rows: row ``i`` is ``ids[begins[i]:begins[i + 1]]``.

    - ``counts``: marks the tokens that count in the loss.
    - ``left_out``: the number of rows that had none.
    """

    ids: NDArray[np.int32]
    counts: NDArray[np.bool_]
    begins: NDArray[np.int64]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.begins) - 1

    def row(self, index: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the tokens of a row and which of them count."""
        place = slice(self.begins[index], self.begins[index + 1])
        return self.ids[place], self.counts[place]

    def targets(self, rows: NDArray[np.int64]) -> int:
        """Return how many tokens of these rows count. The first of a row is never predicted."""
        return int(
            sum(self.counts[self.begins[row] + 1 : self.begins[row + 1]].sum() for row in rows)
        )

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of tokens of each of these rows."""
        return self.begins[rows + 1] - self.begins[rows]

    def tokens(self, rows: NDArray[np.int64]) -> int:
        """Return the number of tokens of these rows."""
        return int(self.lengths(rows).sum())


def tokenized(
    rows: Iterable[DataRow],
    tokenizer: Tokenizer,
    max_length: int,
    rules: LossRules = EVERY_RULE,
) -> TokenizedRows:
    """Convert rows to tokens; ``InvalidInput`` if no row has a token that counts."""
    ids: list[NDArray[np.int32]] = []
    counts: list[NDArray[np.bool_]] = []
    left_out = 0
    starts_with = _start(tokenizer)
    for number, row in enumerate(rows, start=1):
        # A chat template writes its own beginning-of-text token.
        templated = row.messages is not None and tokenizer.chat_template
        tokens: list[int] = [] if templated else list(starts_with)
        marks = [False] * len(tokens)
        for part in _parts(row, tokenizer, f"messages of row {number}"):
            piece = tokenizer.encode(part.text, add_special_tokens=False) if part.text else []
            if part.ends and tokenizer.eos_token_id is not None:
                piece = [*piece, tokenizer.eos_token_id]
            tokens += piece
            marks += [part.counts or rules.all_of(row)] * len(piece)
        if not any(marks[1:max_length]):
            left_out += 1
            continue
        ids.append(np.array(tokens[:max_length], dtype=np.int32))
        counts.append(np.array(marks[:max_length], dtype=np.bool_))
    if not ids:
        allowed = f"rows with tokens to learn within max_length {max_length}"
        raise InvalidInput("dataset", f"{left_out} rows", allowed)
    begins = np.zeros(len(ids) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in ids], out=begins[1:])
    return TokenizedRows(np.concatenate(ids), np.concatenate(counts), begins, left_out)


def tokenized_dataset(
    place: str,
    tokenizer: Tokenizer,
    max_length: int,
    cache: Path,
    *,
    rules: LossRules = EVERY_RULE,
    text_field: str = TEXT_FIELD,
) -> TokenizedRows:
    """Return the tokens of a dataset, from the ``cache`` folder if another worker has made them."""
    about = f"{rules}:{text_field}:{max_length}"
    path = cache / f"{_fingerprint(place, tokenizer, about)}.npz"
    with (
        contextlib.suppress(OSError, ValueError, KeyError, zipfile.BadZipFile),
        np.load(path, allow_pickle=False) as found,
    ):
        return TokenizedRows(found["ids"], found["counts"], found["begins"], int(found["left_out"]))
    rows = tokenized(_warned(rows_of(place, text_field), tokenizer), tokenizer, max_length, rules)
    # Without the cache, only the start of the next worker is slower.
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as draft, draft.open("wb") as file:
            np.savez(
                file, ids=rows.ids, counts=rows.counts, begins=rows.begins, left_out=rows.left_out
            )
    return rows


def _parts(row: DataRow, tokenizer: Tokenizer, where: str) -> list[Part]:
    if row.messages is not None and tokenizer.chat_template:
        return _by_template(row, row.messages, tokenizer, where)
    if row.prompt is not None and row.completion is not None:
        return [Part(row.prompt, counts=False), Part(row.completion, counts=True, ends=True)]
    if row.messages is not None:
        return _plain(row, row.messages)
    return [Part(row.text or "", counts=True, ends=True)]


def _warned(rows: Iterable[DataRow], tokenizer: Tokenizer) -> Iterator[DataRow]:
    """Yield the rows; log once how conversations are written without a chat template."""
    said = bool(tokenizer.chat_template)
    for row in rows:
        if row.messages is not None and not said:
            _log.warning("no chat template: %s", plain_form(row))
            said = True
        yield row


def plain_form(row: DataRow) -> str:
    """Return how a conversation is written without a chat template, in words."""
    if row.prompt is not None:
        return "rows are written in the usual form of Alpaca"
    return "messages are written as '### role' and their text; set chat_template, such as chatml"


def _plain(row: DataRow, messages: Sequence[Message]) -> list[Part]:
    parts: list[Part] = []
    for place, message in enumerate(messages):
        answer = message.role == "assistant" if row.asked is None else place >= row.asked
        parts.append(Part(f"### {message.role}\n", counts=False))
        parts.append(Part(message.text, counts=answer, ends=answer))
        parts.append(Part("\n\n", counts=False))
    return parts[:-1]


def _by_template(
    row: DataRow, messages: Sequence[Message], tokenizer: Tokenizer, where: str
) -> list[Part]:
    """Split a templated conversation; an answer is what the template adds to its prompt.

    Some templates rewrite earlier answers once later ones follow (they drop the reasoning, for
    example). With these, only the last answer counts.
    """

    def rendered(count: int, *, prompt: bool) -> str:
        return _rendered(messages[:count], row.tools, tokenizer, where, prompt=prompt)

    # Each answer as the number of messages before it and with it.
    answers = [
        (place, place + 1) for place, each in enumerate(messages) if each.role == "assistant"
    ]
    if row.asked is not None:
        answers = [(row.asked, len(messages))]
    for chosen in (answers, answers[-1:]):
        parts, done = [], ""
        for before, after in chosen:
            prompt = rendered(before, prompt=True)
            upto = rendered(after, prompt=False)
            if not (prompt.startswith(done) and upto.startswith(prompt)):
                break
            parts.append(Part(prompt[len(done) :], counts=False))
            parts.append(Part(upto[len(prompt) :], counts=True))
            done = upto
        else:
            return parts
    allowed = "a conversation to which the model's chat template adds answers only at the end"
    raise InvalidInput(where, messages[0].text, allowed)


def _rendered(
    messages: Sequence[Message],
    tools: Sequence[JsonObject] | None,
    tokenizer: Tokenizer,
    where: str,
    *,
    prompt: bool,
) -> str:
    if not messages:
        return ""
    turns = [message.turn for message in messages]
    try:
        return tokenizer.apply_chat_template(
            turns, tools=tools, tokenize=False, add_generation_prompt=prompt
        )
    except Exception as error:  # noqa: BLE001 - templates may raise any exception
        allowed = f"messages that fit the model's chat template ({error})"
        raise InvalidInput(where, [message.role for message in messages], allowed) from None


def _start(tokenizer: Tokenizer) -> list[int]:
    """Return the beginning-of-text token if the tokenizer adds one."""
    first = tokenizer.encode("", add_special_tokens=True)[:1]
    return first if first and first[0] == tokenizer.bos_token_id else []


def _fingerprint(place: str, tokenizer: Tokenizer, about: str) -> str:
    """Return a digest of everything on which the tokens depend."""
    seen = hashlib.sha256(
        f"{_VERSION}:{about}:{tokenizer.eos_token_id}:{tokenizer.chat_template}".encode()
    )
    files = dataset_files(Path(place))
    folder = Path(tokenizer.name_or_path)
    if folder.is_dir():
        files += sorted(file for file in folder.iterdir() if "token" in file.name)
    for file in files:
        found = file.stat()
        seen.update(f"{file}:{found.st_size}:{found.st_mtime_ns}\n".encode())
    seen.update(f"{place}:{tokenizer.name_or_path}".encode())
    return seen.hexdigest()[:32]

"""A model's tokenizer read from its files, without torch: for plans, which must be quick.

The trainer itself loads the tokenizer with transformers (``trained_model.load_tokenizer``). Both go
through ``tokens.tokenized``, so a plan counts the tokens that the trainer will train on.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.training.chat_templates import template_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from duetune.training.dataset_rows import JsonObject
    from duetune.training.task import TrainingTask

_TOKENIZER, _CONFIG, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_ANY = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "spiece*")


class _Token(msgspec.Struct, frozen=True):
    content: str = ""


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str = ""
    template: str = ""


class _Config(msgspec.Struct, frozen=True):
    """The part of ``tokenizer_config.json`` that matters for the tokens of a row."""

    chat_template: str | tuple[_NamedTemplate, ...] | None = None
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None


class FileTokenizer:
    """The tokenizer in a folder, as ``tokens.Tokenizer``. Loading it takes milliseconds."""

    def __init__(
        self, folder: Path, template: str | None = None, eos_token: str | None = None
    ) -> None:
        from tokenizers import Tokenizer as Backend  # noqa: PLC0415 - part of the trainer's extra

        config = _config(folder)
        self.name_or_path = str(folder)
        self.chat_template = template or chat_template(folder)
        self._backend = Backend.from_file(str(folder / _TOKENIZER))
        self._backend.no_truncation()
        self._bos, self._eos = _text(config.bos_token), eos_token or _text(config.eos_token)
        self.bos_token_id: int | None = self._backend.token_to_id(self._bos)
        self.eos_token_id: int | None = self._backend.token_to_id(self._eos)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the tokens of a text."""
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def apply_chat_template(
        self,
        conversation: Sequence[JsonObject],
        *,
        tools: Sequence[JsonObject] | None,
        tokenize: bool,  # noqa: ARG002 - part of the protocol; the text is returned in any case
        add_generation_prompt: bool,
    ) -> str:
        """Return a conversation as one text, as transformers formats it."""
        from transformers.utils.chat_template_utils import (  # noqa: PLC0415 - takes a second
            render_jinja_template,
        )

        rendered = render_jinja_template(
            conversations=[list(conversation)],
            tools=None if tools is None else list(tools),
            chat_template=self.chat_template,
            add_generation_prompt=add_generation_prompt,
            bos_token=self._bos,
            eos_token=self._eos,
        )
        return str(rendered[0][0])

    def save_pretrained(self, folder: Path) -> object:
        """Refuse: plans write nothing."""
        raise NotImplementedError(folder)


def file_tokenizer(folder: Path, task: TrainingTask) -> FileTokenizer | None:
    """Return the tokenizer of a model's folder for a task; None where only transformers can read
    it.
    """
    if not (folder / _TOKENIZER).is_file():
        return None
    with contextlib.suppress(Exception):  # tokenizers raises plain exceptions for a bad file
        template = template_text(task.chat_template)
        return FileTokenizer(folder, template, task.eos_token)
    return None


def has_tokenizer(folder: Path) -> bool:
    """Return whether a model's folder has any file that a tokenizer is made from."""
    return any(any(folder.glob(pattern)) for pattern in _ANY)


def chat_template(folder: Path) -> str | None:
    """Return the chat template of a model's folder; None if it has none."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (folder / _TEMPLATE).read_text("utf-8")
    found = _config(folder).chat_template
    if isinstance(found, tuple):
        named = {each.name: each.template for each in found}
        return named.get("default") or next(iter(named.values()), None)
    return found or None


def read_template(path: Path) -> str:
    """Return the template in a file or of a model's folder; ``InvalidInput`` if there is none.
    Plans and exports call it, so that workers need not reach the file.
    """
    field, allowed = "training.chat_template_path", "a file with a template, or a model's folder"
    try:
        found = chat_template(path) if path.is_dir() else path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(field, str(path), f"{allowed} ({error})") from None
    if not found:
        raise InvalidInput(field, str(path), f"{allowed} that has one")
    return found


def _config(folder: Path) -> _Config:
    try:
        return msgspec.json.decode((folder / _CONFIG).read_bytes(), type=_Config)
    except (OSError, msgspec.MsgspecError):
        return _Config()


def _text(token: str | _Token | None) -> str:
    return token.content if isinstance(token, _Token) else token or ""

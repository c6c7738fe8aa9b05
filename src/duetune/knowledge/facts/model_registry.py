"""Models known by name.

``registry.json`` holds sizes only, with the keys of ``config.json``. This module finds an entry for
the many spellings of a name; ``model_facts`` turns the entry into sizes.
"""

from __future__ import annotations

import functools
import re
from importlib.resources import files
from pathlib import Path

import msgspec

# Words for training and storage, which do not change the sizes of a model.
_UNSAID = frozenset(
    (
        *("instruct", "hf", "base", "chat", "it", "pt", "sft", "dpo", "meta", "unsloth"),
        *("gptq", "awq", "gguf", "bnb", "fp8", "fp16", "bf16", "int4", "int8", "4bit", "8bit"),
    )
)
_GLUED = re.compile(r"(?<=[a-z]{2})(?=\d)")
# Words that a name may leave out or exchange without other sizes: v0.2, 2407, coder.
_LOOSE = re.compile(r"v\d+(\.\d+)?|\d{4}|coder|math|deduped")


def registered(name: str) -> tuple[str, msgspec.Raw] | None:
    """Return the registry's name for a model and its entry, or None if the model is not listed."""
    return _registered(name)


def model_name(text: str) -> str:
    """Return one name for each model, however it is spelled: the registry's name, or ``text``
    itself.

    A folder with a ``config.json`` keeps its own name, because it describes its model.
    """
    found = None if (Path(text) / "config.json").is_file() else _registered(text)
    return text if found is None else found[0]


def registered_names() -> tuple[str, ...]:
    """Return all models of the registry, to suggest names like one that is not known."""
    return tuple(_index()[0])


@functools.lru_cache(maxsize=4096)
def _registered(text: str) -> tuple[str, msgspec.Raw] | None:
    names, exact, loose = _index()
    words = _words(text)
    name = exact.get(words) or loose.get(_loosened(words))
    return None if name is None else (name, names[name])


_Words = tuple[str, ...]


class _Names(msgspec.Struct, frozen=True):
    aliases: tuple[str, ...] = ()


@functools.cache
def _index() -> tuple[dict[str, msgspec.Raw], dict[_Words, str], dict[_Words, str]]:
    """Return the entries by name, and the names by all of their words and by their significant
    words.

    If two models share the same words, the first one is found.
    """
    text = files("duetune.knowledge.facts").joinpath("registry.json").read_bytes()
    entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    exact: dict[_Words, str] = {}
    loose: dict[_Words, str] = {}
    for name, entry in entries.items():
        aliases = msgspec.json.decode(entry, type=_Names).aliases
        for each in (name, *aliases):
            words = _words(each)
            exact.setdefault(words, name)
            loose.setdefault(_loosened(words), name)
    return entries, exact, loose


def _words(name: str) -> _Words:
    """Split a name into words: both ``meta-llama/Llama-3.2-3B-Instruct`` and ``llama3.2-3b`` give
    llama, 3.2, 3b.
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].casefold().replace("_", "-").replace(" ", "-")
    telling = "-".join(part for part in last.split("-") if part and part not in _UNSAID)
    return tuple(part.removesuffix(".0") for part in _GLUED.sub("-", telling).split("-") if part)


def _loosened(words: _Words) -> _Words:
    """Return the words without versions, dates and variants that do not change a model's sizes."""
    return tuple(word for word in words if not _LOOSE.fullmatch(word))

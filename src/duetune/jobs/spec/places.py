"""Where a model or dataset is: a file, a folder, or a name on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import PlainValidator, WithJsonSchema

from duetune.jobs.spec.problems import refusal

MODEL = "a folder, or a name on the Hugging Face hub such as Qwen/Qwen3-0.6B"
DATASET = "a file or folder, or a name on the Hugging Face hub such as trl-lib/Capybara"
PATH = "a path"

_HUB = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_DATA_FILE = re.compile(
    r"\.(?:jsonl?|csv|tsv|txt|parquet|arrow|safetensors|bin|gguf|zip|gz|zst)$", re.IGNORECASE
)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_path(place: str) -> bool:
    """Return whether ``place`` is a path, judged by its spelling alone. What could also be a name
    on the hub counts as one.
    """
    return (
        place.startswith(("/", "./", "../", "~"))
        or place in {".", ".."}
        or _DATA_FILE.search(place) is not None
        or _HUB.fullmatch(place) is None
        or "--" in place
        or ".." in place
    )


def resolved_place(place: str, folder: Path) -> str:
    """Return an absolute path if ``place`` is a path or exists in ``folder``, else the hub name."""
    path = resolved_path(place, folder)
    return path if is_path(place) or Path(path).exists() else place


def resolved_path(path: str, folder: Path) -> str:
    """Return an absolute path; a relative one starts at ``folder``, ``~`` is expanded."""
    home = Path(path).expanduser() if path.startswith("~") else Path(path)
    return os.path.normpath(folder / home)


def _place(value: object, allowed: str) -> str:
    """Return the text if it can be a place, else refuse it with what is allowed."""
    text = str(value) if isinstance(value, Path) else value
    if not isinstance(text, str) or not text.strip() or len(text) > 4096 or not text.isprintable():
        raise refusal(allowed)
    if _ADDRESS.match(text):
        raise refusal(f"{allowed}; web addresses are not supported, so download it first")
    if text != text.strip():
        raise refusal(f"{allowed}; remove the spaces around it")
    return text


def parse_model(value: object) -> str:
    """Return the model's path or hub name."""
    return _place(value, MODEL)


def parse_dataset(value: object) -> str:
    """Return the dataset's path or hub name."""
    return _place(value, DATASET)


def parse_path(value: object) -> str:
    """Return a path."""
    return _place(value, PATH)


_TEXT = WithJsonSchema({"type": "string", "minLength": 1})
ModelPlace = Annotated[str, PlainValidator(parse_model), _TEXT]
DatasetPlace = Annotated[str, PlainValidator(parse_dataset), _TEXT]
PathText = Annotated[str, PlainValidator(parse_path), _TEXT]

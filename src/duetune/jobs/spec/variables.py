"""Environment variables, secrets and tags of a job: how they are read from a spec."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BeforeValidator, PlainValidator, WithJsonSchema

from duetune.jobs.spec.problems import hidden_refusal, refusal

RESERVED = "DUETUNE_"
MOST_ENTRIES = 1000
LONGEST_VALUE = 100_000
ENVS = (
    "a mapping of variable names (letters, digits, _; not DUETUNE_...) to text; null takes the "
    "value from your own environment"
)
SECRETS = "a list of names such as [HF_TOKEN]; their values come from the environment at launch"
TAGS = "a mapping of tags (letters, digits, . _ / -) to short text, or a list of tags"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")


def is_variable(name: object) -> bool:
    """Return whether ``name`` can be an environment variable of a job; DUETUNE_... cannot."""
    return (
        isinstance(name, str)
        and _NAME.fullmatch(name) is not None
        and not name.upper().startswith(RESERVED)
    )


def scalar_text(value: object) -> str | None:
    """Return a YAML scalar as text; None for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, (str, int, float)) else None


def parse_envs(value: object) -> dict[str, str | None]:
    """Return environment variables by name; None stands for the submitter's own value."""
    if not isinstance(value, dict) or len(value) > MOST_ENTRIES:
        raise refusal(ENVS)
    envs: dict[str, str | None] = {}
    for name, given in value.items():
        text = scalar_text(given)
        if not is_variable(name):
            raise refusal(f"{ENVS}; the name {str(name)[:60]!r} cannot be used")
        if given is not None and (text is None or "\0" in text or len(text) > LONGEST_VALUE):
            raise refusal(f"{ENVS}; the value of {name} is neither text nor null")
        envs[name] = text
    return envs


def parse_secrets(value: object) -> tuple[str, ...]:
    """Return the names of secrets. Other tools write a mapping of names to null, which is read as
    well. No message ever shows a value.
    """
    if isinstance(value, dict):
        for name, given in value.items():
            if given is not None:
                whose = f"the value of {name}" if is_variable(name) else "the values"
                raise hidden_refusal(f"{SECRETS}; remove {whose} from the file")
        value = list(value)
    if not isinstance(value, (list, tuple)) or len(value) > MOST_ENTRIES:
        raise hidden_refusal(SECRETS)
    for place, name in enumerate(value, start=1):
        if not is_variable(name):
            raise hidden_refusal(f"{SECRETS}; entry {place} is not a variable name")
    if len(set(value)) < len(value):
        raise hidden_refusal(f"{SECRETS}; each name only once")
    return tuple(value)


def parse_tags(value: object) -> dict[str, str]:
    """Return tags with their values; a list gives tags with empty values."""
    if isinstance(value, (list, tuple)):
        words = [scalar_text(word) for word in value]
        if len(set(words)) < len(words):
            raise refusal(f"{TAGS}; each tag only once")
        value = {word: "" for word in words if word is not None} if None not in words else None
    if not isinstance(value, dict) or len(value) > MOST_ENTRIES:
        raise refusal(TAGS)
    tags: dict[str, str] = {}
    for name, given in value.items():
        text = scalar_text("" if given is None else given)
        if not isinstance(name, str) or _TAG.fullmatch(name) is None:
            raise refusal(f"{TAGS}; the tag {str(name)[:60]!r} cannot be used")
        if text is None or len(text) > 255 or not text.isprintable():
            raise refusal(f"{TAGS}; the value of {name} must be printable, at most 255 characters")
        tags[name] = text
    return tags


_SCALAR = {"type": ["string", "number", "boolean", "null"]}
_MAPPING = {"type": "object", "additionalProperties": _SCALAR}
Envs = Annotated[dict[str, str | None], PlainValidator(parse_envs), WithJsonSchema(_MAPPING)]
Secrets = Annotated[
    tuple[str, ...],
    BeforeValidator(parse_secrets),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "string"}},
                {"type": "object", "additionalProperties": {"type": "null"}},
            ]
        }
    ),
]
Tags = Annotated[
    dict[str, str],
    PlainValidator(parse_tags),
    WithJsonSchema({"anyOf": [_MAPPING, {"type": "array", "items": {"type": "string"}}]}),
]

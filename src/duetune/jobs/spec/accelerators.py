"""Which GPU and how many: ``auto``, ``H100``, ``H100:4``, ``H100:1..8`` or ``{H100: 4}``."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from duetune.core.job import MAX_GPUS
from duetune.jobs.spec.problems import refusal

AUTO = "auto"
ALLOWED = (
    "auto, a name (H100), a name and a number (H100:4) or a range (H100:1..8, auto:1..8), "
    f"1 to {MAX_GPUS} GPUs"
)
# Known names get the spelling that clouds use; other names stay as they are written.
_KNOWN = """
    A10 A10G A100 A100-80GB A40 A6000 B200 B300 GB200 GB300 GH200 H100 H100-SXM H200 L4 L40 L40S
    MI300X P100 RTX3090 RTX4090 RTX5090 RTX6000-Ada T4 V100 V100-32GB
""".split()  # noqa: SIM905 - words are easier to read than a list of them
_SPELLING = {name.casefold(): name for name in _KNOWN}
_NAME = r"[A-Za-z][A-Za-z0-9._-]{0,62}"
_TEXT = re.compile(rf"({_NAME})(?: *: *(.+))?")
_COUNT = re.compile(r"([0-9]{1,9})(?: *(\.\.) *([0-9]{1,9})?)?")


class Accelerators(msgspec.Struct, frozen=True):
    """A GPU name and how many a job can use.

    ``name`` None means any GPU; ``most`` None means as many as make the job faster.
    """

    name: str | None = None
    least: int = 1
    most: int | None = None

    def __str__(self) -> str:
        name = self.name or AUTO
        if self.least == self.most:
            return f"{name}:{self.least}"
        if self.most is None:
            return name if self.least == 1 else f"{name}:{self.least}.."
        return f"{name}:{self.least}..{self.most}"


def parse_accelerators(value: object) -> Accelerators:
    """Return the GPUs that a spec asks for; refuses more than one kind."""
    if isinstance(value, Accelerators):
        value = str(value)
    count: object = None
    if isinstance(value, str):
        found = _TEXT.fullmatch(value.strip())
        if found is None:
            raise refusal(ALLOWED)
        name, count = found[1], found[2]
    elif isinstance(value, dict) and len(value) == 1:
        ((key, count),) = value.items()
        if not isinstance(key, str) or re.fullmatch(_NAME, key) is None or count is None:
            raise refusal(ALLOWED)
        name = key
    elif isinstance(value, (dict, list, tuple)) and len(value) > 1:
        raise refusal(f"{ALLOWED}; only one kind, because all GPUs of a job must be the same")
    else:
        raise refusal(ALLOWED)
    least, most = (1, None) if count is None else _range(count)
    if name.casefold() == AUTO:
        return Accelerators(None, least, most)
    return Accelerators(_SPELLING.get(name.casefold(), name), least, most)


def _range(count: object) -> tuple[int, int | None]:
    """Return the least and most GPUs of ``4``, ``1..8`` or ``2..``."""
    if isinstance(count, bool) or not isinstance(count, (int, str)):
        raise refusal(ALLOWED)
    found = _COUNT.fullmatch(str(count).strip())
    if found is None:
        raise refusal(ALLOWED)
    least = int(found[1])
    if found[3] is not None:
        most: int | None = int(found[3])
    else:
        most = None if found[2] else least
    if not 1 <= least <= (most or MAX_GPUS) <= MAX_GPUS:
        raise refusal(ALLOWED)
    return least, most


AcceleratorChoice = Annotated[
    Accelerators,
    PlainValidator(parse_accelerators),
    PlainSerializer(str, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "examples": ["auto", "H100", "H100:4", "H100:1..8"]},
                {
                    "type": "object",
                    "minProperties": 1,
                    "maxProperties": 1,
                    "additionalProperties": {"type": ["integer", "string"]},
                },
            ]
        }
    ),
]

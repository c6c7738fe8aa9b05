"""The values of a spec as people write them: durations, deadlines, dollars, GPUs, files and names.

``parse_...`` reads a value and raises a refusal that says what is allowed; ``written_...`` writes
it back in a form that parses to the same value.
"""

from __future__ import annotations

import math
import os
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from duetune.core.job import MAX_GPUS
from duetune.jobs.spec.problems import refusal

LONGEST = timedelta(days=366)
DURATION = "a duration such as 8h, 90m or 2d4h, above zero and at most 366d"
INTERVAL = f"auto, or {DURATION}"
DEADLINE = (
    "a duration such as 8h, 90m or 2d4h, at most 366d, or a moment such as 2026-11-20 18:00 "
    "(local time) or 2026-11-20T18:00Z"
)

_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)"
_SHORT = re.compile(
    rf"(?:{_NUMBER} *w)? *(?:{_NUMBER} *d)? *(?:{_NUMBER} *h)? *(?:{_NUMBER} *m(?:in)?)?"
    rf" *(?:{_NUMBER} *s)?",
    re.IGNORECASE | re.ASCII,
)
_ISO = re.compile(
    rf"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?=[0-9])(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?"
)
_CLOCK = re.compile(r"[0-9]+(?::[0-9]+)+")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]+[0-9]{2}:[0-9]{2}")
_LONGEST_TEXT = 80
_UNITS = (("d", 86_400), ("h", 3600), ("m", 60))


def parse_duration(value: object) -> timedelta:
    """Return the duration that was written, such as ``8h``, ``2d4h`` or ``PT8H``."""
    return _parse(value, DURATION)


def parse_deadline(value: object) -> timedelta | datetime:
    """Return a duration, which counts from submission, or a moment. A moment without a time zone is
    local time.
    """
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.astimezone()
    if isinstance(value, str) and _DATE.match(value.strip()):
        return _moment(value.strip())
    return _parse(value, DEADLINE)


def parse_interval(value: object) -> timedelta | Literal["auto"]:
    """Return a duration, or "auto"."""
    return "auto" if value == "auto" else _parse(value, INTERVAL)


def written_duration(duration: timedelta) -> str:
    """Return text that ``parse_duration`` reads back to the same duration."""
    seconds, rest = divmod(duration, timedelta(seconds=1))
    text = ""
    for unit, length in _UNITS:
        count, seconds = divmod(seconds, length)
        text += f"{count}{unit}" if count else ""
    if rest:
        fraction = f"{rest // timedelta(microseconds=1):06d}".rstrip("0")
        return f"{text}{seconds}.{fraction}s"
    return f"{text}{seconds}s" if seconds or not text else text


def written_deadline(deadline: timedelta | datetime) -> str:
    """Return text that ``parse_deadline`` reads back to the same deadline."""
    if isinstance(deadline, timedelta):
        return written_duration(deadline)
    return deadline.isoformat(timespec="auto")


def written_interval(interval: timedelta | Literal["auto"]) -> str:
    """Return text that ``parse_interval`` reads back to the same interval."""
    return "auto" if interval == "auto" else written_duration(interval)


def _parse(value: object, allowed: str) -> timedelta:
    if isinstance(value, timedelta):
        duration: timedelta | None = value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        raise refusal(f"{allowed}; a number needs a unit: write {value:g}h for {value:g} hours")
    elif isinstance(value, str) and _CLOCK.fullmatch(value.strip()):
        raise refusal(f"{allowed}; write hours and minutes as 1h30m")
    else:
        duration = _read(value.strip()) if isinstance(value, str) else None
    if duration is None or not timedelta(0) < duration <= LONGEST:
        raise refusal(allowed)
    return duration


def _read(text: str) -> timedelta | None:
    if len(text) > _LONGEST_TEXT:
        return None
    found = (_SHORT.fullmatch(text) if text else None) or _ISO.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    weeks, days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    try:
        return timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        return None


def _moment(text: str) -> datetime:
    if not _MOMENT.match(text):
        raise refusal(f"{DEADLINE}; a date needs a time of day")
    try:
        moment = datetime.fromisoformat(re.sub(r"\s*UTC$", "Z", text))
        return moment if moment.tzinfo is not None else moment.astimezone()
    except (ValueError, OverflowError) as error:
        raise refusal(f"{DEADLINE} ({error})") from None


Duration = Annotated[
    timedelta,
    PlainValidator(parse_duration),
    PlainSerializer(written_duration, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["8h", "90m", "2d4h", "PT8H"]}),
]
Interval = Annotated[
    timedelta | Literal["auto"],
    PlainValidator(parse_interval),
    PlainSerializer(written_interval, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["auto", "10m"]}),
]
Deadline = Annotated[
    timedelta | datetime,
    PlainValidator(parse_deadline),
    PlainSerializer(written_deadline, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["8h", "2d4h", "2026-11-20T18:00Z"]}),
]


_DOLLARS = re.compile(
    r"\$ *([0-9]{1,12}|[0-9]{1,3}(?:,[0-9]{3}){1,3})(\.[0-9]{1,9})?|([0-9]{1,12}(?:\.[0-9]{1,9})?)"
)
_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "examples": ["$20"]}]}
)
MOST = 1e12


def _dollars(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value) if abs(value) <= MOST else None
    found = _DOLLARS.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    return float(found[3] or (found[1].replace(",", "") + (found[2] or "")))


def _some(value: object) -> float:
    amount = _dollars(value)
    if amount is None or not (math.isfinite(amount) and amount > 0):
        raise refusal("dollars above zero, such as 20 or $20")
    return amount


def _none_or_some(value: object) -> float:
    amount = _dollars(value)
    if amount is None or not (math.isfinite(amount) and amount >= 0):
        raise refusal("dollars, zero or more, such as 20 or $20")
    return amount


PositiveDollars = Annotated[float, PlainValidator(_some), _SCHEMA]
Dollars = Annotated[float, PlainValidator(_none_or_some), _SCHEMA]


AUTO = "auto"
ACCELERATORS = (
    "auto, a name (H100), a name and a number (H100:4) or a range (H100:1..8, auto:1..8), "
    f"1 to {MAX_GPUS} GPUs"
)
# Known names get the spelling that clouds use; other names stay as they are written.
_KNOWN_GPUS = """
    A10 A10G A100 A100-80GB A40 A6000 B200 B300 GB200 GB300 GH200 H100 H100-SXM H200 L4 L40 L40S
    MI300X P100 RTX3090 RTX4090 RTX5090 RTX6000-Ada T4 V100 V100-32GB
""".split()  # noqa: SIM905 - words are easier to read than a list of them
_GPU_SPELLING = {name.casefold(): name for name in _KNOWN_GPUS}
_GPU_NAME = r"[A-Za-z][A-Za-z0-9._-]{0,62}"
_GPUS = re.compile(rf"({_GPU_NAME})(?: *: *(.+))?")
_GPU_COUNT = re.compile(r"([0-9]{1,9})(?: *(\.\.) *([0-9]{1,9})?)?")


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
        found = _GPUS.fullmatch(value.strip())
        if found is None:
            raise refusal(ACCELERATORS)
        name, count = found[1], found[2]
    elif isinstance(value, dict) and len(value) == 1:
        ((key, count),) = value.items()
        if not isinstance(key, str) or re.fullmatch(_GPU_NAME, key) is None or count is None:
            raise refusal(ACCELERATORS)
        name = key
    elif isinstance(value, (dict, list, tuple)) and len(value) > 1:
        raise refusal(f"{ACCELERATORS}; only one kind, because all GPUs of a job must be the same")
    else:
        raise refusal(ACCELERATORS)
    least, most = (1, None) if count is None else _range(count)
    if name.casefold() == AUTO:
        return Accelerators(None, least, most)
    return Accelerators(_GPU_SPELLING.get(name.casefold(), name), least, most)


def _range(count: object) -> tuple[int, int | None]:
    """Return the least and most GPUs of ``4``, ``1..8`` or ``2..``."""
    if isinstance(count, bool) or not isinstance(count, (int, str)):
        raise refusal(ACCELERATORS)
    found = _GPU_COUNT.fullmatch(str(count).strip())
    if found is None:
        raise refusal(ACCELERATORS)
    least = int(found[1])
    if found[3] is not None:
        most: int | None = int(found[3])
    else:
        most = None if found[2] else least
    if not 1 <= least <= (most or MAX_GPUS) <= MAX_GPUS:
        raise refusal(ACCELERATORS)
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


MODEL = "a folder, or a name on the Hugging Face hub such as Qwen/Qwen3-0.6B"
DATASET = "a file or folder, or a name on the Hugging Face hub such as trl-lib/Capybara"
PATH = "a path"

HUB_NAME = r"^(?:[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/)?[A-Za-z0-9][A-Za-z0-9_.-]{0,95}$"
_HUB = re.compile(HUB_NAME)
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

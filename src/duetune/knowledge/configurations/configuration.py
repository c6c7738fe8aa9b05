"""A configuration: everything about a fine-tuning run that decides whether it fits and how fast.

``Configuration`` is one; ``Configurations`` are many, column by column, so that whole spaces can be
scored at once.
"""

from __future__ import annotations

import functools
import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray


class Method(StrEnum):
    """What is trained. ``qlora`` and ``gptq-lora`` keep the frozen weights in four bits."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"
    GPTQ_LORA = "gptq-lora"
    PROMPT = "pt"


class Precision(StrEnum):
    """What the model's weights are kept in and computed with: 16 bits, 32 bits, or (``*-mixed``)
    kept in 32 and computed with in 16. Adapters are always kept in 32 bits.
    """

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    BF16_MIXED = "bf16-mixed"
    FP16_MIXED = "fp16-mixed"


class Sharding(StrEnum):
    """How several GPUs share the state: each has all of it (ddp), or a part."""

    NONE = "none"
    DDP = "ddp"
    FSDP = "fsdp"
    FSDP_GRAD_OP = "fsdp-grad-op"
    HYBRID = "hybrid"


class Optimiser(StrEnum):
    ADAMW = "adamw"
    ADAMW_8BIT = "adamw-8bit"
    PAGED_ADAMW = "paged-adamw"
    ADAFACTOR = "adafactor"
    SGD = "sgd"


class Attention(StrEnum):
    """``sdpa`` is torch's own, which keeps no matrix of scores where its kernels allow that."""

    FLASH = "flash"
    SDPA = "sdpa"
    EAGER = "eager"


class Interconnect(StrEnum):
    """The slowest link between the GPUs of a run; ``auto`` is what the GPU's data sheet says."""

    AUTO = "auto"
    NVLINK = "nvlink"
    PCIE = "pcie"
    ROCE = "roce"
    TCP = "tcp"


Value = str | bool | int | float
LORA_TARGETS = ("attention", "all-linear")


class Configuration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to fine-tune.

    ``batch_size`` is sequences per micro-step over all GPUs together, ``tokens_per_sample`` tokens
    of each sequence. ``gpu_model`` is a name of ``gpus.GPUS``; ``memory_cap_gb`` is for a GPU of
    which only so much may be used (0: all). ``lora_targets`` are "attention" or "all-linear".
    ``fast_moe`` is the expert-parallel degree (0: off), ``software`` what ran it, with version.
    """

    model: str
    method: Method = Method.LORA
    gpu_model: str
    num_gpus: int = 1
    batch_size: int = 1
    tokens_per_sample: int = 1024
    num_nodes: int = 1
    grad_accum: int = 1
    precision: Precision = Precision.BF16
    sharding: Sharding = Sharding.NONE
    grad_checkpoint: bool = True
    lora_rank: int = 8
    lora_targets: str = "attention"
    optimiser: Optimiser = Optimiser.ADAMW
    attention: Attention = Attention.SDPA
    fast_kernels: bool = False
    fast_moe: int = 0
    interconnect: Interconnect = Interconnect.AUTO
    memory_cap_gb: float = 0.0
    software: str = ""

    def __post_init__(self) -> None:
        for field, words in _WORDS.items():
            if getattr(self, field) not in words:
                allowed = f"one of {', '.join(words)}"
                raise InvalidInput(field, getattr(self, field), allowed)
        for field in _NUMBERS:
            if not isinstance(getattr(self, field), int | float):
                raise InvalidInput(field, getattr(self, field), "a number")

    @property
    def key(self) -> str:
        """The same for the same configuration, in every process and version of Python."""
        text = msgspec.json.encode(self, order="sorted")
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    def replace(self, **changes: object) -> Configuration:
        return msgspec.convert({**msgspec.structs.asdict(self), **changes}, Configuration)


FIELDS: tuple[str, ...] = Configuration.__struct_fields__
"""In the order of the record."""

CATEGORIES: frozenset[str] = frozenset(
    (
        *("model", "method", "gpu_model", "precision", "sharding", "lora_targets", "optimiser"),
        *("attention", "interconnect", "software"),
    )
)
"""Fields that are words; all others are numbers."""

_FLAGS = frozenset(("grad_checkpoint", "fast_kernels"))
_NUMBERS = tuple(field for field in FIELDS if field not in CATEGORIES)

_FIELDS = {field.name: field for field in msgspec.structs.fields(Configuration)}
ENUMERATED: dict[str, tuple[str, ...]] = {
    name: tuple(field.type) for name, field in _FIELDS.items() if issubclass(field.type, StrEnum)
}
"""Fields whose words are fixed, with these words."""

_WORDS = {**ENUMERATED, "lora_targets": LORA_TARGETS}
DEFAULTS: dict[str, Value] = {
    name: field.default for name, field in _FIELDS.items() if field.default is not msgspec.NODEFAULT
}
"""The values of fields that need not be given."""


def plain_number(field: str, number: float) -> Value:
    """A number of a column as the record has it: a flag, a whole number or (a cap) a float."""
    if field in _FLAGS:
        return bool(number)
    return float(number) if field == "memory_cap_gb" else int(number)


class Configurations:
    """Many configurations, column by column: numbers as they are, words as codes into labels."""

    def __init__(
        self,
        columns: Mapping[str, NDArray[np.float64] | NDArray[np.int64]],
        labels: Mapping[str, Sequence[str]],
    ) -> None:
        self.columns = dict(columns)
        self.labels = {field: tuple(words) for field, words in labels.items()}
        self._size = len(next(iter(self.columns.values()))) if self.columns else 0
        self._distinct: dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]] = {}

    @classmethod
    def of(cls, configurations: Iterable[Configuration]) -> Configurations:
        rows = list(configurations)
        columns: dict[str, NDArray[np.float64] | NDArray[np.int64]] = {}
        labels: dict[str, tuple[str, ...]] = {}
        for field in FIELDS:
            values = [getattr(row, field) for row in rows]
            if field in CATEGORIES:
                words = tuple(sorted({str(value) for value in values}))
                code = {word: index for index, word in enumerate(words)}
                labels[field] = words
                columns[field] = np.array([code[str(value)] for value in values], np.int64)
            else:
                columns[field] = np.array(values, np.float64)
        return cls(columns, labels)

    @classmethod
    def grid(cls, domains: Mapping[str, Sequence[object]]) -> Configurations:
        """The product of the values of each field; fields that are not named take their default.
        The last field named varies fastest.
        """
        missing = [field for field in ("model", "gpu_model") if field not in domains]
        if missing:
            raise InvalidInput(missing[0], None, "one or more values")
        unknown = [field for field in domains if field not in FIELDS]
        if unknown:
            raise InvalidInput("field", unknown[0], f"one of {', '.join(FIELDS)}")
        sizes = [len(values) for values in domains.values()]
        total = int(np.prod(sizes, dtype=np.int64)) if sizes else 0
        columns: dict[str, NDArray[np.float64] | NDArray[np.int64]] = {}
        labels: dict[str, tuple[str, ...]] = {}
        repeat = total
        for field, values in domains.items():
            repeat = repeat // len(values) if values else 0
            tiles = total // (repeat * len(values)) if repeat else 0
            index = np.tile(np.repeat(np.arange(len(values)), repeat), tiles)
            _put(field, values, index, columns, labels)
        for field in FIELDS:
            if field not in columns:
                _put(field, [DEFAULTS[field]], np.zeros(total, np.int64), columns, labels)
        return cls({field: columns[field] for field in FIELDS}, labels)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Configuration:
        values: dict[str, object] = {}
        for field in FIELDS:
            value = self.columns[field][index]
            if field in CATEGORIES:
                values[field] = self.labels[field][int(value)]
            else:
                values[field] = plain_number(field, value)
        return msgspec.convert(values, Configuration)

    def __iter__(self) -> Iterator[Configuration]:
        return (self[index] for index in range(len(self)))

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Configurations:
        columns = {field: column[index] for field, column in self.columns.items()}
        taken = Configurations(columns, self.labels)
        taken._size = len(next(iter(columns.values())))
        return taken

    def number(self, field: str) -> NDArray[np.float64]:
        return self.columns[field].astype(np.float64, copy=False)

    def gather(self, field: str, value_of: Callable[[str], float]) -> NDArray[np.float64]:
        """A number for every word of ``field``; each word is asked for once."""
        values = np.array([value_of(word) for word in self.labels[field]], np.float64)
        return values[self.columns[field]] if len(values) else np.zeros(0)

    def distinct(self, field: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The values of a field of numbers, and which of them each row has; sorted once."""
        if field not in self._distinct:
            values, codes = np.unique(self.number(field), return_inverse=True)
            self._distinct[field] = (values, codes)
        return self._distinct[field]

    def words(self, field: str) -> list[str]:
        labels = self.labels[field]
        return [labels[int(code)] for code in self.columns[field]]

    def is_(self, field: str, *words: str) -> NDArray[np.bool_]:
        """Where ``field`` is one of ``words``."""
        return self.gather(field, lambda word: word in words) > 0

    @functools.cached_property
    def per_gpu_batch(self) -> NDArray[np.float64]:
        return self.number("batch_size") / self.number("num_gpus")

    @functools.cached_property
    def per_gpu_tokens(self) -> NDArray[np.float64]:
        """Of one GPU in one micro-step."""
        return self.per_gpu_batch * self.number("tokens_per_sample")


def _put(
    field: str,
    values: Sequence[object],
    index: NDArray[np.int64],
    columns: dict[str, NDArray[np.float64] | NDArray[np.int64]],
    labels: dict[str, tuple[str, ...]],
) -> None:
    if field in CATEGORIES:
        labels[field] = tuple(str(value) for value in values)
        columns[field] = index
    else:
        columns[field] = np.array(values, np.float64)[index]

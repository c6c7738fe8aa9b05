"""A configuration: everything about a fine-tuning run that decides whether it fits and how fast it
is.

``Configuration`` is one of them. ``Configurations`` is a table with one column per field, so that
whole spaces can be scored at once. Sizes of models and GPUs are not here: see
``configuration_table``.
"""

from __future__ import annotations

import functools
import hashlib
import math
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.lora_targets import LORA_TARGETS, is_lora_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray


class Method(StrEnum):
    """Which weights are trained. ``qlora`` and ``gptq-lora`` keep the frozen weights in 4 bits."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"
    GPTQ_LORA = "gptq-lora"
    PROMPT = "pt"


class Precision(StrEnum):
    """Number format of the model's weights.

    ``bf16``, ``fp16`` and ``fp32`` are used for storage and for computing. The mixed ones store 32
    bits and compute in 16. Adapters are always stored in 32 bits.
    """

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    BF16_MIXED = "bf16-mixed"
    FP16_MIXED = "fp16-mixed"


class Sharding(StrEnum):
    """How several GPUs share the training state: each holds all of it (ddp), or a part of it
    (fsdp).
    """

    NONE = "none"
    DDP = "ddp"
    FSDP = "fsdp"
    FSDP_GRAD_OP = "fsdp-grad-op"
    HYBRID = "hybrid"


class Optimiser(StrEnum):
    """The optimiser, which decides how many bytes of state each trained parameter needs."""

    ADAMW = "adamw"
    ADAMW_8BIT = "adamw-8bit"
    PAGED_ADAMW = "paged-adamw"
    PAGED_ADAMW_8BIT = "paged-adamw-8bit"
    ADAFACTOR = "adafactor"
    SGD = "sgd"
    LION = "lion"
    LION_8BIT = "lion-8bit"


class Attention(StrEnum):
    """The attention kernel. ``sdpa`` is torch's own and keeps no score matrix where its kernels
    allow it. ``varlen`` is torch's kernel for rows that lie end to end.
    """

    FLASH = "flash"
    VARLEN = "varlen"
    SDPA = "sdpa"
    EAGER = "eager"


class Interconnect(StrEnum):
    """The slowest link between the GPUs of a run; ``auto`` is the link of the GPU's data sheet."""

    AUTO = "auto"
    NVLINK = "nvlink"
    PCIE = "pcie"
    ROCE = "roce"
    TCP = "tcp"


Value = str | bool | int | float


class Configuration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to fine-tune a model.

    - ``batch_size``: sequences per micro-step, over all GPUs together. With packed rows, one per
      GPU.
    - ``tokens_per_sample``: tokens of each sequence, padding included. With packed rows, their mean
      length.
    - ``tokens_per_microbatch``: tokens of one GPU in a micro-step whose rows are packed end to end
      (0: rows are padded).
    - ``longest_sample``: tokens of the longest packed row (0: all rows are equally long).
    - ``gpu_model``: a name of ``gpus.GPUS``.
    - ``memory_cap_gb``: usable memory of the GPU, if less than all of it (0: all).
    - ``lora_targets``: "attention", "all-linear", or names of layers joined by "+".
    - ``fast_kernels``: whether fused kernels such as Liger's are used.
    - ``fast_moe``: expert-parallel degree (0: off).
    - ``software``: the packages that ran it, with versions.
    """

    model: str
    method: Method = Method.LORA
    gpu_model: str
    num_gpus: int = 1
    batch_size: int = 1
    tokens_per_sample: int = 1024
    tokens_per_microbatch: int = 0
    longest_sample: int = 0
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
        for field, words in ENUMERATED.items():
            if getattr(self, field) not in words:
                allowed = f"one of {', '.join(words)}"
                raise InvalidInput(field, getattr(self, field), allowed)
        if not is_lora_targets(self.lora_targets):
            allowed = f"{', '.join(LORA_TARGETS)}, or names of layers in order, as q_proj+v_proj"
            raise InvalidInput("lora_targets", self.lora_targets, allowed)
        for field in _NUMBERS:
            if not isinstance(getattr(self, field), int | float):
                raise InvalidInput(field, getattr(self, field), "a number")

    @property
    def key(self) -> str:
        """Return an identifier that is the same for equal configurations, in every process."""
        text = msgspec.json.encode(self.told, order="sorted")
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    @property
    def packed(self) -> bool:
        """Return whether rows lie end to end, without padding."""
        return self.tokens_per_microbatch > 0

    @property
    def told(self) -> dict[str, Value]:
        """Return the fields from which keys are made. Keys of configurations from before a field
        was added must not change, so such a field is left out where it has its default.
        """
        values: dict[str, Value] = msgspec.to_builtins(self)
        return {
            field: value
            for field, value in values.items()
            if field not in ADDED or value != DEFAULTS[field]
        }

    def replace(self, **changes: object) -> Configuration:
        """Return a copy with other values, checked as if they came from a file."""
        return msgspec.convert({**msgspec.structs.asdict(self), **changes}, Configuration)


FIELDS: tuple[str, ...] = Configuration.__struct_fields__
"""Names of all fields, in the order of the record."""

CATEGORIES: frozenset[str] = frozenset(
    (
        *("model", "method", "gpu_model", "precision", "sharding", "lora_targets", "optimiser"),
        *("attention", "interconnect", "software"),
    )
)
"""Fields that hold words; all others hold numbers."""

_FLAGS = frozenset(("grad_checkpoint", "fast_kernels"))
_NUMBERS = tuple(field for field in FIELDS if field not in CATEGORIES)

_FIELDS = {field.name: field for field in msgspec.structs.fields(Configuration)}
ENUMERATED: dict[str, tuple[str, ...]] = {
    name: tuple(field.type) for name, field in _FIELDS.items() if issubclass(field.type, StrEnum)
}
"""The allowed words of each field that has a fixed list of them."""

DEFAULTS: dict[str, Value] = {
    name: field.default for name, field in _FIELDS.items() if field.default is not msgspec.NODEFAULT
}
"""The default of each field that has one."""

SPREAD = 0.8
"""Usual standard deviation of the logarithm of the lengths of a dataset's rows."""

ADDED = ("tokens_per_microbatch", "longest_sample")
"""Fields that older records do not have."""


def plain_number(field: str, number: float) -> Value:
    """Return a number of a column as the record stores it: a flag, a whole number or a float (the
    cap).
    """
    if field in _FLAGS:
        return bool(number)
    return float(number) if field == "memory_cap_gb" else int(number)


class Configurations:
    """Many configurations as columns: numbers as they are, words as codes into ``labels``."""

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
        """Return a table of these configurations, in their order."""
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
        """Return the product of the values of each field.

        Fields that are not named take their default. The last named field varies fastest.
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
        """Return the rows of an index or a mask; labels are shared, not copied."""
        columns = {field: column[index] for field, column in self.columns.items()}
        taken = Configurations(columns, self.labels)
        taken._size = len(next(iter(columns.values())))
        return taken

    def number(self, field: str) -> NDArray[np.float64]:
        """Return the column of a number field as floats."""
        return self.columns[field].astype(np.float64, copy=False)

    def gather(self, field: str, value_of: Callable[[str], float]) -> NDArray[np.float64]:
        """Return a number for every row, by its word in ``field``; ``value_of`` is called once per
        word.
        """
        values = np.array([value_of(word) for word in self.labels[field]], np.float64)
        return values[self.columns[field]] if len(values) else np.zeros(0)

    def coded(self, field: str) -> tuple[NDArray[np.int64], list[str]]:
        """Return a code for each row, and the word of each code; ``field`` is any field or
        ``packed``.
        """
        if field in self.labels:
            return self.columns[field].astype(np.int64), list(self.labels[field])
        values, codes = self.distinct(field)
        return codes, [f"{value:g}" for value in values.tolist()]

    def distinct(self, field: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the sorted values of a number field or of ``packed``, and for each row which of
        them it has; cached.
        """
        if field not in self._distinct:
            column = 1.0 * self.packed if field == "packed" else self.number(field)
            values, codes = np.unique(column, return_inverse=True)
            self._distinct[field] = (values, codes)
        return self._distinct[field]

    def words(self, field: str) -> list[str]:
        """Return the word of every row in a word field."""
        labels = self.labels[field]
        return [labels[int(code)] for code in self.columns[field]]

    def is_(self, field: str, *words: str) -> NDArray[np.bool_]:
        """Return a mask of the rows where ``field`` is one of ``words``."""
        return self.gather(field, lambda word: word in words) > 0

    @functools.cached_property
    def per_gpu_batch(self) -> NDArray[np.float64]:
        """Return the sequences of one GPU in one micro-step."""
        return self.number("batch_size") / self.number("num_gpus")

    @functools.cached_property
    def per_gpu_tokens(self) -> NDArray[np.float64]:
        """Return the tokens of one GPU in one micro-step."""
        padded = self.per_gpu_batch * self.number("tokens_per_sample")
        return np.where(self.packed, self.number("tokens_per_microbatch"), padded)

    @functools.cached_property
    def samples(self) -> NDArray[np.float64]:
        """Return the rows of one micro-step over all GPUs; for packed rows, the usual number."""
        packed = self.per_gpu_tokens * self.number("num_gpus") / self.number("tokens_per_sample")
        return np.where(self.packed, packed, self.number("batch_size"))

    @functools.cached_property
    def packed(self) -> NDArray[np.bool_]:
        """Return where rows lie end to end, without padding."""
        return self.number("tokens_per_microbatch") > 0

    @functools.cached_property
    def span(self) -> NDArray[np.float64]:
        """Return the length that attention sees: the mean over tokens of the length of their row.

        Lengths of packed rows are taken to be log-normal, as ``SPREAD`` says, and cut at the
        longest.
        """
        mean = self.number("tokens_per_sample")
        varied = self.packed & (self.number("longest_sample") > mean)
        seen = np.minimum(mean * math.exp(SPREAD**2), self.number("longest_sample"))
        return np.where(varied, np.maximum(seen, mean), mean)


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

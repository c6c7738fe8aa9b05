"""Import the reference benchmarks of fms-acceleration, measured on A100 GPUs with 80 GB.

Tokens per second are published per process and samples per second for all together. So the
throughput is tokens times GPUs, and the sequence length follows from the two: a power of two for
packed sequences, else the mean length of a sample. A row without a result is FAILED. The source
does not say whether memory ran out, although most runs had used nearly all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.interop.import_runs.vocabulary import MIXED, known_gpu, precision_named, rank_of
from duetune.knowledge.configurations.configuration import (
    Attention,
    Configuration,
    Method,
    Precision,
    Sharding,
)
from duetune.knowledge.facts.gpus import MIB
from duetune.knowledge.facts.model_registry import model_name
from duetune.knowledge.history import History
from duetune.knowledge.model.quality import noted
from duetune.knowledge.observation import Observation, Origin, RunOutcome
from duetune.knowledge.text_tables import ImportedRuns

if TYPE_CHECKING:
    from duetune.knowledge.text_tables import Table, TableRow

COLUMNS = frozenset(
    (
        *("framework_config", "model_name_or_path", "num_gpus", "per_device_train_batch_size"),
        *("train_tokens_per_second", "train_samples_per_second"),
    )
)
"""The columns by which such a table is recognised."""

PACKED = 4096
"""Tokens of a packed sequence: the scenarios with packing have no other."""

_SAID_ELSEWHERE = ("baseline", "liger", "padding-free", "multipack")


def fms_acceleration_history(table: Table) -> ImportedRuns:
    """Return the observations of such a table, and the rows left out."""
    history, left_out = table.observed(_observation)
    return ImportedRuns(History(noted(list(history))), left_out)


def _observation(row: TableRow) -> Observation:
    """Return the observation of one row."""
    gpus = row.whole("num_gpus")
    per_process = row.number_of("train_tokens_per_second")
    reserved_mib = row.number_of("mem_nvidia_mem_reserved")
    allocated = row.number_of("mem_peak_torch_mem_alloc_in_bytes")
    peak_gb = reserved_mib * MIB / 1e9 if reserved_mib else (allocated or 0.0) / 1e9
    ran = per_process is not None
    return Observation(
        configuration=_configuration(row, gpus),
        outcome=RunOutcome.VALID if ran else RunOutcome.FAILED,
        tokens_per_s=per_process * gpus if per_process is not None else None,
        peak_memory_gb=peak_gb or None if ran else None,
        runtime_s=row.number_of("train_runtime"),
        origin=Origin.IMPORT,
        provenance=row.provenance,
        protocol=row.text("source_file"),
        error="" if ran else f"no result; {peak_gb:.1f} GB were taken",
    )


def _configuration(row: TableRow, gpus: int) -> Configuration:
    """Return the configuration of one row."""
    framework = row.text("framework_config", "none")
    per_gpu = row.whole("per_device_train_batch_size")
    extras = [word for word in _SAID_ELSEWHERE if word in framework]
    expert_parallel = framework.partition("-ep")[2].partition("-")[0]
    method = _method(row, framework)
    return Configuration(
        model=model_name(row.needed("model_name_or_path")),
        method=method,
        gpu_model=known_gpu("gpu_model", row.text("gpu_model", "A100-80GB")),
        num_gpus=gpus,
        batch_size=per_gpu * gpus,
        tokens_per_sample=_sequence(row, gpus),
        grad_accum=_accumulation(row, per_gpu * gpus),
        precision=_precision(row, method, gpus),
        sharding=Sharding.FSDP if gpus > 1 else Sharding.NONE,
        lora_rank=rank_of(method, row.whole("r", 16)),
        attention=Attention.FLASH,
        fast_kernels="foak" in framework,
        fast_moe=int(expert_parallel) if expert_parallel.isdecimal() else 0,
        software=" ".join(["fms-acceleration", *extras]),
    )


def _method(row: TableRow, framework: str) -> Method:
    """Return the training method, from the adapter column and the framework's name."""
    if not row.has("peft_method"):
        return Method.FULL
    if "autogptq" in framework:
        return Method.GPTQ_LORA
    return Method.QLORA if "bnb" in framework else Method.LORA


def _precision(row: TableRow, method: Method, gpus: int) -> Precision:
    """Return how weights were stored. With mixed precision FSDP keeps trained weights in 32 bits;
    one GPU trains them as they were loaded.
    """
    plain = precision_named("torch_dtype", row.text("torch_dtype", "bfloat16"))
    asked = row.flag("bf16") or row.flag("fp16")
    return MIXED.get(plain, plain) if asked and gpus > 1 and method is Method.FULL else plain


def _sequence(row: TableRow, gpus: int) -> int:
    """Return the tokens of a sample."""
    tokens = row.number_of("train_tokens_per_second")
    samples = row.number_of("train_samples_per_second")
    if not tokens or not samples:
        return _packed_sequence(row)
    mean = tokens * gpus / samples
    power = 2 ** round(mean).bit_length()
    near = min((power, power // 2), key=lambda each: abs(each - mean))
    return near if abs(near - mean) <= 0.02 * mean else round(mean)


def _packed_sequence(row: TableRow) -> int:
    """Return the length of packed sequences; refuses a row without packing."""
    source = row.text("source_file")
    if source.startswith("refs/") and "moe" not in source:
        return PACKED
    raise InvalidInput(
        "train_tokens_per_second",
        None,
        "a number: of runs without packing only it tells the length",
    )


def _accumulation(row: TableRow, batch_size: int) -> int:
    """Return the microbatches per step, computed from the rates if not recorded."""
    samples = row.number_of("train_samples_per_second")
    steps = row.number_of("train_steps_per_second")
    if row.has("gradient_accumulation_steps") or not samples or not steps or not batch_size:
        return row.whole("gradient_accumulation_steps", 1)
    return max(1, round(samples / steps / batch_size))

"""Import IBM's measurements of fms-hf-tuning: LLMFineTuningBench as published, and extracts of it.

What the columns leave out is as the measuring project (IBM/ado, actuator SFTTrainer) documents it:
flash attention, checkpointing, no packing, 4 accumulation steps, adapters of rank 4, FSDP for
several GPUs. Other values are read from ``identifier`` and ``experiment_id``, which join
``key.value`` pairs by hyphens. A run without throughput that breaks no rule ran out of memory or
accessed memory illegally; other failures have no row, or no ``is_valid``.

``train_tokens_per_second`` is never read: it is wrong for runs that were stopped early.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from duetune.interop.import_runs.tracked_run import moment_of
from duetune.interop.import_runs.vocabulary import (
    MIXED,
    known_gpu,
    method_named,
    optimiser_named,
    precision_named,
    rank_of,
    sharding_named,
)
from duetune.knowledge.configurations.configuration import (
    Attention,
    Configuration,
    Interconnect,
    Method,
    Optimiser,
    Precision,
    Sharding,
)
from duetune.knowledge.configurations.configuration_rules import RULES, broken
from duetune.knowledge.facts.gpus import GPUS, MIB
from duetune.knowledge.facts.model_registry import model_name
from duetune.knowledge.history import History
from duetune.knowledge.model.quality import STOPPED_EARLY, noted
from duetune.knowledge.observation import Observation, Origin, RunOutcome
from duetune.knowledge.text_tables import ImportedRuns

if TYPE_CHECKING:
    from duetune.knowledge.text_tables import Table, TableRow

COLUMNS = frozenset(
    (
        *("model_name", "method", "gpu_model", "number_gpus", "tokens_per_sample", "batch_size"),
        "dataset_tokens_per_second",
    )
)
"""The columns by which such a table is recognised."""

_SETTINGS = re.compile(
    r"(?:^|-)(gradient_accumulation_steps|gradient_checkpointing_use_reentrant|optim|r"
    r"|stop_after_seconds|auto_stop_method|fsdp_sharding_strategy|distributed_backend"
    r"|accelerate_config_mixed_precision)\.([^-]*)"
)
_ACCUMULATION = re.compile(r"_ga(\d+)")
_UNTOLD = "out of memory, or an illegal memory access: the data does not say which"


def sft_trainer_history(table: Table) -> ImportedRuns:
    """Return the observations of such a table, and the rows left out."""
    history, left_out = table.observed(_observation)
    rule = broken(history.configurations)
    settled = [
        _rejected(each, str(RULES[index]))
        if index >= 0 and each.outcome is RunOutcome.OOM
        else each
        for each, index in zip(history, rule.tolist(), strict=True)
    ]
    return ImportedRuns(History(noted(settled)), left_out)


def _observation(row: TableRow) -> Observation:
    """Return the observation of one row."""
    settings = _settings(row)
    protocol = row.text("protocol") or _protocol(settings)
    gpu = known_gpu("gpu_model", row.needed("gpu_model"))
    tokens_per_s = row.number_of("dataset_tokens_per_second")
    share = row.number_of("gpu_memory_utilization_peak")
    capacity_gb = GPUS[gpu].memory_mib * MIB / 1e9
    outcome = _outcome(row, tokens_per_s)
    valid = outcome is RunOutcome.VALID
    return Observation(
        configuration=_configuration(row, settings, gpu, protocol),
        outcome=outcome,
        tokens_per_s=tokens_per_s if valid else None,
        peak_memory_gb=share / 100 * capacity_gb if valid and share else None,
        gpu_utilisation=row.number_of("gpu_compute_utilization_avg") if valid else None,
        power_w=row.number_of("gpu_power_watts_avg") if valid else None,
        runtime_s=row.number_of("train_runtime") if valid else None,
        measured_at=moment_of(row.text("lh_created_at")),
        origin=Origin.IMPORT,
        provenance=row.provenance,
        protocol=protocol,
        error=_UNTOLD if outcome is RunOutcome.OOM else "",
        flags=(STOPPED_EARLY,) if valid and "stop" in protocol else (),
    )


def _outcome(row: TableRow, tokens_per_s: float | None) -> RunOutcome:
    """Return how a run ended."""
    if row.has("is_valid"):
        return RunOutcome.VALID if row.flag("is_valid") else RunOutcome.OOM
    return RunOutcome.FAILED if tokens_per_s is None else RunOutcome.VALID


def _configuration(
    row: TableRow, settings: dict[str, str], gpu: str, protocol: str
) -> Configuration:
    """Return the configuration of one row."""
    gpus = row.whole("number_gpus")
    nodes = row.whole("number_nodes", 1)
    method = method_named("method", row.needed("method"))
    paged = "pagedadamw" in protocol
    optimiser = Optimiser.PAGED_ADAMW if paged else optimiser_named(settings.get("optim", ""))
    accumulation = _ACCUMULATION.search(protocol)
    steps = accumulation[1] if accumulation else settings.get("gradient_accumulation_steps", "4")
    # A table without this word says nothing about the network, so it is not taken for a slow one.
    word = Interconnect.ROCE if row.flag("enable_roce") else Interconnect.TCP
    interconnect = word if row.has("enable_roce") else Interconnect.AUTO
    rank = settings.get("r", "")
    version = row.text("fms_hf_tuning_version")
    return Configuration(
        model=model_name(row.needed("model_name")),
        method=method,
        gpu_model=gpu,
        num_gpus=gpus,
        num_nodes=nodes,
        batch_size=row.whole("batch_size"),
        tokens_per_sample=row.whole("tokens_per_sample"),
        grad_accum=int(steps) if steps.isdecimal() else 4,
        precision=_precision(row, settings, method, gpus),
        sharding=_sharding(settings, gpus, nodes),
        lora_rank=rank_of(method, int(rank) if rank.isdecimal() else 4),
        optimiser=optimiser,
        attention=Attention.FLASH,
        # Published as a list of three, or empty.
        fast_kernels=row.text("fast_kernels").casefold() not in {"", "0", "0.0", "false"},
        fast_moe=row.whole("fast_moe", 0),
        interconnect=interconnect if nodes > 1 else Interconnect.AUTO,
        software=f"fms-hf-tuning {version}" if version else "fms-hf-tuning",
    )


def _precision(row: TableRow, settings: dict[str, str], method: Method, gpus: int) -> Precision:
    """Return how weights were stored."""
    plain = precision_named("torch_dtype", row.text("torch_dtype", "bfloat16"))
    mixed = settings.get("accelerate_config_mixed_precision", "no") in {"bf16", "fp16"}
    return MIXED.get(plain, plain) if mixed and gpus > 1 and method is Method.FULL else plain


def _sharding(settings: dict[str, str], gpus: int, nodes: int) -> Sharding:
    """Return how GPUs shared the model."""
    if gpus > 1 and settings.get("distributed_backend", "").casefold() == "ddp":
        return Sharding.DDP
    return sharding_named(settings.get("fsdp_sharding_strategy", ""), gpus, nodes)


def _settings(row: TableRow) -> dict[str, str]:
    """Return the settings that only the long names contain."""
    text = f"{row.text('experiment_id')}-{row.text('identifier')}"
    return dict(_SETTINGS.findall(text))


def _protocol(settings: dict[str, str]) -> str:
    """Return how the run was measured, as the extract with a protocol column writes it."""
    seconds = settings.get("stop_after_seconds", "")
    if seconds and not seconds.startswith("-") and seconds not in {"0", "0.0"}:
        name = f"stop{seconds.removesuffix('.0')}s"
    else:
        automatic = settings.get("auto_stop_method", "none").casefold() not in {"", "none"}
        name = "autostop" if automatic else "epoch"
    reentrant = settings.get("gradient_checkpointing_use_reentrant", "").casefold() == "true"
    return f"{name}_reentrant" if reentrant else name


def _rejected(observation: Observation, meaning: str) -> Observation:
    """Return the observation as rejected before its start, because it breaks a rule."""
    error = f"rejected before it was started; needed: {meaning}"
    return msgspec.structs.replace(observation, outcome=RunOutcome.REJECTED, error=error)

"""One training run of another tool, from its settings and last numbers, as an observation.

Settings have the names of transformers, TRL, axolotl or LLaMA-Factory. The throughput is that of
counted tokens. If there are none, it is samples times the maximum length; that is too high if
samples are shorter, so such runs are flagged.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.interop.import_runs.vocabulary import (
    MIXED,
    optimiser_named,
    precision_named,
    rank_of,
    sharding_named,
)
from duetune.knowledge.configurations.configuration import (
    Attention,
    Configuration,
    Method,
    Precision,
    Sharding,
)
from duetune.knowledge.facts.gpus import gpu_name
from duetune.knowledge.facts.model_registry import model_name
from duetune.knowledge.model.quality import ASSUMED_LENGTH, STOPPED_EARLY
from duetune.knowledge.observation import Observation, Origin, RunOutcome
from duetune.knowledge.text_tables import TableRow, given_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def read_document(path: Path) -> dict[str, object]:
    """Return the fields of a JSON or YAML file."""
    try:
        if path.suffix == ".json":
            return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
        return msgspec.yaml.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        raise InvalidInput("history", path.name, f"a readable file ({error.strerror})") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InvalidInput("history", path.name, f"a document of settings ({reason})") from None


def moment_of(text: object) -> float:
    """Return seconds since 1970; 0 if ``text`` is not a moment, because a run is usable without."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_MODEL = (
    *("model_name_or_path", "base_model_name_or_path", "base_model", "model_name", "model_id"),
    *("_name_or_path", "name_or_path", "model"),
)
_GPU = ("gpu_model", "gpu_type", "gpu_name", "gpu")
_GPUS = ("num_gpus", "number_gpus", "n_gpus", "world_size", "num_processes", "gpu_count", "devices")
_NODES = ("num_nodes", "number_nodes", "nnodes", "num_machines")
_PER_GPU = ("per_device_train_batch_size", "micro_batch_size", "train_micro_batch_size_per_gpu")
_LENGTH = (
    *("tokens_per_sample", "max_seq_length", "max_seq_len", "sequence_len", "cutoff_len"),
    *("block_size", "max_length", "model_max_length"),
)
_RANK = ("lora_rank", "lora_r", "r")
_ALL_LINEAR = ("all-linear", "gate_proj", "up_proj", "down_proj", "c_fc", "fc1", "dense_h_to_4h")
# transformers writes this max_length into every model configuration, as a default for generation.
_NO_LENGTH = 20


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a tracker or trainer stores it: ``settings`` and ``numbers`` by their plain names.
    ``outcome`` is None if the tracker does not know it.
    """

    settings: dict[str, str]
    numbers: dict[str, float]
    provenance: str
    outcome: RunOutcome | None = None
    measured_at: float = 0.0
    error: str = ""
    peak_memory_gb: float | None = None
    gpu_utilisation: float | None = None
    power_w: float | None = None


def flattened(values: Mapping[str, object]) -> dict[str, str]:
    """Return nested settings by their last names. If two have the same name, the outer one
    counts.
    """
    plain: dict[str, str] = {}
    nested: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            nested |= flattened(value)
        elif value is not None:
            plain[name.rsplit("/", 1)[-1]] = str(value)
    return nested | plain


def observed_run(run: Run, given: Mapping[str, str]) -> Observation:
    """Return the observation of a run. ``given`` are configuration fields that the run does not
    record, or records wrongly.
    """
    settings = TableRow(run.provenance, 0, {**run.settings, **given})
    numbers = run.numbers
    outcome = run.outcome or RunOutcome.VALID
    gpus = _gpus(settings, numbers)
    batch = _first_whole(settings, _PER_GPU, 0) * gpus or _first_whole(
        settings, ("batch_size",), gpus
    )
    accumulation = settings.whole("grad_accum", settings.whole("gradient_accumulation_steps", 1))
    done = _share_done(numbers)
    samples_per_s = _samples_per_s(numbers, batch * accumulation, done)
    seen, runtime = numbers.get("num_input_tokens_seen"), numbers.get("train_runtime")
    steps = numbers.get("global_step") or 0
    length, tokens_per_s = _first_length(settings), None
    flags = [STOPPED_EARLY] if done < 1 and outcome is RunOutcome.VALID else []
    if seen and runtime:
        tokens_per_s = seen / runtime
        length = max(1, round(seen / (steps * batch * accumulation))) if steps else length
    elif samples_per_s and length:
        tokens_per_s = samples_per_s * length
        flags.append(ASSUMED_LENGTH)
    if not length and (samples_per_s or outcome is not RunOutcome.VALID):
        raise InvalidInput(
            "tokens_per_sample",
            None,
            f"the length of a sample ({', '.join(_LENGTH)}), which the run does not record",
        )
    if outcome is RunOutcome.VALID and not tokens_per_s:
        raise InvalidInput(
            "train_runtime", runtime, "a finished run, with its tokens or samples per second"
        )
    return Observation(
        configuration=_configuration(settings, gpus, batch, accumulation, length).replace(
            **given_fields(given)
        ),
        outcome=outcome,
        tokens_per_s=tokens_per_s if outcome is RunOutcome.VALID else None,
        peak_memory_gb=run.peak_memory_gb,
        gpu_utilisation=run.gpu_utilisation,
        power_w=run.power_w,
        runtime_s=runtime or None,
        steps=int(steps) or None,
        measured_at=run.measured_at,
        origin=Origin.IMPORT,
        provenance=run.provenance,
        error=run.error,
        flags=tuple(flags),
    )


def _configuration(
    settings: TableRow, gpus: int, batch: int, accumulation: int, length: int
) -> Configuration:
    """Return the configuration of a run; refuses a run without model or GPU."""
    model = _first(settings, _MODEL)
    gpu = _first(settings, _GPU)
    if not model:
        raise InvalidInput("model", None, f"a name: one of {', '.join(_MODEL)}")
    if not gpu:
        raise InvalidInput("gpu_model", None, "the GPU it ran on, which the run does not record")
    method = _method(settings)
    nodes = max(1, _first_whole(settings, _NODES, 1))
    targets = settings.text("target_modules") + settings.text("lora_target")
    wide = any(word in targets for word in _ALL_LINEAR) or targets == "all"
    liger = settings.flag("use_liger_kernel") or settings.flag("fast_kernels")
    return Configuration(
        model=model_name(model),
        method=method,
        gpu_model=gpu_name(gpu) or gpu,
        num_gpus=gpus,
        num_nodes=nodes,
        batch_size=batch,
        tokens_per_sample=length,
        grad_accum=accumulation,
        precision=_precision(settings, method),
        sharding=_sharding(settings, gpus, nodes),
        grad_checkpoint=settings.flag("gradient_checkpointing") or settings.flag("grad_checkpoint"),
        lora_rank=rank_of(method, _first_whole(settings, _RANK, 8)),
        lora_targets="all-linear" if wide and method is not Method.FULL else "attention",
        optimiser=optimiser_named(settings.text("optim") or settings.text("optimizer")),
        attention=_attention(settings),
        fast_kernels=liger,
        software=settings.text("software"),
    )


def _gpus(settings: TableRow, numbers: Mapping[str, float]) -> int:
    """Return the number of GPUs as recorded, else as many as the samples of a step need."""
    count = _first_whole(settings, _GPUS[:5], 0)
    if count:
        return count
    per_gpu = _first_whole(settings, _PER_GPU, 0) * settings.whole("gradient_accumulation_steps", 1)
    samples, steps = numbers.get("train_samples_per_second"), numbers.get("train_steps_per_second")
    if samples and steps and per_gpu:
        return max(1, round(samples / steps / per_gpu))
    return max(1, _first_whole(settings, _GPUS[5:], 1))


def _share_done(numbers: Mapping[str, float]) -> float:
    """Return the share of planned steps that was done: transformers divides the planned work by the
    time that was spent.
    """
    planned, done = numbers.get("max_steps") or 0, numbers.get("global_step") or 0
    return done / planned if 0 < done < planned else 1.0


def _samples_per_s(numbers: Mapping[str, float], per_step: int, done: float) -> float | None:
    """Return samples per second, corrected by the share that was done."""
    samples, steps = numbers.get("train_samples_per_second"), numbers.get("train_steps_per_second")
    rate = samples or (steps * per_step if steps else None)
    return rate * done if rate else None


def _method(settings: TableRow) -> Method:
    """Return the training method, from adapter settings and how frozen weights were loaded."""
    named = settings.text("method").casefold()
    if named in set(Method):
        return Method(named)
    names = ("peft_type", "peft_method", "adapter", "finetuning_type")
    kind = " ".join(settings.text(name) for name in names).casefold()
    if "prompt" in kind or kind.split() == ["pt"]:
        return Method.PROMPT
    adapters = "lora" in kind or settings.has("lora_r") or settings.has("lora_alpha")
    if not adapters and not settings.flag("use_peft"):
        return Method.FULL
    quantised = f"{settings.text('quant_method')} {settings.text('quantization_config')}".casefold()
    if "gptq" in quantised:
        return Method.GPTQ_LORA
    four = (
        settings.text("load_in_4bit").casefold() == "true"
        or settings.text("quantization_bit") == "4"
    )
    by_name = "'load_in_4bit': true" in quantised or "qlora" in kind
    return Method.QLORA if four or by_name else Method.LORA


def _precision(settings: TableRow, method: Method) -> Precision:
    """Return how weights were stored. If it is not recorded: adapters leave them as they compute,
    full training keeps them in 32 bits.
    """
    dtype = settings.text("torch_dtype") or settings.text("dtype")
    computes = Precision.BF16 if settings.text("bf16").casefold() in {"true", "1", "auto"} else None
    if computes is None and settings.text("fp16").casefold() in {"true", "1"}:
        computes = Precision.FP16
    if dtype and dtype != "auto":
        loaded = precision_named("torch_dtype", dtype)
        return MIXED[computes] if computes and loaded is Precision.FP32 else loaded
    if computes is None:
        return Precision.FP32
    return MIXED[computes] if method is Method.FULL else computes


def _sharding(settings: TableRow, gpus: int, nodes: int) -> Sharding:
    """Return how GPUs shared the model."""
    strategy = settings.text("fsdp").strip("[]'\"")
    if gpus == 1:
        return Sharding.NONE
    named = settings.text("sharding")
    if named in set(Sharding):
        return Sharding(named)
    if not strategy and "fsdp" not in settings.text("distributed_type").casefold():
        return Sharding.FSDP if settings.has("deepspeed") else Sharding.DDP
    return sharding_named(strategy.split(" ")[0].split(",")[0].strip("'\""), gpus, nodes)


def _attention(settings: TableRow) -> Attention:
    """Return the attention implementation."""
    name = settings.text("attn_implementation") or settings.text("_attn_implementation")
    if "flash" in name or settings.text("use_flash_attn").casefold() == "true":
        return Attention.FLASH
    return Attention.EAGER if name == "eager" else Attention.SDPA


def _first(settings: TableRow, names: Iterable[str]) -> str:
    """Return the first setting that is there, as text."""
    return next((settings.text(name) for name in names if settings.has(name)), "")


def _first_whole(settings: TableRow, names: Iterable[str], otherwise: int) -> int:
    """Return the first setting that is there, as a whole number."""
    return next((settings.whole(name) for name in names if settings.has(name)), otherwise)


def _first_length(settings: TableRow) -> int:
    """Return the tokens of a sample; 0 if no plausible length is recorded."""
    for name in _LENGTH:
        # Tokenisers without a limit record an enormous number.
        if settings.has(name) and _NO_LENGTH < (length := settings.whole(name)) < 10_000_000:
            return length
    return 0

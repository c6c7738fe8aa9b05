"""One training run."""

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
from duetune.knowledge.measurement_checks import given_fields
from duetune.knowledge.model.quality import ASSUMED_LENGTH, STOPPED_EARLY
from duetune.knowledge.observation import Observation, Origin, RunOutcome
from duetune.knowledge.text_tables import TableRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def read_document(path: Path) -> dict[str, object]:
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
    """Seconds since 1970; 0 if it is not a moment: a run is no worse for that."""
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
# transformers writes it into the configuration of every model, as a default for generation.
_NO_LENGTH = 20


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """``settings`` and ``numbers`` by their plain names; ``outcome`` if the tracker knows it."""

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
    """Nested settings by their last names; the outermost of two that share one stands."""
    plain: dict[str, str] = {}
    nested: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            nested |= flattened(value)
        elif value is not None:
            plain[name.rsplit("/", 1)[-1]] = str(value)
    return nested | plain


def observed_run(run: Run, given: Mapping[str, str]) -> Observation:
    """``given`` are fields of the configuration that the run does not tell, or tells wrongly."""
    said = TableRow(run.provenance, 0, {**run.settings, **given})
    numbers = run.numbers
    outcome = run.outcome or RunOutcome.VALID
    gpus = _gpus(said, numbers)
    batch = _first_whole(said, _PER_GPU, 0) * gpus or _first_whole(said, ("batch_size",), gpus)
    accumulation = said.whole("grad_accum", said.whole("gradient_accumulation_steps", 1))
    done = _share_done(numbers)
    samples_per_s = _samples_per_s(numbers, batch * accumulation, done)
    seen, runtime = numbers.get("num_input_tokens_seen"), numbers.get("train_runtime")
    steps = numbers.get("global_step") or 0
    length, tokens_per_s = _first_length(said), None
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
            f"the length of a sample ({', '.join(_LENGTH)}); the run does not tell, so give it",
        )
    if outcome is RunOutcome.VALID and not tokens_per_s:
        raise InvalidInput(
            "train_runtime", runtime, "the end of a run, with its tokens or samples per second"
        )
    return Observation(
        configuration=_configuration(said, gpus, batch, accumulation, length).replace(
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
    said: TableRow, gpus: int, batch: int, accumulation: int, length: int
) -> Configuration:
    model = _first(said, _MODEL)
    gpu = _first(said, _GPU)
    if not model:
        raise InvalidInput("model", None, f"a name: one of {', '.join(_MODEL)}")
    if not gpu:
        raise InvalidInput(
            "gpu_model", None, "the GPU it ran on; the run does not tell, so give it"
        )
    method = _method(said)
    nodes = max(1, _first_whole(said, _NODES, 1))
    targets = said.text("target_modules") + said.text("lora_target")
    wide = any(word in targets for word in _ALL_LINEAR) or targets == "all"
    liger = said.flag("use_liger_kernel") or said.flag("fast_kernels")
    return Configuration(
        model=model_name(model),
        method=method,
        gpu_model=gpu_name(gpu) or gpu,
        num_gpus=gpus,
        num_nodes=nodes,
        batch_size=batch,
        tokens_per_sample=length,
        grad_accum=accumulation,
        precision=_precision(said, method),
        sharding=_sharding(said, gpus, nodes),
        grad_checkpoint=said.flag("gradient_checkpointing") or said.flag("grad_checkpoint"),
        lora_rank=rank_of(method, _first_whole(said, _RANK, 8)),
        lora_targets="all-linear" if wide and method is not Method.FULL else "attention",
        optimiser=optimiser_named(said.text("optim") or said.text("optimizer")),
        attention=_attention(said),
        fast_kernels=liger,
        software=said.text("software"),
    )


def _gpus(said: TableRow, numbers: Mapping[str, float]) -> int:
    """As told, else as many as the samples of a step need."""
    told = _first_whole(said, _GPUS[:5], 0)
    if told:
        return told
    per_gpu = _first_whole(said, _PER_GPU, 0) * said.whole("gradient_accumulation_steps", 1)
    samples, steps = numbers.get("train_samples_per_second"), numbers.get("train_steps_per_second")
    if samples and steps and per_gpu:
        return max(1, round(samples / steps / per_gpu))
    return max(1, _first_whole(said, _GPUS[5:], 1))


def _share_done(numbers: Mapping[str, float]) -> float:
    """transformers divides the work that was planned by the time that was spent."""
    planned, done = numbers.get("max_steps") or 0, numbers.get("global_step") or 0
    return done / planned if 0 < done < planned else 1.0


def _samples_per_s(numbers: Mapping[str, float], per_step: int, done: float) -> float | None:
    samples, steps = numbers.get("train_samples_per_second"), numbers.get("train_steps_per_second")
    rate = samples or (steps * per_step if steps else None)
    return rate * done if rate else None


def _method(said: TableRow) -> Method:
    """Adapters by their configuration; four bits by how the frozen weights were loaded."""
    told = said.text("method").casefold()
    if told in set(Method):
        return Method(told)
    kind = f"{said.text('peft_type')} {said.text('peft_method')} {said.text('adapter')}".casefold()
    kind += said.text("finetuning_type").casefold()
    if "prompt" in kind or kind.split() == ["pt"]:
        return Method.PROMPT
    adapters = "lora" in kind or said.has("lora_r") or said.has("lora_alpha")
    if not adapters and not said.flag("use_peft"):
        return Method.FULL
    quantised = f"{said.text('quant_method')} {said.text('quantization_config')}".casefold()
    if "gptq" in quantised:
        return Method.GPTQ_LORA
    four = said.text("load_in_4bit").casefold() == "true" or said.text("quantization_bit") == "4"
    named = "'load_in_4bit': true" in quantised or "qlora" in kind
    return Method.QLORA if four or named else Method.LORA


def _precision(said: TableRow, method: Method) -> Precision:
    """Weights as they were loaded. Where that is not told, those of adapters are as they compute;
    what is trained in full is kept in 32 bits.
    """
    dtype = said.text("torch_dtype") or said.text("dtype")
    computes = Precision.BF16 if said.text("bf16").casefold() in {"true", "1", "auto"} else None
    if computes is None and said.text("fp16").casefold() in {"true", "1"}:
        computes = Precision.FP16
    if dtype and dtype != "auto":
        loaded = precision_named("torch_dtype", dtype)
        return MIXED[computes] if computes and loaded is Precision.FP32 else loaded
    if computes is None:
        return Precision.FP32
    return MIXED[computes] if method is Method.FULL else computes


def _sharding(said: TableRow, gpus: int, nodes: int) -> Sharding:
    strategy = said.text("fsdp").strip("[]'\"")
    if gpus == 1:
        return Sharding.NONE
    named = said.text("sharding")
    if named in set(Sharding):
        return Sharding(named)
    if not strategy and "fsdp" not in said.text("distributed_type").casefold():
        return Sharding.FSDP if said.has("deepspeed") else Sharding.DDP
    return sharding_named(strategy.split(" ")[0].split(",")[0].strip("'\""), gpus, nodes)


def _attention(said: TableRow) -> Attention:
    name = said.text("attn_implementation") or said.text("_attn_implementation")
    if "flash" in name or said.text("use_flash_attn").casefold() == "true":
        return Attention.FLASH
    return Attention.EAGER if name == "eager" else Attention.SDPA


def _first(said: TableRow, names: Iterable[str]) -> str:
    return next((said.text(name) for name in names if said.has(name)), "")


def _first_whole(said: TableRow, names: Iterable[str], otherwise: int) -> int:
    return next((said.whole(name) for name in names if said.has(name)), otherwise)


def _first_length(said: TableRow) -> int:
    for name in _LENGTH:
        # Tokenisers without a limit state an enormous one.
        if said.has(name) and _NO_LENGTH < (length := said.whole(name)) < 10_000_000:
            return length
    return 0

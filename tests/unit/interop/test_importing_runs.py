from __future__ import annotations

import json
import re

import pytest

from duetune.errors import InvalidInput
from duetune.interop.import_runs.recognise import import_history
from duetune.knowledge.configurations.configuration import (
    Attention,
    Method,
    Optimiser,
    Precision,
    Sharding,
)
from duetune.knowledge.model.quality import ASSUMED_LENGTH, STOPPED_EARLY
from duetune.knowledge.observation import RunOutcome

A100 = {"gpu_model": "NVIDIA A100-SXM4-80GB"}
STATE = {
    "global_step": 50,
    "max_steps": 50,
    "num_input_tokens_seen": 409_600,
    "train_batch_size": 2,
    "log_history": [
        {"loss": 2.0, "step": 10, "num_input_tokens_seen": 80_000},
        {
            "step": 50,
            "train_runtime": 100.0,
            "train_samples_per_second": 8.0,
            "train_steps_per_second": 0.5,
            "train_loss": 1.5,
        },
    ],
}
ARGUMENTS = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "bf16": True,
    "gradient_checkpointing": True,
    "optim": "paged_adamw_8bit",
    "max_length": 1024,
    "fsdp": "full_shard auto_wrap",
}
ADAPTER = {
    "base_model_name_or_path": "meta-llama/Llama-3.2-3B",
    "peft_type": "LORA",
    "r": 16,
    "lora_alpha": 32,
    "target_modules": ["q_proj", "v_proj"],
}


def write(folder, **documents):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return folder


def only(result):
    history, left_out = result
    assert left_out == ()
    (observation,) = history
    return observation


def test_a_run_of_the_trainer_is_read(tmp_path):
    folder = write(
        tmp_path / "out", trainer_state=STATE, training_args=ARGUMENTS, adapter_config=ADAPTER
    )
    seen = only(import_history(folder, A100))
    told = seen.configuration
    assert (told.model, told.gpu_model) == ("meta-llama/Llama-3.2-3B", "A100-80GB")
    assert (told.method, told.lora_rank, told.lora_targets) == (Method.LORA, 16, "attention")
    # 8 samples/s at half a step per second are 16 per step: two GPUs with 2 times 4.
    assert (told.num_gpus, told.batch_size, told.grad_accum) == (2, 4, 4)
    assert told.sharding is Sharding.FSDP
    assert (told.precision, told.optimiser) == (Precision.BF16, Optimiser.PAGED_ADAMW)
    assert told.grad_checkpoint
    # 409,600 tokens in 50 steps of 16 samples.
    assert told.tokens_per_sample == 512
    assert seen.tokens_per_s == 4096
    assert (seen.runtime_s, seen.steps, seen.flags) == (100, 50, ())
    assert seen.provenance == "out/trainer_state.json"
    assert only(import_history(folder / "trainer_state.json", A100)) == seen


def test_without_counted_tokens_the_length_is_assumed(tmp_path):
    state = STATE | {"num_input_tokens_seen": 0, "log_history": STATE["log_history"][1:]}
    folder = write(tmp_path, trainer_state=state, training_args=ARGUMENTS, adapter_config=ADAPTER)
    seen = only(import_history(folder, A100))
    assert seen.tokens_per_s == 8 * 1024
    assert seen.configuration.tokens_per_sample == 1024
    assert seen.flags == (ASSUMED_LENGTH,)


def test_a_run_that_stopped_early_did_less_than_was_planned(tmp_path):
    state = STATE | {
        "num_input_tokens_seen": 0,
        "max_steps": 100,
        "log_history": STATE["log_history"][1:],
    }
    folder = write(tmp_path, trainer_state=state, training_args=ARGUMENTS, adapter_config=ADAPTER)
    seen = only(import_history(folder, A100))
    assert seen.tokens_per_s == 8 * 1024 / 2
    assert STOPPED_EARLY in seen.flags


@pytest.mark.parametrize(
    ("state", "arguments", "given", "reason"),
    [
        (STATE, ARGUMENTS, {}, "gpu_model is required; .* which the run does not record"),
        (
            STATE | {"log_history": []},
            ARGUMENTS,
            A100,
            "train_runtime is required; .* a finished run",
        ),
        (STATE, ARGUMENTS | {"bf16": True, "torch_dtype": "int8"}, A100, "torch_dtype: 'int8'"),
        (STATE, ARGUMENTS | {"gradient_accumulation_steps": "x"}, A100, "gradient_accumulation_s"),
        (
            STATE | {"num_input_tokens_seen": 0, "log_history": STATE["log_history"][1:]},
            # What transformers writes into each configuration says nothing.
            ARGUMENTS | {"max_length": 20},
            A100,
            "tokens_per_sample is required",
        ),
    ],
)
def test_what_a_run_does_not_tell_is_named(tmp_path, state, arguments, given, reason):
    folder = write(tmp_path, trainer_state=state, training_args=arguments, adapter_config=ADAPTER)
    history, left_out = import_history(folder, given)
    assert len(history) == 0
    (rejected,) = left_out
    assert re.search(reason, rejected.reason)


@pytest.mark.parametrize("text", ["", "[]", '{"log_history": 5}', '{"global_step": "x"}'])
def test_a_broken_state_is_told(tmp_path, text):
    (tmp_path / "trainer_state.json").write_text(text, "utf-8")
    history, left_out = import_history(tmp_path, A100)
    assert len(history) == 0
    assert "trainer_state.json" in left_out[0].reason


@pytest.mark.parametrize(
    ("settings", "method"),
    [
        ({}, Method.FULL),
        ({"lora_r": 8}, Method.LORA),
        ({"lora_r": 8, "load_in_4bit": True}, Method.QLORA),
        ({"adapter": "qlora"}, Method.QLORA),
        ({"lora_r": 8, "quantization_config": {"quant_method": "gptq"}}, Method.GPTQ_LORA),
        ({"peft_type": "PROMPT_TUNING"}, Method.PROMPT),
        ({"finetuning_type": "lora", "quantization_bit": 4}, Method.QLORA),
        ({"finetuning_type": "full"}, Method.FULL),
    ],
)
def test_the_method_follows_from_adapters_and_quantisation(tmp_path, settings, method):
    folder = write(
        tmp_path,
        trainer_state=STATE,
        training_args=ARGUMENTS | settings,
        config={"_name_or_path": "gpt2", "model_type": "gpt2"},
    )
    assert only(import_history(folder, A100)).configuration.method is method


@pytest.mark.parametrize(
    ("settings", "precision"),
    [
        ({"bf16": True}, Precision.BF16_MIXED),
        ({"bf16": False, "fp16": True}, Precision.FP16_MIXED),
        ({"bf16": False}, Precision.FP32),
        ({"torch_dtype": "bfloat16"}, Precision.BF16),
        ({"torch_dtype": "torch.float32", "bf16": True}, Precision.BF16_MIXED),
    ],
)
def test_the_precision_is_that_of_the_weights(tmp_path, settings, precision):
    folder = write(
        tmp_path,
        trainer_state=STATE,
        training_args=ARGUMENTS | settings,
        config={"_name_or_path": "gpt2"},
    )
    assert only(import_history(folder, A100)).configuration.precision is precision


def mlflow_folder(root, *, status=3, metrics=True, note="", **params):
    run = root / "7" / "abc123"
    for part in ("params", "metrics", "tags"):
        (run / part).mkdir(parents=True)
    (root / "7" / "meta.yaml").write_text("experiment_id: '7'\nname: x\n", "utf-8")
    (run / "meta.yaml").write_text(
        f"run_id: abc123\nstatus: {status}\nstart_time: 1700000000000\nend_time: null\n", "utf-8"
    )
    said = {
        "model_name_or_path": "HuggingFaceTB/SmolLM2-135M",
        "per_device_train_batch_size": "8",
        "max_seq_length": "512",
        "bf16": "True",
        "gpu_model": "L40S",
        "attn_implementation": "flash_attention_2",
    }
    for name, value in (said | params).items():
        (run / "params" / name).write_text(value, "utf-8")
    (run / "tags" / "mlflow.note.content").write_text(note, "utf-8")
    if metrics:
        (run / "metrics" / "train_runtime").write_text("1700000100000 60.0 100\n", "utf-8")
        (run / "metrics" / "num_input_tokens_seen").write_text(
            "1700000000000 1000 1\n1700000100000 409600 100\n", "utf-8"
        )
        (run / "metrics" / "system").mkdir()
        memory = run / "metrics" / "system" / "gpu_0_memory_usage_megabytes"
        memory.write_text("1 9000 1\n2 12000 2\n3 11000 3\n", "utf-8")
        power = run / "metrics" / "system" / "gpu_0_power_usage_watts"
        power.write_text("1 100 1\n2 200 2\n", "utf-8")
    return run


@pytest.mark.parametrize("place", ["mlruns", "mlruns/7", "mlruns/7/abc123"])
def test_mlflow_runs_are_found_from_any_folder_above(tmp_path, place):
    mlflow_folder(tmp_path / "mlruns")
    seen = only(import_history(tmp_path / place))
    assert seen.configuration.model == "HuggingFaceTB/SmolLM2-135M"
    assert seen.configuration.attention is Attention.FLASH
    assert seen.tokens_per_s == pytest.approx(409600 / 60)
    assert (seen.peak_memory_gb, seen.power_w) == (12, 150)
    assert seen.measured_at == 1_700_000_000
    assert seen.provenance == "mlflow abc123"


@pytest.mark.parametrize(
    ("status", "note", "outcome"),
    [
        ("4", "", RunOutcome.FAILED),
        ("FAILED", "torch.OutOfMemoryError: CUDA out of memory", RunOutcome.OOM),
        ("5", "", RunOutcome.STOPPED),
    ],
)
def test_mlflow_knows_how_a_run_ended(tmp_path, status, note, outcome):
    mlflow_folder(tmp_path, status=status, metrics=False, note=note)
    seen = only(import_history(tmp_path))
    assert seen.outcome is outcome
    assert seen.tokens_per_s is None
    assert seen.configuration.tokens_per_sample == 512


def test_a_broken_metric_is_told(tmp_path):
    run = mlflow_folder(tmp_path)
    (run / "metrics" / "loss").write_text("nonsense", "utf-8")
    _, left_out = import_history(tmp_path)
    assert "metric loss" in left_out[0].reason


WANDB_CONFIG = """\
wandb_version: 1
_wandb:
  value: {cli_version: 0.17.0, max_length: 3}
model_name_or_path: {desc: null, value: mistralai/Mistral-7B-v0.1}
per_device_train_batch_size: {desc: null, value: 1}
gradient_accumulation_steps: {value: 2}
max_seq_length: {value: 2048}
bf16: {value: true}
use_liger_kernel: {value: true}
peft_config:
  value: {default: {peft_type: LORA, r: 64, target_modules: [q_proj, down_proj]}}
quantization_config:
  value: {load_in_4bit: true, quant_method: bitsandbytes}
"""
WANDB_SUMMARY = {
    "train_runtime": 200.0,
    "train_samples_per_second": 2.0,
    "train_steps_per_second": 1.0,
    "train/global_step": 200,
    "train/loss": "NaN",
    "_wandb": {"runtime": 210},
}


def wandb_folder(files, summary=None, log=""):
    files.mkdir(parents=True)
    (files / "config.yaml").write_text(WANDB_CONFIG, "utf-8")
    (files / "wandb-summary.json").write_text(json.dumps(summary or WANDB_SUMMARY), "utf-8")
    metadata = {"gpu": "NVIDIA H100 80GB HBM3", "gpu_count": 8, "startedAt": "2024-06-01T00:00:00Z"}
    (files / "wandb-metadata.json").write_text(json.dumps(metadata), "utf-8")
    (files / "output.log").write_text(log, "utf-8")


@pytest.mark.parametrize("place", ["wandb", "wandb/run-1", "wandb/run-1/files"])
def test_wandb_runs_are_found_from_any_folder_above(tmp_path, place):
    wandb_folder(tmp_path / "wandb" / "run-1" / "files")
    seen = only(import_history(tmp_path / place))
    told = seen.configuration
    assert (told.model, told.gpu_model) == ("mistralai/Mistral-7B-v0.1", "H100")
    assert (told.method, told.lora_rank, told.lora_targets) == (Method.QLORA, 64, "all-linear")
    # One GPU of the eight that the machine has: two samples per step of one and two.
    assert (told.num_gpus, told.grad_accum, told.fast_kernels) == (1, 2, True)
    assert seen.tokens_per_s == 2 * 2048
    assert seen.flags == (ASSUMED_LENGTH,)
    assert seen.measured_at == 1717200000
    assert seen.provenance == "wandb run-1"


def test_a_wandb_run_that_ran_out_of_memory_says_so_in_its_log(tmp_path):
    wandb_folder(
        tmp_path / "run",
        summary={"train/loss": 1.0},
        log="step 3\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n",
    )
    seen = only(import_history(tmp_path / "run"))
    assert seen.outcome is RunOutcome.OOM
    assert seen.configuration.tokens_per_sample == 2048


def test_of_several_runs_the_good_ones_are_taken(tmp_path):
    wandb_folder(tmp_path / "a" / "files")
    wandb_folder(tmp_path / "b" / "files", summary={"train/loss": 1.0})
    history, left_out = import_history(tmp_path)
    assert len(history) == 1
    assert "train_runtime" in left_out[0].reason


def test_every_field_that_is_given_stands(tmp_path):
    folder = write(
        tmp_path / "run", trainer_state=STATE, training_args=ARGUMENTS, adapter_config=ADAPTER
    )
    given = A100 | {"precision": "fp16", "model": "llama3.1-8b", "grad_checkpoint": "false"}
    ((run,), _) = import_history(folder, given)
    one = run.configuration
    assert (one.gpu_model, one.precision) == ("A100-80GB", Precision.FP16)
    assert (one.model, one.grad_checkpoint) == ("meta-llama/Llama-3.1-8B", False)


@pytest.mark.parametrize(
    "given", [{"nope": "3"}, {"gpu_model": "Q9"}, {"num_gpus": "x"}, {"batch_size": "0"}]
)
def test_what_cannot_be_given_is_refused(tmp_path, given):
    with pytest.raises(InvalidInput):
        import_history(write(tmp_path / "run", trainer_state=STATE), given)


def test_a_run_on_a_gpu_of_nobody_is_left_out(tmp_path):
    folder = write(
        tmp_path / "run",
        trainer_state=STATE,
        training_args=ARGUMENTS | {"gpu_model": "Q999"},
        adapter_config=ADAPTER,
    )
    history, left_out = import_history(folder)
    assert len(history) == 0
    assert "Q999" in left_out[0].reason

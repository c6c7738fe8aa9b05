from __future__ import annotations

import csv
import re
from collections import Counter

import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.interop.import_runs.recognise import import_history
from duetune.knowledge.configurations.configuration import (
    Attention,
    Interconnect,
    Method,
    Optimiser,
    Precision,
    Sharding,
)
from duetune.knowledge.history_files import write_history
from duetune.knowledge.model.quality import IMPLAUSIBLE, SATURATED, STOPPED_EARLY, implied_mfu
from duetune.knowledge.observation import RunOutcome
from duetune.market.datasets import data_folder

PUBLISHED = (
    *("identifier", "experiment_id", "method", "model_name", "number_nodes", "gpu_model"),
    *("number_gpus", "tokens_per_sample", "batch_size", "enable_roce", "fast_moe"),
    *("fast_kernels", "fms_hf_tuning_version", "gpu_memory_utilization_avg"),
    *("gpu_memory_utilization_min", "gpu_memory_utilization_peak", "gpu_memory_utilization_max"),
    *("gpu_compute_utilization_min", "gpu_compute_utilization_avg", "gpu_compute_utilization_max"),
    *("cpu_memory_utilization", "is_valid", "train_tokens_per_second", "cpu_compute_utilization"),
    *("train_samples_per_second", "model_load_time", "train_runtime", "lh_created_at"),
    *("train_steps_per_second", "gpu_power_watts_avg", "gpu_power_watts_min"),
    *("gpu_power_watts_max", "gpu_power_percent_max", "gpu_power_percent_avg", "torch_dtype"),
    *("dataset_tokens_per_second", "train_tokens_per_gpu_per_second"),
    "dataset_tokens_per_second_per_gpu",
)
RAN = {
    "model_name": "llama3.2-3b",
    "method": "lora",
    "gpu_model": "NVIDIA-A100-SXM4-80GB",
    "number_nodes": "1",
    "number_gpus": "4",
    "tokens_per_sample": "1024",
    "batch_size": "16",
    "enable_roce": "0",
    "fms_hf_tuning_version": "2.4.0",
    "is_valid": "1",
    "train_tokens_per_second": "540904",
    "dataset_tokens_per_second": "14790",
    "gpu_memory_utilization_peak": "50",
    "gpu_compute_utilization_avg": "91.5",
    "gpu_power_watts_avg": "310",
    "train_runtime": "100.5",
    "lh_created_at": "2025-03-04T05:06:07+00:00",
    "experiment_id": "SFTTrainer.finetune_lora_benchmark-v1.0.0-fms_hf_tuning_version.2.4.0",
    "identifier": "model_name.llama3.2-3b-number_gpus.4-batch_size.16",
    "torch_dtype": "bfloat16",
}
DID_NOT = RAN | {
    "is_valid": "0",
    "dataset_tokens_per_second": "",
    "gpu_memory_utilization_peak": "",
    "train_runtime": "",
}


def imported(tmp_path, rows, columns):
    path = tmp_path / "table.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return import_history(path)


def published(tmp_path, *rows):
    return imported(tmp_path, rows, PUBLISHED)


def only(result):
    history, left_out = result
    assert left_out == ()
    (observation,) = history
    return observation


def test_a_published_row_is_read(tmp_path):
    assert len(PUBLISHED) == 38
    seen = only(published(tmp_path, RAN))
    told = seen.configuration
    assert (told.model, told.gpu_model) == ("meta-llama/Llama-3.2-3B", "A100-80GB")
    assert (told.num_gpus, told.batch_size, told.tokens_per_sample) == (4, 16, 1024)
    assert (told.method, told.sharding, told.grad_accum) == (Method.LORA, Sharding.FSDP, 4)
    assert (told.lora_rank, told.attention) == (4, Attention.FLASH)
    assert told.software == "fms-hf-tuning 2.4.0"
    assert told.interconnect is Interconnect.AUTO
    assert seen.outcome is RunOutcome.VALID
    assert seen.tokens_per_s == 14790
    assert seen.peak_memory_gb == pytest.approx(0.5 * 81920 * 2**20 / 1e9)
    assert (seen.gpu_utilisation, seen.power_w, seen.runtime_s) == (91.5, 310, 100.5)
    assert seen.measured_at == 1741064767
    assert (seen.protocol, seen.flags) == ("epoch", ())
    assert seen.provenance == "table.csv:1"


def test_settings_are_found_in_the_long_names(tmp_path):
    row = RAN | {
        "method": "full",
        "number_nodes": "2",
        "number_gpus": "16",
        "enable_roce": "1",
        "fast_kernels": '["True", "True", "True"]',
        "fast_moe": "0.0",
        "experiment_id": "SFTTrainer.finetune_full_benchmark-v1.0.0-stop_after_seconds.600.0"
        "-gradient_checkpointing_use_reentrant.True",
        "identifier": "model_name.a-b-optim.paged_adamw_32bit-gradient_accumulation_steps.1"
        "-fsdp_sharding_strategy.HYBRID_SHARD-accelerate_config_mixed_precision.bf16",
    }
    seen = only(published(tmp_path, row))
    told = seen.configuration
    assert told.optimiser is Optimiser.PAGED_ADAMW
    assert (told.grad_accum, told.sharding) == (1, Sharding.HYBRID)
    assert (told.precision, told.fast_kernels) == (Precision.BF16_MIXED, True)
    assert told.interconnect is Interconnect.ROCE
    assert seen.protocol == "stop600s_reentrant"
    assert seen.flags == (STOPPED_EARLY,)


def test_the_protocol_of_the_extract_tells_the_same(tmp_path):
    row = RAN | {"protocol": "stop600s_pagedadamw32_ga1", "number_nodes": "2"}
    seen = only(imported(tmp_path, [row], [*PUBLISHED, "protocol"]))
    assert seen.configuration.optimiser is Optimiser.PAGED_ADAMW
    assert seen.configuration.grad_accum == 1
    assert seen.configuration.interconnect is Interconnect.TCP
    assert seen.flags == (STOPPED_EARLY,)


@pytest.mark.parametrize(
    ("changes", "outcome", "error"),
    [
        ({}, RunOutcome.OOM, "does not say which"),
        ({"batch_size": "6"}, RunOutcome.REJECTED, "every GPU has the same number of sequences"),
        ({"number_nodes": "3"}, RunOutcome.REJECTED, "every node has the same number of GPUs"),
        ({"fast_moe": "8"}, RunOutcome.REJECTED, "divides the number of GPUs"),
        (
            {"fast_moe": "16", "number_gpus": "16", "model_name": "mixtral-8x7b"},
            RunOutcome.REJECTED,
            "divides the number of experts",
        ),
        ({"fast_moe": "4", "model_name": "mixtral-8x7b"}, RunOutcome.OOM, "does not say which"),
        ({"is_valid": ""}, RunOutcome.FAILED, ""),
    ],
)
def test_what_did_not_run_was_rejected_by_a_rule_or_ran_out_of_memory(
    tmp_path, changes, outcome, error
):
    seen = only(published(tmp_path, DID_NOT | changes))
    assert seen.outcome is outcome
    assert error in seen.error
    assert seen.tokens_per_s is None


def test_what_ran_is_valid_whatever_the_rules_say(tmp_path):
    assert only(published(tmp_path, RAN | {"batch_size": "6"})).outcome is RunOutcome.VALID


def test_odd_numbers_are_flagged(tmp_path):
    rows = [
        RAN | {"dataset_tokens_per_second": "999999"},
        RAN | {"gpu_memory_utilization_peak": "99.99"},
    ]
    history, _ = published(tmp_path, *rows)
    assert [each.flags for each in history] == [(IMPLAUSIBLE,), (SATURATED,)]


def test_bad_rows_are_left_out_and_named(tmp_path):
    rows = [
        RAN,
        RAN | {"gpu_model": "H20"},
        RAN | {"batch_size": "many"},
        RAN | {"method": "dora"},
        RAN | {"model_name": ""},
        RAN | {"dataset_tokens_per_second": "", "gpu_memory_utilization_peak": ""},
        RAN | {"model_name": "foo"},
        RAN | {"gpu_memory_utilization_peak": "120"},
        RAN | {"batch_size": "0"},
    ]
    history, left_out = published(tmp_path, *rows)
    assert len(history) == 1
    assert [each.row for each in left_out] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert [re.split(":| is required", each.reason)[0] for each in left_out] == [
        *("gpu_model", "batch_size", "method", "model_name", "tokens_per_s"),
        *("model", "peak_memory_gb", "batch_size"),
    ]


FMS = {
    "source_file": "refs/a100_80gb.csv",
    "gpu_model": "NVIDIA-A100-80GB",
    "framework_config": "accelerated-peft-bnb-foak",
    "model_name_or_path": "mistralai/Mistral-7B-v0.1",
    "num_gpus": "2",
    "per_device_train_batch_size": "4",
    "peft_method": "lora",
    "r": "16.0",
    "torch_dtype": "bfloat16",
    "bf16": "True",
    "fp16": "",
    "mem_nvidia_mem_reserved": "21244.0",
    "mem_peak_torch_mem_alloc_in_bytes": "15484642816.0",
    "train_runtime": "407.9",
    "train_samples_per_second": "1.471",
    "train_steps_per_second": "0.092",
    "train_tokens_per_second": "3012.0",
    "gradient_accumulation_steps": "",
}


def fms(tmp_path, **changes):
    return only(imported(tmp_path, [FMS | changes], list(FMS)))


def test_tokens_per_process_become_those_of_all_gpus(tmp_path):
    seen = fms(tmp_path)
    assert seen.tokens_per_s == 6024
    assert seen.configuration.tokens_per_sample == 4096
    assert seen.configuration.batch_size == 8
    assert seen.configuration.grad_accum == 2
    assert seen.peak_memory_gb == pytest.approx(21244 * 2**20 / 1e9)


@pytest.mark.parametrize(
    ("framework", "adapters", "method", "fast"),
    [
        ("none", "", Method.FULL, False),
        ("foak-fast-kernels", "lora", Method.LORA, True),
        ("baseline-peft-bnb", "lora", Method.QLORA, False),
        ("accelerated-peft-autogptq-foak", "lora", Method.GPTQ_LORA, True),
    ],
)
def test_the_framework_tells_the_method(tmp_path, framework, adapters, method, fast):
    told = fms(tmp_path, framework_config=framework, peft_method=adapters).configuration
    assert (told.method, told.fast_kernels) == (method, fast)


@pytest.mark.parametrize(
    ("framework", "expert_parallel", "software"),
    [
        ("moe-scattermoe-granite-ep4-padding-free-foak", 4, "fms-acceleration padding-free"),
        ("foak-fast-kernels-liger", 0, "fms-acceleration liger"),
        ("baseline-peft-bnb", 0, "fms-acceleration baseline"),
    ],
)
def test_what_a_configuration_cannot_tell_the_software_does(
    tmp_path, framework, expert_parallel, software
):
    told = fms(tmp_path, framework_config=framework).configuration
    assert (told.fast_moe, told.software) == (expert_parallel, software)


@pytest.mark.parametrize(
    ("gpus", "adapters", "asked", "precision"),
    [
        ("2", "", "True", Precision.BF16_MIXED),
        ("1", "", "True", Precision.BF16),
        ("2", "", "", Precision.BF16),
        ("2", "lora", "True", Precision.BF16),
    ],
)
def test_weights_are_kept_in_32_bits_where_fsdp_does_so(tmp_path, gpus, adapters, asked, precision):
    seen = fms(tmp_path, num_gpus=gpus, peft_method=adapters, bf16=asked)
    assert seen.configuration.precision is precision


NO_RESULT = {
    f"train_{each}": ""
    for each in ("runtime", "samples_per_second", "steps_per_second", "tokens_per_second")
}


def test_without_a_result_nobody_knows_why(tmp_path):
    seen = fms(tmp_path, **NO_RESULT)
    assert seen.outcome is RunOutcome.FAILED
    assert seen.configuration.tokens_per_sample == 4096
    assert "22.3 GB were taken" in seen.error


def test_without_a_result_and_packing_the_length_is_not_known(tmp_path):
    row = FMS | NO_RESULT | {"source_file": "refs_orca/a100_80gb_pf.csv"}
    history, left_out = imported(tmp_path, [row], list(FMS))
    assert len(history) == 0
    assert "only it tells the length" in left_out[0].reason


MPT = {
    "Model": "7b",
    "SeqLen (T)": "2048",
    "# GPUs": "16",
    "GPU": "a100_40gb",
    "MFU": "40.0",
    "MicroBatchSize": "6",
    "GradAccum": "3",
    "Throughput (T/s)": "50000",
    "Precision": "bf16",
    "Sharding Strategy": "SHARD_GRAD_OP",
    "Activation Checkpointing": "False",
    "section": "A100 40GB",
}


def test_a_row_of_llm_foundry_is_read(tmp_path):
    seen = only(imported(tmp_path, [MPT], list(MPT)))
    told = seen.configuration
    assert (told.model, told.gpu_model) == ("mosaicml/mpt-7b", "A100-40GB")
    assert (told.num_nodes, told.batch_size, told.grad_accum) == (2, 96, 3)
    assert (told.method, told.sharding) == (Method.FULL, Sharding.FSDP_GRAD_OP)
    assert (told.grad_checkpoint, told.interconnect) == (False, Interconnect.ROCE)
    assert seen.tokens_per_s == 50000


def test_our_own_file_is_recognised(tmp_path):
    history, _ = published(tmp_path, RAN, DID_NOT)
    write_history(tmp_path / "own.csv", history)
    assert import_history(tmp_path / "own.csv") == (history, ())


@pytest.mark.parametrize("name", ["other.csv", "run.parquet", "nothing", "folder"])
def test_what_is_not_known_is_refused_with_what_is(tmp_path, name):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n", "utf-8")
    (tmp_path / "run.parquet").write_bytes(b"PAR1")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInput, match=r"LLMFineTuningBench.*trainer_state\.json.*MLflow.*W&B"):
        import_history(tmp_path / name)


def shared(name):
    path = data_folder() / "config" / name
    if not path.is_file():
        pytest.skip("the data folder (shared/data beside the repository) is not here")
    history, left_out = import_history(path)
    without_model = 24 if name.startswith("fms") else 0
    assert len(left_out) == without_model
    assert len({each.provenance for each in history}) == len(history)
    return history


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("ibm_sft_throughput.csv", {"valid": 530}),
        ("llmfinetuningbench_sample.csv", {"valid": 75, "oom": 48, "rejected": 48}),
        ("fms_acceleration_a100_bench.csv", {"valid": 349 - 24, "failed": 100}),
        ("llm_foundry_mpt_throughput.csv", {"valid": 216}),
    ],
)
def test_the_public_tables_are_read_whole(name, outcomes):
    history = shared(name)
    assert Counter(history.outcome.tolist()) == outcomes
    assert not np.isnan(history.configurations.gather("model", lambda _: 1.0)).any()
    mfu = implied_mfu(history.configurations, history.tokens_per_s)
    assert np.isfinite(mfu[history.outcome == "valid"]).all()


def test_the_rows_beyond_the_peak_are_the_float16_adapters():
    odd = [each.observation.configuration for each in shared("ibm_sft_throughput.csv").quarantined]
    assert 30 <= len(odd) <= 41
    assert {each.precision for each in odd} == {Precision.FP16}
    assert Method.FULL not in {each.method for each in odd}


def test_mfu_agrees_with_what_llm_foundry_says_where_attention_is_small():
    history = shared("llm_foundry_mpt_throughput.csv")
    path = data_folder() / "config" / "llm_foundry_mpt_throughput.csv"
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    mfu = implied_mfu(history.configurations, history.tokens_per_s)
    short = [
        (ours, float(row["MFU"]) / 100)
        for ours, row in zip(mfu, rows, strict=True)
        if row["Model"] in {"13b", "30b", "70b"} and row["SeqLen (T)"] == "2048"
        if "fp8" not in row["Precision"]
    ]
    assert len(short) > 20
    for ours, theirs in short:
        assert ours == pytest.approx(theirs, rel=0.1)

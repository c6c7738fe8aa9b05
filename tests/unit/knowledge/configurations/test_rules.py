from __future__ import annotations

import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.interop.import_runs.recognise import import_history
from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.configurations.configuration_rules import RULES, Constraint, broken
from duetune.knowledge.configurations.expressions import parse_expression
from duetune.knowledge.observation import RunOutcome
from duetune.market.datasets import data_folder

ONE = Configuration(
    model="mixtral-8x7b", gpu_model="A100-80GB", num_gpus=4, batch_size=8, sharding="fsdp"
)


def holds(text, *rows):
    return parse_expression(text).holds(Configurations.of(rows or [ONE])).tolist()


def first_broken(row):
    rule = int(broken(Configurations.of([row]))[0])
    return None if rule < 0 else RULES[rule].expression


@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("batch_size % num_gpus == 0", True),
        ("batch_size // 3 == 2", True),
        ("batch_size / num_gpus == 2.0", True),
        ("2 * num_gpus - 1 == 7 and -num_gpus < 0", True),
        ("1 <= num_gpus <= 4", True),
        ("1 <= num_gpus < 4", False),
        ("num_gpus in (2, 4)", True),
        ("num_gpus not in [2, 4]", False),
        ('method == "lora" or num_gpus == 1', True),
        ('"full" == method', False),
        ('method in ("full", "qlora")', False),
        ('method not in ("full", "qlora")', True),
        ("not grad_checkpoint", False),
        ("grad_checkpoint and not fast_kernels", True),
        ("fast_moe", False),
        ('(num_gpus == 1) == (sharding == "none")', True),
        ("experts == 8", True),
        ("40 < parameters_b < 50", True),
        ("per_gpu_batch == 2 and per_gpu_tokens == 2048", True),
        ("total_tokens == 8192", True),
        ("gpu_memory_gb == 80", True),
        ("num_gpus % fast_moe == 0", False),
        ("batch_size / fast_moe > 1 or True", True),
    ],
)
def test_an_expression_means_what_it_says(text, true):
    assert holds(text) == [true]


def test_a_cap_is_the_memory_that_there_is():
    assert holds("gpu_memory_gb == 24", ONE.replace(memory_cap_gb=24.0)) == [True]


def test_an_expression_is_of_every_row():
    rows = [ONE.replace(num_gpus=gpus) for gpus in (1, 3, 8)]
    assert holds("batch_size % num_gpus == 0", *rows) == [True, False, True]
    assert holds("True", *rows) == [True] * 3


def test_an_expression_knows_the_fields_it_depends_on():
    fields = parse_expression('per_gpu_tokens > 1 and method == "full"').fields
    sizes = {"batch_size", "num_gpus", "tokens_per_sample", "tokens_per_microbatch"}
    assert fields == {*sizes, "method"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "num_gpus +",
        "num_gpus = 1",
        "gpus == 1",
        "method == 'fulll'",
        "method < 'full'",
        "method == lora",
        "method == 1",
        "model == software",
        "method in 'full'",
        "num_gpus in 4",
        "num_gpus is 4",
        "num_gpus ** 2 == 16",
        "num_gpus.real == 4",
        "__import__('os').getcwd() == ''",
        "len(model) > 3",
        "[x for x in (1, 2)] == 1",
        "(lambda: True)()",
        "num_gpus == 1e999",
        "num_gpus == " + "9" * 600,
        "num_gpus == 1j",
        "'a' == 'a'",
        "num_gpus == 1 if grad_checkpoint else False",
        "x" * 2000,
        "(" * 300 + "True" + ")" * 300,
    ],
)
def test_all_else_is_refused_by_name_on_one_line(text):
    with pytest.raises(InvalidInput) as caught:
        parse_expression(text)
    assert "constraint" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_constraint_that_cannot_be_read_is_never_made():
    with pytest.raises(InvalidInput):
        Constraint("batch_size %% num_gpus")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, None),
        ({"batch_size": 6}, "batch_size % num_gpus"),
        ({"num_nodes": 3}, "num_gpus % num_nodes"),
        ({"fast_moe": 3}, "num_gpus % fast_moe"),
        ({"fast_moe": 4}, None),
        ({"num_gpus": 16, "batch_size": 16, "fast_moe": 16}, "experts % fast_moe"),
        ({"model": "llama3.1-8b", "fast_moe": 4}, None),
        ({"sharding": "none"}, 'num_gpus == 1 or sharding != "none"'),
        ({"sharding": "ddp"}, None),
        ({"lora_rank": 0}, "lora_rank >= 1"),
        ({"lora_rank": 0, "method": "full"}, None),
        ({"batch_size": 0}, "batch_size >= 1"),
        ({"method": "gptq-lora"}, None),
    ],
)
def test_rules_reject_what_cannot_be_started(changes, rule):
    found = first_broken(ONE.replace(**changes))
    assert (found is None) == (rule is None)
    assert rule is None or rule in found


def test_the_first_rule_that_is_broken_is_named():
    rows = Configurations.of([ONE, ONE.replace(batch_size=6, sharding="none"), ONE])
    rules = (Constraint("num_gpus == 4"), Constraint("batch_size != 6"), Constraint("False"))
    assert broken(rows, rules[:2]).tolist() == [-1, 1, -1]
    assert broken(rows, rules).tolist() == [2, 1, 2]
    assert broken(rows, ()).tolist() == [-1, -1, -1]
    assert broken(rows).dtype == np.int8


@pytest.mark.parametrize(
    ("name", "rejected"),
    [
        ("llmfinetuningbench_sample.csv", 48),
        ("ibm_sft_throughput.csv", 0),
        ("fms_acceleration_a100_bench.csv", 0),
        ("llm_foundry_mpt_throughput.csv", 0),
    ],
)
def test_rules_agree_with_public_data(name, rejected):
    path = data_folder() / "config" / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    history = import_history(path).history
    against = broken(history.configurations) >= 0
    assert not (against & (history.outcome == RunOutcome.VALID.value)).any()
    # Of the sample 40 batches cannot be divided by GPUs, and 8 more GPUs not by expert parallelism.
    assert against.sum() == rejected

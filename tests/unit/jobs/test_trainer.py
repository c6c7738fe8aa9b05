from __future__ import annotations

import numpy as np
import pytest

from duetune.cli.fits import fits
from duetune.cli.recommend import recommend
from duetune.errors import InvalidInput
from duetune.jobs.fit_question import FitQuestion, asked_configuration
from duetune.jobs.question import USUAL_BATCH, Question
from duetune.jobs.site import Site
from duetune.jobs.trainer_facts import (
    USUAL,
    TrainerKnowledge,
    adapted_layers,
    foreign_fields,
    precision_kept,
    trainer_software,
)
from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.measure import worker_messages
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.training.task import TrainingMethod

SITE = Site(accelerator="A100-80GB", max_gpus=8, software="torch 9")
MODEL = "meta-llama/Llama-3.1-8B"
KNOWN = TrainerKnowledge(AnalyticSource(), "torch 9")


def made(method=TrainingMethod.LORA, gpus=1, accumulation=8, microbatch=2):
    return Question().configuration(
        method,
        MODEL,
        model_facts(MODEL),
        SITE,
        gpus=gpus,
        microbatch=microbatch,
        accumulation=accumulation,
        checkpointing=True,
    )


def asked(source, *rows):
    return source.query(Configurations.of(rows))


@pytest.mark.parametrize("method", TrainingMethod)
def test_a_gpu_needs_the_same_memory_in_a_group_of_any_size(method):
    rows = [made(method, gpus, accumulation) for gpus, accumulation in ((1, 1), (1, 8), (4, 8))]
    found = asked(KNOWN, *rows)
    assert len(np.unique(found.memory_gb, axis=0)) == 1
    assert len(set(found.p_valid.tolist())) == 1
    # The pace is that of the whole group.
    assert found.tokens_per_s[2, 1] != found.tokens_per_s[1, 1]


def test_all_weights_have_their_gradients_from_the_first_microbatch_on():
    alone = asked(AnalyticSource(), made(TrainingMethod.FULL, accumulation=1))
    held = asked(KNOWN, made(TrainingMethod.FULL, accumulation=1))
    gradients = 4 * model_facts(MODEL).parameters / 1e9
    assert 0 < held.memory_gb[0, 1] - alone.memory_gb[0, 1] <= gradients * 1.001


def test_what_another_trainer_does_is_answered_as_it_is():
    for change in ({"software": "other 1"}, {"attention": "eager"}, {"precision": "fp16"}):
        one = made(TrainingMethod.FULL, accumulation=1).replace(**change)
        mine, plain = asked(KNOWN, one), asked(AnalyticSource(), one)
        assert (mine.memory_gb == plain.memory_gb).all()


def test_what_breaks_a_rule_stays_broken():
    uneven = made(gpus=4).replace(batch_size=5)
    assert asked(KNOWN, uneven)[0].cause.value == "rule"


def test_what_needs_as_much_as_a_run_that_ran_out_does_not_fit_on_any_number_of_gpus():
    known = TrainerKnowledge(AnalyticSource(), "torch 9", [made(gpus=2)])
    for gpus in (1, 2, 4):
        assert asked(known, made(gpus=gpus))[0].p_valid == 0.0
        assert known.ran_out(made(gpus=gpus))
        assert asked(known, made(gpus=gpus, microbatch=1))[0].p_valid > 0.9


def test_options_that_the_trainer_does_not_have_are_named():
    assert foreign_fields(made(TrainingMethod.FULL)) == foreign_fields(made(gpus=4)) == ()
    able = made().replace(method="qlora", optimiser="adamw-8bit")
    assert foreign_fields(able) == ()
    other = made().replace(method="gptq-lora", num_gpus=2, sharding="fsdp")
    assert foreign_fields(other) == ("method gptq-lora", "sharding fsdp")
    assert foreign_fields(made(TrainingMethod.FULL).replace(precision="bf16")) == ()
    assert foreign_fields(made(TrainingMethod.FULL).replace(precision="fp16")) == (
        "precision fp16",
    )


def test_what_is_trained_is_kept_in_32_bits():
    assert precision_kept("full", "bf16") == "bf16-mixed"
    assert precision_kept("full", "fp16") == "fp16-mixed"
    assert [precision_kept("lora", each) for each in ("bf16", "fp16", "fp32")] == [
        *("bf16", "fp16", "fp32"),
    ]


def test_layers_that_are_adapted_are_attention_only_if_all_of_them_are():
    assert adapted_layers(None) == adapted_layers("all-linear") == "all-linear"
    assert adapted_layers(("q_proj", "v_proj")) == adapted_layers("q_proj") == "attention"
    assert adapted_layers(("q_proj", "down_proj")) == "all-linear"


def test_without_its_packages_the_trainer_still_has_a_name(monkeypatch):
    monkeypatch.setattr(worker_messages, "version_of", lambda _: "")
    assert trainer_software() == "torch, transformers, peft"


def test_a_step_is_cut_so_that_every_gpu_has_a_share():
    assert Question().step(8).microbatches == [2, 1]
    assert Question().step(1).microbatches == [16, 8, 4, 2, 1]
    assert Question(microbatch=4).step(8).accumulated(4) == 8
    assert Question(accumulation=4).step(8).microbatches == [4, 2, 1]
    assert Question(batch=24).step(8).microbatches == [24, 12, 8, 6, 4, 3, 2, 1]
    assert Question(batch=24).step(8).accumulated(6) == 4


def single(**fields):
    wish = FitQuestion(**({"model": "llama3.1-8b", "gpu": "A100-80GB"} | fields))
    return asked_configuration(wish, lambda _: True)


def test_where_nothing_is_said_it_is_what_the_trainer_does():
    one, told = single(gpus=4)
    assert one == made(gpus=4, accumulation=1, microbatch=1).replace(software=trainer_software())
    assert (one.batch_size, one.tokens_per_sample, one.lora_rank) == (4, 1024, 16)
    assert (one.num_nodes, one.sharding, one.precision) == (4, "ddp", "bf16")
    assert told == ()
    assert single(model="HuggingFaceTB/SmolLM2-135M")[0].method == "full"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"method": "full", "precision": "fp16"}, "precision fp16"),
        ({"software": "trl 1"}, "software trl 1"),
        ({"gpus": 2, "sharding": "fsdp"}, "sharding fsdp"),
    ],
)
def test_another_trainer_is_said_plainly(fields, words):
    _, told = single(**fields)
    assert told == (f"a trainer other than duetune's: {words}",)


def test_a_field_that_cannot_be_is_refused():
    for fields in ({"gpus": 0}, {"targets": "some"}, {"precision": "fp64"}, {"memory_gb": -1.0}):
        with pytest.raises(InvalidInput):
            single(**fields)
    assert isinstance(single()[0], Configuration)


def test_the_defaults_that_help_names_are_the_trainers():
    said = {
        each.name: each.help or ""
        for each in (*fits.params, *recommend.params)
        if "help" in vars(each)
    }
    assert f"[default: {USUAL.max_length}]" in said["seq"]
    assert f"[default: {USUAL.lora_r}]" in said["rank"]
    assert f"[default: {USUAL.lora_target_modules}]" in said["targets"]
    assert f"[default: {USUAL_BATCH}]" in said["batch"]

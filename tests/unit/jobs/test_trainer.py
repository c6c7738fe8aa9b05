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
    adapted_layers,
    foreign_fields,
    nodes_of,
    precision_kept,
    trainer_software,
)
from duetune.jobs.trainer_knowledge import Packing, TrainerKnowledge
from duetune.knowledge.advisor import Advisor
from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.history import History
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


def test_layers_that_are_adapted_are_named():
    assert adapted_layers(None) == adapted_layers("all-linear") == "all-linear"
    assert adapted_layers(("v_proj", "q_proj")) == "q_proj+v_proj"
    assert adapted_layers(("q_proj", "k_proj", "v_proj", "o_proj")) == "attention"
    assert adapted_layers(r".*\.(q|v)_proj") == "all-linear"


def test_gpus_are_on_machines_of_eight_at_most():
    assert [nodes_of(gpus) for gpus in (1, 6, 8, 12, 16, 24)] == [1, 1, 1, 2, 2, 3]
    with pytest.raises(InvalidInput, match="equally many"):
        nodes_of(13)


def test_without_its_packages_the_trainer_still_has_a_name(monkeypatch):
    monkeypatch.setattr(worker_messages, "version_of", lambda _: "")
    assert trainer_software() == "duetune 2, torch, transformers, peft"


def test_a_step_is_cut_so_that_every_gpu_has_a_share():
    assert Question().step(8).microbatches == [2, 1]
    assert Question().step(1).microbatches == [16, 8, 4, 2, 1]
    assert Question(microbatch=4).step(8).accumulated(4) == 8
    assert Question(accumulation=4).step(8).microbatches == [4, 2, 1]
    assert Question(batch=24).step(8).microbatches == [24, 12, 8, 6, 4, 3, 2, 1]
    assert Question(batch=24).step(8).accumulated(6) == 4


def single(**fields):
    wish = FitQuestion(**({"model": "llama3.1-8b", "gpu": "A100-80GB"} | fields))
    return asked_configuration(wish, lambda: TrainerKnowledge(AnalyticSource(), trainer_software()))


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
        ({"gpus": 12, "sharding": "fsdp"}, "sharding fsdp"),
        ({"gpus": 2, "sharding": "fsdp", "method": "qlora"}, "sharding fsdp"),
    ],
)
def test_another_trainer_is_said_plainly(fields, words):
    _, told = single(**fields)
    assert told == (f"a trainer other than duetune's: {words}",)


def test_a_field_that_cannot_be_is_refused():
    for fields in (
        {"gpus": 0},
        {"gpu": "A100-80GB:2", "gpus": 2},
        {"gpu": "A100-80GB:many"},
        {"gpus": 2, "gpus_per_member": 4},
        {"gpus": 6, "gpus_per_member": 4},
        {"gpus": 2, "gpus_per_member": 2, "method": "qlora"},
        {"targets": "v_proj+"},
        {"precision": "fp64"},
        {"memory_gb": -1.0},
    ):
        with pytest.raises(InvalidInput):
            single(**fields)
    assert isinstance(single()[0], Configuration)


def test_layers_may_be_named_in_any_order():
    assert single(targets="v_proj+q_proj")[0].lora_targets == "q_proj+v_proj"
    assert single(targets="v_proj+q_proj") == single(targets="q_proj+v_proj")
    assert single(targets="o_proj+v_proj+q_proj+k_proj")[0].lora_targets == "attention"


def test_a_gpu_may_have_its_number_as_in_a_job_spec():
    assert single(gpu="A100-80GB:12") == single(gpus=12)
    one, _ = single(gpu="A100-80GB:12")
    assert (one.num_gpus, one.num_nodes, one.sharding) == (12, 12, "ddp")


def test_members_share_one_copy_of_the_model():
    one, told = single(gpus=8, gpus_per_member=4)
    assert (one.num_gpus, one.num_nodes, one.sharding) == (8, 2, "hybrid")
    assert told == () == foreign_fields(one)
    alone, _ = single(gpus=4, gpus_per_member=4)
    assert (alone.num_nodes, alone.sharding) == (1, "fsdp")
    known = TrainerKnowledge(AnalyticSource(), trainer_software())
    whole, member, group = asked(known, single(gpus=8)[0], alone, one)
    # A member needs the same memory in any group, and less than GPUs with the whole model.
    assert member.memory_gb == group.memory_gb
    assert member.memory_gb.middle < 0.6 * whole.memory_gb.middle
    assert 1.5 < group.tokens_per_s.middle / member.tokens_per_s.middle <= 2.0


def test_a_model_too_large_for_one_gpu_gets_members_and_says_so():
    one, told = single(model="llama3.1-70b", gpus=8, method="lora")
    assert one.sharding == "hybrid"
    why = "the model needs the memory of so many GPUs"
    assert told == (f"members of {one.num_gpus // one.num_nodes} GPUs: {why}",)
    smaller, told = single(model="llama3.1-70b", gpus=8)
    assert smaller.method == "qlora"
    assert told == ("method qlora: adapters on weights in 16 bits do not fit in GPU memory",)


def test_the_nearest_miss_is_on_whole_nodes():
    known = TrainerKnowledge(AnalyticSource(), trainer_software())
    one, _ = single(model="org/model-2000b", gpus=12)
    near = Advisor(known, History.empty()).fit(one).nearest
    assert (near.configuration.num_gpus, near.configuration.num_nodes) == (16, 2)


def test_attention_is_that_of_the_trainer_unless_it_is_named():
    assert single()[0].attention == "varlen"
    assert single(attention="eager")[0].attention == "eager"


def test_a_step_with_known_rows_needs_no_more_than_they_have():
    short = Packing(tokens_per_row=10.0)
    rows = Configurations.of([made(microbatch=8, accumulation=1)])
    assert short.tokens(rows)[0] == USUAL.max_length
    assert Packing().tokens(rows)[0] == 8 * USUAL.max_length
    assert Packing(budget=3000).tokens(rows)[0] == 3000
    known = TrainerKnowledge(AnalyticSource(), "torch 9", packing=short)
    assert known.query(rows)[0].memory_gb.middle < KNOWN.query(rows)[0].memory_gb.middle


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

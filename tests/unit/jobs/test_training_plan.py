from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.jobs.configure import TrainingPlan, configure, held_out_rows
from duetune.jobs.site import Site
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.step_time import Basis, MeasuredPace, busiest_share, usual_rows
from duetune.jobs.training_settings import training_task
from duetune.knowledge.facts.gpus import GPUS
from duetune.knowledge.facts.model_facts import model_facts
from duetune.training.batches import held_out
from duetune.training.packed_rows import shares

SMALL, LARGE, UNKNOWN = "org/model-0.5b", "org/model-7b", "org/model"
A100 = Site(accelerator="A100-80GB", max_gpus=8)
ALONE = {"gpus_per_member": 1}


def spec_with(**fields):
    training = fields.pop("training", {})
    given = {"model": LARGE, "dataset": "org/data", "deadline": "8h", "training": training}
    return JobSpec.model_validate(given | fields)


def chosen(site=A100, rows=20_000, measured=(), **fields) -> TrainingPlan:
    spec = spec_with(**fields)
    return configure(spec, site, rows, model_facts(spec.model), measured)


def test_what_is_left_open_is_chosen_and_every_choice_has_a_reason():
    plan = chosen()
    assert plan.accelerator == "A100-80GB"
    assert plan.method == "lora"
    assert plan.precision == "bf16"
    assert (plan.lora_r, plan.lora_alpha) == (16, 32.0)
    assert plan.epochs == 3.0
    assert (plan.min_gpus, plan.max_gpus) == (1, 8)
    assert plan.global_batch == 16
    assert plan.microbatch * plan.accumulation == 16
    assert plan.max_length == 1024
    assert plan.reasons.keys() >= {
        *("accelerator", "min_gpus", "max_gpus", "method", "microbatch", "accumulation"),
        *("global_batch", "precision", "gradient_checkpointing", "max_length", "lora_r"),
        *("lora_alpha", "epochs", "total_steps", "parameters", "step_s"),
    }
    assert all(plan.reasons.values())
    assert "given" not in plan.reasons.values()


def test_what_is_given_is_kept_and_said_to_be():
    plan = chosen(
        method="lora",
        resources={"accelerators": "A100:2..4"},
        training={
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 6,
            "max_length": 512,
            "num_train_epochs": 2,
            "gradient_checkpointing": True,
            "fp16": True,
        },
    )
    assert (plan.min_gpus, plan.max_gpus) == (2, 4)  # rows are shared out one by one
    assert plan.method == "lora"
    assert (plan.microbatch, plan.accumulation) == (4, 6)
    assert plan.global_batch == 24
    assert plan.max_length == 512
    assert plan.epochs == 2
    assert plan.gradient_checkpointing
    assert plan.precision == "fp16"
    for field in ("method", "microbatch", "accumulation", "max_length", "precision", "epochs"):
        assert plan.reasons[field] == "given"


def test_the_document_survives_json():
    plan = chosen()
    text = msgspec.json.encode(plan)
    assert msgspec.json.decode(text, type=TrainingPlan) == plan


def test_small_models_are_trained_whole_and_large_ones_adapted():
    assert chosen(model=SMALL).method == "full"
    assert chosen(model="org/model-1.5b").method == "lora"
    assert chosen(model="org/model-0.9b", site=Site(accelerator="T4")).method == "lora"
    assert chosen(model=SMALL, training={"lora_r": 8}).method == "lora"
    assert chosen(model=SMALL, training={"use_dora": True}).method == "lora"
    assert chosen(model=SMALL, training={"use_dora": False}).method == "full"
    assert chosen(model=UNKNOWN).method == "lora"


@pytest.mark.parametrize(
    ("site", "precision"),
    [
        (Site(accelerator="H100"), "bf16"),
        (Site(accelerator="V100-32GB"), "fp16"),
        (Site(), "fp32"),
        (Site(accelerator="H100", emulated_microbatch_s=0.1), "fp32"),
    ],
)
def test_precision_is_what_the_gpu_can_do(site, precision):
    assert chosen(site=site, model="org/model-1.5b").precision == precision


def test_steps_are_counted_as_the_trainer_counts_them():
    plan = chosen(rows=1000)
    trained = 1000 - len(held_out(1000, 0.05, 256, seed=42))
    assert plan.total_steps == math.ceil(3 * trained / 16)
    assert chosen(training={"max_steps": 77}).total_steps == 77


@pytest.mark.parametrize("rows", [1, 2, 19, 400, 10_000])
@pytest.mark.parametrize("fraction", [None, 0.3, 0.9])
def test_rows_held_out_are_those_of_the_trainer(rows, fraction):
    spec = spec_with(training={} if fraction is None else {"eval_fraction": fraction})
    assert held_out_rows(spec, rows) == held_out(rows, fraction or 0.05, 256, seed=42).size


def test_rows_for_evaluation_of_its_own_are_not_taken_from_the_dataset():
    assert held_out_rows(spec_with(training={"eval_dataset": "org/other"}), 1000) == 0


def test_unknown_rows_need_the_number_of_steps():
    with pytest.raises(InvalidInput, match=r"^training\.max_steps"):
        chosen(rows=None)
    assert chosen(rows=None, training={"max_steps": 10}).total_steps == 10


def test_a_tiny_dataset_gets_a_small_batch():
    plan = chosen(rows=6)
    assert plan.global_batch == 4
    assert plan.accumulation == 4
    # Examples differ in length: more GPUs would wait for the longest one.
    assert plan.max_gpus == 2


def test_the_microbatch_leaves_every_gpu_a_share_of_a_step():
    for most in (1, 2, 4, 8):
        site = Site(accelerator="H200", max_gpus=most)
        plan = chosen(site=site, model="org/model-1.5b")
        assert plan.max_gpus == most
        assert plan.accumulation >= most


def test_the_peak_fits_and_is_made_of_its_terms():
    for name in ("T4", "L4", "A100", "H200"):
        plan = chosen(site=Site(accelerator=name), model="org/model-3b")
        assert plan.memory_gb is not None
        assert plan.memory_gb <= GPUS[name].capacity / 1e9
        assert plan.p_fits >= 0.8
        # Not all of it is needed at the same time.
        assert plan.memory_gb <= sum(plan.memory_terms.values())
        assert plan.memory_gb >= plan.memory_terms["weights"]


def test_recomputing_and_shorter_examples_come_in_only_where_memory_is_short():
    roomy = chosen(site=Site(accelerator="H200"))
    assert not roomy.gradient_checkpointing
    small = chosen(site=Site(accelerator="L4", memory_gb=20))
    assert small.gradient_checkpointing
    assert small.reasons["gradient_checkpointing"] != "given"
    lengths = []
    for memory_gb in range(24, 8, -1):
        try:
            smaller = chosen(
                method="lora",
                site=Site(accelerator="L4", memory_gb=memory_gb),
                resources=ALONE,
            )
        except InvalidInput:
            break
        lengths.append(smaller.max_length)
        cut = smaller.reasons["max_length"] == "the longest that fits in GPU memory"
        assert cut == (smaller.max_length < 1024)
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[-1] < 1024) == (1024, True)


def saved(folder, **changes):
    """A model of 840 million parameters, as it is saved."""
    config = {
        "model_type": "llama",
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "intermediate_size": 6144,
        "vocab_size": 32_000,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config | changes), "utf-8")
    return str(folder)


def test_the_length_is_no_longer_than_the_model_can_take(tmp_path):
    assert chosen(model=saved(tmp_path, max_position_embeddings=512)).max_length == 512


@pytest.mark.parametrize(
    ("fields", "site", "field", "hint"),
    [
        (
            {"model": "org/model-70b", "method": "lora"},
            A100,
            "model",
            " billion parameters with lora in the 80 GB of A100-80GB",
        ),
        (
            {"method": "full", "model": "org/model-20b"},
            A100,
            "method",
            "lora in the 80 GB of A100-80GB",
        ),
        (
            {"training": {"per_device_train_batch_size": 4096, "max_length": 1024}},
            A100,
            "training.per_device_train_batch_size",
            "at most ",
        ),
        (
            {"training": {"max_length": 200_000}},
            A100,
            "training.max_length",
            "at most ",
        ),
        (
            {
                "method": "lora",
                "training": {"gradient_checkpointing": False, "max_length": 8192},
            },
            Site(accelerator="L4"),
            "training.gradient_checkpointing",
            "true",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(fields, site, field, hint):
    with pytest.raises(InvalidInput) as caught:
        chosen(site=site, resources=ALONE, **fields)
    assert caught.value.field == field
    assert hint in caught.value.allowed


def test_a_model_too_large_for_one_gpu_gets_members_of_as_few_as_it_needs():
    asked = {"site": A100, "model": "org/model-70b", "method": "lora"}
    plan = chosen(**asked, resources={"accelerators": "auto:8"})
    assert 1 < plan.gpus_per_member <= 8
    assert plan.reasons["gpus_per_member"] == "the model needs the memory of so many GPUs"
    assert plan.max_gpus * plan.gpus_per_member <= 8
    assert len(plan.step_s) == plan.max_gpus + 1
    assert plan.memory_gb < 80
    fewer = plan.gpus_per_member // 2
    with pytest.raises(InvalidInput, match="model"):
        chosen(**asked, resources={"gpus_per_member": fewer})
    assert chosen(site=A100).gpus_per_member == 1


def test_members_share_the_gpus_of_a_job_evenly():
    asked = {"site": A100, "model": "org/model-70b", "method": "lora"}
    with pytest.raises(InvalidInput, match=r"^resources\.gpus_per_member.*one of 1, 2, 3, 6"):
        chosen(**asked, resources={"accelerators": "auto:6", "gpus_per_member": 4})
    assert chosen(**asked, resources={"accelerators": "auto:1..6"}).gpus_per_member == 4
    with pytest.raises(InvalidInput, match="weights in 4 bits cannot be sharded"):
        chosen(method="qlora", resources={"gpus_per_member": 2})


@pytest.mark.parametrize(
    ("rows", "gpus", "longest"), [(16, 3, 1024), (16, 8, 1024), (64, 12, 4096), (10, 4, 512)]
)
def test_the_busiest_gpu_has_what_the_trainer_would_give_it(rows, gpus, longest):
    lengths = usual_rows(rows, 512, longest)
    given = shares(lengths.astype(np.int64), (1.0,) * gpus)
    most = max(lengths[places].sum() for places in given) / lengths.sum()
    assert busiest_share(lengths, gpus) <= most <= 1.08 * busiest_share(lengths, gpus)


@pytest.mark.parametrize(("strategy", "every"), [("steps", 10), ("epoch", 3859 / 16)])
def test_a_step_includes_its_share_of_the_evaluations(strategy, every):
    evaluated = {"eval_strategy": strategy} | ({"eval_steps": 10} if strategy == "steps" else {})
    usual, more = chosen(rows=4062), chosen(rows=4062, training=evaluated)
    # A forward pass is half of the arithmetic of LoRA without recomputation.
    kept = held_out_rows(spec_with(), 4062)
    share = kept / every / usual.global_batch / (3 if more.gradient_checkpointing else 2)
    assert more.step_s[1] / usual.step_s[1] == pytest.approx(1 + share, rel=0.02)
    assert more.step_s[8] > usual.step_s[8]


def test_a_member_has_no_more_gpus_than_the_job():
    with pytest.raises(InvalidInput, match=r"resources\.gpus_per_member"):
        chosen(site=A100, resources={"accelerators": "auto:4", "gpus_per_member": 8})


@pytest.mark.parametrize(
    ("field", "size"), [("per_device_train_batch_size", 100_000), ("max_length", 400_000)]
)
def test_the_largest_that_is_said_to_fit_does(field, size):
    usual = {"per_device_train_batch_size": 1, "max_length": 1024}
    with pytest.raises(InvalidInput) as caught:
        chosen(method="lora", training=usual | {field: size})
    most = int(caught.value.allowed.split()[2])
    chosen(method="lora", training=usual | {field: most})
    with pytest.raises(InvalidInput):
        chosen(method="lora", training=usual | {field: most + 1})


def test_gpus_that_the_fleet_does_not_sell_are_refused():
    assert chosen(resources={"accelerators": "A100"}).accelerator == "A100-80GB"
    refused = r"^resources\.accelerators.*auto or A100-80GB.*; for H100, .*--accelerator$"
    with pytest.raises(InvalidInput, match=refused):
        chosen(resources={"accelerators": "H100:2"})
    with pytest.raises(InvalidInput, match=r"^resources\.accelerators.*at most 8"):
        chosen(resources={"accelerators": "A100:9"})


def test_fewer_microbatches_than_the_fewest_gpus_are_refused():
    with pytest.raises(InvalidInput, match=r"^training\.gradient_accumulation_steps.*at least 4"):
        chosen(resources={"accelerators": "A100:4"}, training={"gradient_accumulation_steps": 2})


def test_of_an_unknown_model_no_memory_is_claimed():
    plan = chosen(model=UNKNOWN)
    assert plan.parameters is None
    assert plan.memory_gb is None
    assert plan.memory_terms == {}
    assert plan.reasons["parameters"] == "unknown"
    assert "7 billion" in plan.reasons["step_s"]


def test_more_gpus_take_less_time_for_a_step():
    plan = chosen()
    steps = plan.step_s
    assert plan.basis is Basis.PHYSICS
    assert len(steps) == plan.max_gpus + 1
    assert steps[0] == 0.0
    assert steps[1] > steps[2] > steps[4] > steps[8]
    assert steps[8] > steps[1] / 8


def test_gpus_that_would_only_wait_for_the_network_are_left_out():
    slow = Site(accelerator="A100-80GB", max_gpus=8, network_gb_s=0.1)
    assert chosen(site=slow, model=SMALL, method="full").max_gpus == 1
    assert chosen(site=slow, model=SMALL, method="full", resources={"accelerators": "auto:4"})


def test_an_emulated_gpu_takes_the_time_it_is_said_to():
    site = Site(accelerator="H100", max_gpus=4, emulated_microbatch_s=2.0)
    plan = chosen(site=site, model=UNKNOWN)
    assert plan.basis is Basis.EMULATED
    assert plan.emulated_microbatch_s == 2.0
    # Examples are shared out one by one.
    for gpus in range(1, 5):
        busiest = math.ceil(plan.global_batch / gpus) / plan.microbatch
        assert plan.step_s[gpus] == pytest.approx(2.0 * busiest, rel=0.05)
    whole = chosen(site=site, model=UNKNOWN, training={"reproducible": True})
    assert whole.step_s[3] == pytest.approx(2.0 * math.ceil(whole.accumulation / 3), rel=0.05)


def measured(**fields) -> MeasuredPace:
    usual = {
        "subject": LARGE,
        "accelerator": "A100-80GB",
        "method": "lora",
        "max_length": 1024,
        "gpus": 1,
        "step_s": 8.0,
        "microbatch": 2,
        "accumulation": 8,
    }
    return MeasuredPace(**(usual | fields))


def test_what_was_measured_here_goes_before_what_is_known():
    plan = chosen(measured=[measured()])
    assert plan.basis is Basis.MEASURED
    assert plan.step_s[1] == 8.0
    assert plan.step_s[2] == pytest.approx(4.0, rel=0.02)
    other = chosen(measured=[measured(microbatch=1, accumulation=16, step_s=8.0)])
    assert other.step_s[1] == pytest.approx(8.0, rel=0.02)


@pytest.mark.parametrize(
    "other",
    [{"subject": "org/other"}, {"accelerator": "L4"}, {"method": "full"}, {"max_length": 64}],
)
def test_what_was_measured_on_something_else_does_not_count(other):
    assert chosen(measured=[measured(**other)]).basis is Basis.PHYSICS


def own_command(**fields):
    return JobSpec.model_validate({"run": "python train.py", "deadline": "2h"} | fields)


def test_an_own_command_runs_on_one_gpu_and_reports_percent():
    plan = configure(own_command(), Site(speed=60.0))
    assert (plan.min_gpus, plan.max_gpus) == (1, 1)
    assert plan.total_steps == 100
    assert plan.basis is Basis.ASSUMED
    # Half of two hours, sixty times as fast.
    assert 100 * plan.step_s[1] == pytest.approx(60.0)


def test_an_own_command_is_as_fast_as_it_was():
    earlier = MeasuredPace(subject="python train.py", accelerator="CPU", gpus=1, step_s=3.0)
    spec = own_command(training={"max_steps": 20})
    plan = configure(spec, Site(), measured=[earlier])
    assert plan.basis is Basis.MEASURED
    assert plan.total_steps == 20
    assert plan.step_s == (0.0, 3.0)


def test_an_own_command_with_an_exact_number_of_gpus_has_one_node():
    spec = own_command(resources={"accelerators": "auto:4"})
    plan = configure(spec, Site())
    assert (plan.min_gpus, plan.max_gpus, plan.gpus_per_member) == (1, 1, 4)
    assert not spec.has_members
    ran = MeasuredPace(subject="python train.py", accelerator="CPU", gpus=1, step_s=6.0)
    assert configure(spec, Site(), measured=[ran]).step_s == (0.0, 1.5)
    with pytest.raises(InvalidInput, match=r"^resources\.accelerators.*at most 2"):
        configure(spec, Site(max_gpus=2))
    both = {"accelerators": "auto:1..4", "gpus_per_member": 2}
    with pytest.raises(InvalidInput, match=r"^resources\.gpus_per_member.*once per GPU"):
        configure(own_command(resources=both), Site())


def test_an_own_command_with_a_range_of_gpus_has_members():
    ran = {"subject": "python train.py", "accelerator": "CPU"}
    earlier = [
        MeasuredPace(gpus=1, step_s=6.0, **ran),
        MeasuredPace(gpus=2, step_s=4.0, **ran),
    ]
    spec = own_command(resources={"accelerators": "auto:1..3"})
    assert spec.has_members
    plan = configure(spec, Site(), measured=earlier)
    assert (plan.min_gpus, plan.max_gpus) == (1, 3)
    assert plan.step_s == pytest.approx((0.0, 6.0, 4.0, 7.0 / 3))
    assert configure(spec, Site(max_gpus=2)).max_gpus == 2
    assert not own_command(resources={"accelerators": "auto:1"}).has_members
    assert not own_command().has_members


def test_an_own_command_with_a_moment_for_a_deadline_needs_the_present():
    spec = own_command(deadline="2030-01-01T10:00Z")
    with pytest.raises(InvalidInput, match=r"^deadline"):
        configure(spec, Site())
    now = spec.deadline_at(0.0) - 3600
    assert configure(spec, Site(), now=now).step_s[1] == pytest.approx(18.0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_gpus": 0}, "max_gpus"),
        ({"speed": 0.0}, "speed"),
        ({"memory_gb": -1.0}, "memory_gb"),
        ({"grow_s": -1.0}, "grow_s"),
        ({"startup_s": math.inf}, "startup_s"),
    ],
)
def test_a_site_that_cannot_be_is_refused(change, field):
    with pytest.raises(InvalidInput, match=rf"^site\.{field}"):
        Site(**change)


def test_a_site_knows_its_gpu_by_name_and_may_know_better():
    assert Site(accelerator="h100").memory == 80
    assert Site(accelerator="H100", memory_gb=94).memory == 94
    assert Site().memory is None


def test_a_model_by_hand_takes_the_memory_it_should(tmp_path):
    model = saved(tmp_path)
    parameters = model_facts(model).parameters
    assert parameters == pytest.approx(0.84e9, rel=0.01)
    site = Site(accelerator="H200")
    # Full training takes 16 bytes a parameter: itself, its gradient and two moments, in 32 bits.
    full = chosen(model=model, method="full", site=site).memory_terms
    assert full["weights"] == pytest.approx(4 * parameters / 1e9)
    assert full["gradients"] == pytest.approx(4 * parameters / 1e9)
    assert full["optimiser"] >= 8 * parameters / 1e9
    # Rank 16 on all linear layers of 16 blocks, beside the frozen weights in 16 bits.
    adapter = 16 * 16 * (2 * 4096 + 2 * 2560 + 3 * 8192) / 1e9
    lora = chosen(model=model, method="lora", site=site).memory_terms
    assert lora["weights"] == pytest.approx(2 * parameters / 1e9 + 4 * adapter)
    assert lora["gradients"] == pytest.approx(4 * adapter)
    assert lora["optimiser"] == pytest.approx(8 * adapter)


def task_of(**fields):
    spec = spec_with(**fields)
    plan = configure(spec, A100, 20_000, model_facts(spec.model))
    return plan, training_task(spec, plan)


@pytest.mark.parametrize(
    ("fields", "precision"),
    [
        ({"model": SMALL, "method": "full"}, "bf16-mixed"),
        ({"model": SMALL, "method": "full", "training": {"bf16": True}}, "bf16-mixed"),
        ({"model": SMALL, "method": "full", "training": {"precision": "bf16"}}, "bf16"),
        ({"method": "lora"}, "bf16"),
        ({"method": "qlora"}, "bf16"),
        ({"method": "lora", "training": {"precision": "fp32"}}, "fp32"),
    ],
)
def test_the_trainer_keeps_weights_as_the_plan_says(fields, precision):
    """Full training with and without 32-bit weights differs by a factor of 2 in memory."""
    plan, task = task_of(**fields)
    assert plan.precision == task.weights == precision
    assert plan.method == task.method


def test_pure_bfloat16_and_fewer_bits_need_less_memory():
    needs = {
        name: task_of(model=SMALL, method="full", training=training)[0].memory_gb
        for name, training in (
            ("mixed", {}),
            ("pure", {"precision": "bf16"}),
            ("8 bits", {"optim": "adamw_8bit"}),
        )
    }
    assert needs["pure"] < 0.8 * needs["mixed"]
    assert needs["8 bits"] < 0.9 * needs["mixed"]
    adapted = {method: task_of(method=method)[0].memory_terms for method in ("lora", "qlora")}
    assert adapted["qlora"]["weights"] < 0.5 * adapted["lora"]["weights"]


def test_what_the_trainer_shall_do_reaches_its_task(tmp_path):
    (tmp_path / "mine.jinja").write_text("{{ messages }}")
    training = {
        "load_in_4bit": True,
        "optim": "lion_8bit",
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": 20},
        "use_dora": True,
        "lora_modules_to_save": ["lm_head"],
        "init_lora_weights": "gaussian",
        "chat_template_path": str(tmp_path / "mine.jinja"),
        "packing": True,
        "report_to": "all",
        "eval_strategy": "epoch",
    }
    plan, task = task_of(training=training)
    assert (plan.method, task.method, plan.lora_r) == ("qlora", "qlora", 16)
    assert (task.optim, task.lr_scheduler_kwargs.num_decay_steps) == ("lion_8bit", 20)
    assert (task.use_dora, task.lora_modules_to_save) == (True, ("lm_head",))
    assert (task.init_lora_weights, task.chat_template) == ("gaussian", "{{ messages }}")
    assert (task.report_to, task.eval_strategy) == (("wandb", "mlflow", "tensorboard"), "epoch")


NODES = msgspec.structs.replace(A100, max_gpus=32, gpus_per_node=8)


def test_a_member_is_a_whole_node_if_the_fleet_gives_only_those():
    plan = chosen(site=NODES)
    assert (plan.gpus_per_member, plan.min_gpus) == (8, 1)
    assert plan.reasons["gpus_per_member"] == "the fleet gives only whole nodes of 8 GPUs"
    two = chosen(site=NODES, resources={"accelerators": "auto:12..20"})
    assert (two.gpus_per_member, two.min_gpus, two.max_gpus) == (8, 2, 2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"resources": {"gpus_per_member": 4}}, "gpus_per_member: 4 .* 8: the fleet gives only"),
        ({"resources": {"accelerators": "auto:4"}}, "'auto:4' .* a multiple of 8, at most 32"),
        ({"resources": {"accelerators": "auto:12"}}, "'auto:12' .* a multiple of 8, at most 32"),
        ({"method": "qlora"}, "8 .* 1: weights in 4 bits cannot be sharded, but the fleet"),
    ],
)
def test_a_job_that_wants_a_part_of_a_node_is_refused(fields, words):
    with pytest.raises(InvalidInput, match=words):
        chosen(site=NODES, **fields)


def test_a_limit_below_one_node_is_refused_with_its_name():
    with pytest.raises(InvalidInput, match=r"queue\.gpus: 4 .* at least 8: the fleet gives only"):
        chosen(site=NODES.within(4, "queue.gpus"))


def test_steps_are_divided_among_all_gpus_of_the_least_members():
    asked = {"resources": {"accelerators": "auto:12..32"}}
    with pytest.raises(InvalidInput, match="at least 16, the minimum number of GPUs"):
        chosen(site=NODES, training={"gradient_accumulation_steps": 12}, **asked)


@pytest.mark.parametrize(
    ("accelerators", "members"), [("auto", (1, 1)), ("auto:8", (1, 1)), ("auto:9..32", (2, 4))]
)
def test_a_command_runs_on_whole_nodes(accelerators, members):
    spec = JobSpec.model_validate(
        {"run": "train", "deadline": "8h", "resources": {"accelerators": accelerators}}
    )
    plan = configure(spec, NODES)
    assert (plan.gpus_per_member, plan.min_gpus, plan.max_gpus) == (8, *members)


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"accelerators": "auto:16"}, r"'auto:16' .* 8, or a range such as 8\.\.16"),
        ({"accelerators": "auto:8..16", "gpus_per_member": 1}, "gpus_per_member: 1 .* 8: the"),
    ],
)
def test_a_command_that_does_not_fit_nodes_is_refused(resources, words):
    spec = JobSpec.model_validate({"run": "train", "deadline": "8h", "resources": resources})
    with pytest.raises(InvalidInput, match=words):
        configure(spec, NODES)

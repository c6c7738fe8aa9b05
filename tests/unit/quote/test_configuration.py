from __future__ import annotations

import math

import msgspec
import pytest

from duetune.errors import InvalidInput
from duetune.quote.configuration import Configuration, configure, held_out_rows
from duetune.quote.model import ModelFacts, usual_model
from duetune.quote.pace import Basis, MeasuredPace
from duetune.quote.site import GPUS, Site
from duetune.spec.schema import JobSpec
from duetune.training.batches import held_out

SMALL = usual_model(5e8, "its name")
LARGE = usual_model(7e9, "its name")
A100 = Site(accelerator="A100-80GB", max_gpus=8)


def spec_with(**fields):
    training = fields.pop("training", {})
    given = {"model": "org/model", "dataset": "org/data", "deadline": "8h", "training": training}
    return JobSpec.model_validate(given | fields)


def chosen(site=A100, rows=20_000, model=LARGE, measured=(), **fields) -> Configuration:
    return configure(spec_with(**fields), site, rows, model, measured)


def test_what_is_left_open_is_chosen_and_every_choice_has_a_reason():
    configuration = chosen()
    assert configuration.accelerator == "A100-80GB"
    assert configuration.method == "lora"
    assert configuration.precision == "bf16"
    assert (configuration.lora_r, configuration.lora_alpha) == (16, 32.0)
    assert configuration.epochs == 3.0
    assert (configuration.min_gpus, configuration.max_gpus) == (1, 8)
    assert configuration.global_batch == 16
    assert configuration.microbatch * configuration.accumulation == 16
    assert configuration.max_length == 1024
    assert configuration.reasons.keys() >= {
        *("accelerator", "min_gpus", "max_gpus", "method", "microbatch", "accumulation"),
        *("global_batch", "precision", "gradient_checkpointing", "max_length", "lora_r"),
        *("lora_alpha", "epochs", "total_steps", "parameters", "step_s"),
    }
    assert all(configuration.reasons.values())
    assert "given" not in configuration.reasons.values()


def test_what_is_given_is_kept_and_said_to_be():
    configuration = chosen(
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
    assert (configuration.min_gpus, configuration.max_gpus) == (2, 3)  # a fourth would only wait
    assert configuration.method == "lora"
    assert (configuration.microbatch, configuration.accumulation) == (4, 6)
    assert configuration.global_batch == 24
    assert configuration.max_length == 512
    assert configuration.epochs == 2
    assert configuration.gradient_checkpointing
    assert configuration.precision == "fp16"
    for field in ("method", "microbatch", "accumulation", "max_length", "precision", "epochs"):
        assert configuration.reasons[field] == "given"


def test_the_document_survives_json():
    configuration = chosen()
    text = msgspec.json.encode(configuration)
    assert msgspec.json.decode(text, type=Configuration) == configuration


def test_small_models_are_trained_whole_and_large_ones_adapted():
    assert chosen(model=SMALL).method == "full"
    assert chosen(model=usual_model(1.5e9, "")).method == "lora"
    assert chosen(model=SMALL, site=Site(accelerator="T4")).method == "lora"
    assert chosen(model=SMALL, training={"lora_r": 8}).method == "lora"
    assert chosen(model=None).method == "lora"


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
    assert chosen(site=site, model=usual_model(1.5e9, "")).precision == precision


def test_steps_are_counted_as_the_trainer_counts_them():
    configuration = chosen(rows=1000)
    trained = 1000 - len(held_out(1000, 0.05, 256, seed=42))
    assert configuration.total_steps == math.ceil(3 * trained / 16)
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
    configuration = chosen(rows=6)
    assert configuration.global_batch == 4
    assert configuration.accumulation == configuration.max_gpus == 4


def test_the_microbatch_leaves_every_gpu_a_share_of_a_step():
    for most in (1, 2, 4, 8):
        site = Site(accelerator="H200", max_gpus=most)
        configuration = chosen(site=site, model=usual_model(1.5e9, ""))
        assert configuration.max_gpus == most
        assert configuration.accumulation >= most


def test_the_peak_fits_and_is_the_sum_of_its_terms():
    for name in ("T4", "L4", "A100", "H200"):
        configuration = chosen(site=Site(accelerator=name), model=usual_model(3e9, ""))
        assert configuration.memory_gb is not None
        assert configuration.memory_gb <= 0.9 * GPUS[name].memory_gb
        assert configuration.memory_gb == pytest.approx(sum(configuration.memory_terms.values()))


def test_recomputing_and_shorter_examples_come_in_only_where_memory_is_short():
    roomy = chosen(site=Site(accelerator="H200"))
    assert not roomy.gradient_checkpointing
    small = chosen(site=Site(accelerator="L4"))
    assert small.gradient_checkpointing
    assert small.reasons["gradient_checkpointing"] != "given"
    smaller = chosen(site=Site(accelerator="L4", memory_gb=19))
    assert smaller.max_length < 1024
    assert smaller.reasons["max_length"] == "the longest that fits in the GPU's memory"


def test_the_length_is_no_longer_than_the_model_can_take():
    model = msgspec.structs.replace(SMALL, context=512)
    assert chosen(model=model).max_length == 512


@pytest.mark.parametrize(
    ("fields", "site", "field", "hint"),
    [
        ({"model": usual_model(70e9, "")}, A100, "model", "at most about 33 billion parameters"),
        ({"method": "full"}, A100, "method", "lora in the 80 GB of A100-80GB"),
        (
            {"training": {"per_device_train_batch_size": 512}},
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
            {"training": {"gradient_checkpointing": False, "max_length": 1024}},
            Site(accelerator="L4"),
            "training.gradient_checkpointing",
            "true",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(fields, site, field, hint):
    with pytest.raises(InvalidInput) as caught:
        chosen(site=site, **fields)
    assert caught.value.field == field
    assert hint in caught.value.allowed


@pytest.mark.parametrize("field", ["per_device_train_batch_size", "max_length"])
def test_the_largest_that_is_said_to_fit_does(field):
    usual = {"per_device_train_batch_size": 1, "max_length": 1024}
    with pytest.raises(InvalidInput) as caught:
        chosen(training=usual | {field: 100_000})
    most = int(caught.value.allowed.split()[2])
    chosen(training=usual | {field: most})
    with pytest.raises(InvalidInput):
        chosen(training=usual | {field: most + 1})


def test_gpus_that_the_fleet_does_not_sell_are_refused():
    assert chosen(resources={"accelerators": "A100"}).accelerator == "A100-80GB"
    with pytest.raises(InvalidInput, match=r"^resources\.accelerators.*auto or A100-80GB"):
        chosen(resources={"accelerators": "H100:2"})
    with pytest.raises(InvalidInput, match=r"^resources\.accelerators.*at most 8"):
        chosen(resources={"accelerators": "A100:9"})


def test_fewer_microbatches_than_the_fewest_gpus_are_refused():
    with pytest.raises(InvalidInput, match=r"^training\.gradient_accumulation_steps.*at least 4"):
        chosen(resources={"accelerators": "A100:4"}, training={"gradient_accumulation_steps": 2})


def test_of_an_unknown_model_no_memory_is_claimed():
    configuration = chosen(model=None)
    assert configuration.parameters is None
    assert configuration.memory_gb is None
    assert configuration.memory_terms == {}
    assert configuration.reasons["parameters"] == "not known"
    assert "7 billion" in configuration.reasons["step_s"]


def test_more_gpus_take_less_time_for_a_step():
    configuration = chosen()
    steps = configuration.step_s
    assert configuration.basis is Basis.RULE
    assert len(steps) == configuration.max_gpus + 1
    assert steps[0] == 0.0
    assert steps[1] > steps[2] > steps[4] > steps[8]
    assert steps[8] > steps[1] / 8


def test_gpus_that_would_only_wait_for_the_network_are_left_out():
    slow = Site(accelerator="A100-80GB", max_gpus=8, network_gb_s=0.1)
    assert chosen(site=slow, model=SMALL, method="full").max_gpus == 1
    assert chosen(site=slow, model=SMALL, method="full", resources={"accelerators": "auto:4"})


def test_an_emulated_gpu_takes_the_time_it_is_said_to():
    site = Site(accelerator="H100", max_gpus=4, emulated_microbatch_s=2.0)
    configuration = chosen(site=site, model=None)
    assert configuration.basis is Basis.EMULATED
    assert configuration.emulated_microbatch_s == 2.0
    rounds = [math.ceil(configuration.accumulation / gpus) for gpus in range(1, 5)]
    for gpus, count in enumerate(rounds, start=1):
        assert configuration.step_s[gpus] == pytest.approx(2.0 * count, rel=0.05)


def measured(**fields) -> MeasuredPace:
    usual = {
        "subject": "org/model",
        "accelerator": "A100-80GB",
        "method": "lora",
        "max_length": 1024,
        "gpus": 1,
        "step_s": 8.0,
        "microbatch": 2,
        "accumulation": 8,
    }
    return MeasuredPace(**(usual | fields))


def test_what_was_measured_replaces_the_rule_of_thumb():
    configuration = chosen(measured=[measured()])
    assert configuration.basis is Basis.MEASURED
    assert configuration.step_s[1] == 8.0
    assert configuration.step_s[2] == pytest.approx(4.0, rel=0.02)
    other = chosen(measured=[measured(microbatch=1, accumulation=16, step_s=8.0)])
    assert other.step_s[1] == pytest.approx(8.0, rel=0.02)


@pytest.mark.parametrize(
    "other",
    [{"subject": "org/other"}, {"accelerator": "L4"}, {"method": "full"}, {"max_length": 64}],
)
def test_what_was_measured_on_something_else_does_not_count(other):
    assert chosen(measured=[measured(**other)]).basis is Basis.RULE


def own_command(**fields):
    return JobSpec.model_validate({"run": "python train.py", "deadline": "2h"} | fields)


def test_an_own_command_runs_on_one_gpu_and_reports_percent():
    configuration = configure(own_command(), Site(speed=60.0))
    assert (configuration.min_gpus, configuration.max_gpus) == (1, 1)
    assert configuration.total_steps == 100
    assert configuration.basis is Basis.ASSUMED
    # Half of two hours, sixty times as fast.
    assert 100 * configuration.step_s[1] == pytest.approx(60.0)


def test_an_own_command_is_as_fast_as_it_was():
    earlier = MeasuredPace(subject="python train.py", accelerator="CPU", gpus=1, step_s=3.0)
    spec = own_command(training={"max_steps": 20})
    configuration = configure(spec, Site(), measured=[earlier])
    assert configuration.basis is Basis.MEASURED
    assert configuration.total_steps == 20
    assert configuration.step_s == (0.0, 3.0)


def test_an_own_command_on_several_gpus_is_refused():
    with pytest.raises(InvalidInput, match=r"^resources\.accelerators.*own command"):
        configure(own_command(resources={"accelerators": "auto:2"}), Site())


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
    assert Site(accelerator="H100", gpu_tflops=500).tflops == 500
    assert Site().memory is None


def test_a_model_by_hand_takes_the_memory_it_should():
    # 1 billion parameters in 16 bits are 2 GB; full training takes 16 bytes a parameter.
    model = ModelFacts(
        parameters=900_000_000,
        hidden=2048,
        layers=16,
        intermediate=6144,
        vocabulary=32_000,
        key_values=512,
        source="",
    )
    full = chosen(model=model, method="full", site=Site(accelerator="H200")).memory_terms
    assert full["weights"] + full["gradients"] + full["optimiser"] == pytest.approx(14.4)
    assert full["adapter"] == 0
    lora = chosen(model=model, method="lora", site=Site(accelerator="H200")).memory_terms
    assert lora["weights"] == pytest.approx(1.8)
    # Rank 16 on all linear layers of 16 blocks, 4 bytes each.
    adapter = 16 * 16 * (2 * 4096 + 2 * 2560 + 3 * 8192) * 4 / 1e9
    assert lora["adapter"] == pytest.approx(adapter)
    assert lora["optimiser"] == pytest.approx(2 * adapter)

"""Whatever the job: ``fits``, ``recommend`` and ``plan`` say the same of its memory."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.errors import InvalidInput
from duetune.jobs.advice_request import Wanted, request
from duetune.jobs.configure import configure
from duetune.jobs.fit_question import FitQuestion, asked_configuration
from duetune.jobs.recipe import recipe_by_data_sheet
from duetune.jobs.site import Site
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.trainer_facts import (
    foreign_fields,
    gpus_per_member,
    precision_kept,
    trainer_software,
)
from duetune.jobs.trainer_knowledge import TrainerKnowledge
from duetune.knowledge.advice import Verdict
from duetune.knowledge.advisor import Advisor
from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.estimate import FITS
from duetune.knowledge.facts.gpus import GPUS
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.history import History
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.knowledge.sources.learned import HybridSource
from support.synthetic_history import drawn, measured

MODELS = ("HuggingFaceTB/SmolLM2-135M", "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B", "my-own-3b")
CARDS = sorted(set(GPUS) - {"A100", "H100-SXM"})


@functools.cache
def source(name):
    """Learnt on several GPUs, too, where measured runs are not what one GPU alone would need."""
    if name == "analytic":
        return AnalyticSource()
    rows = drawn(80, 3, sharding=("ddp",), software=("torch 2.0, transformers 5.0, peft 0.2",))
    return HybridSource(History(measured(rows, 4)))


@st.composite
def cases(draw):
    gpus = draw(st.sampled_from([1, 2, 3, 4, 8]))
    members = [None, *(size for size in (1, 2, 4) if gpus % size == 0)]
    return {
        "member": draw(st.sampled_from(members)),
        "source": draw(st.sampled_from(["analytic", "hybrid"])),
        "model": draw(st.sampled_from(MODELS)),
        "gpu": draw(st.sampled_from(CARDS)),
        "gpus": gpus,
        "method": draw(st.sampled_from(["full", "lora", None])),
        "microbatch": draw(st.sampled_from([1, 2, 3, 8, 64])),
        "accumulation": gpus * draw(st.integers(1, 4)),
        "length": draw(st.sampled_from([None, 128, 1000, 4096])),
        "checkpointing": draw(st.booleans()),
        "rank": draw(st.sampled_from([None, 8, 64, 256])),
        "targets": draw(st.sampled_from([None, "attention", "all-linear"])),
        "fp16": draw(st.booleans()),
        "memory_gb": draw(st.sampled_from([None, 8.0, 12.0])),
        "emulated": draw(st.booleans()),
    }


ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def told(case):
    whole = case["method"] == "full"
    training = {
        "per_device_train_batch_size": case["microbatch"],
        "gradient_accumulation_steps": case["accumulation"],
        "max_length": case["length"],
        "gradient_checkpointing": case["checkpointing"],
        "lora_r": case["rank"],
        "lora_target_modules": ATTENTION if case["targets"] == "attention" else case["targets"],
        "fp16": case["fp16"] or None,
        "precision": case.get("precision"),
        "max_steps": 10,
    }
    return JobSpec.model_validate(
        {
            "model": case["model"],
            "dataset": "org/data",
            "deadline": "8h",
            "method": case["method"] or "auto",
            "resources": {
                "accelerators": f"{case['gpu']}:{case['gpus']}",
                **({"gpus_per_member": case["member"]} if case["member"] else {}),
            },
            "training": {
                field: value
                for field, value in training.items()
                if value is not None and not (whole and field.startswith("lora"))
            },
        }
    )


def site_of(case):
    return Site(
        accelerator=case["gpu"],
        max_gpus=case["gpus"],
        memory_gb=case["memory_gb"],
        emulated_microbatch_s=0.01 if case["emulated"] else None,
        software=trainer_software(),
    )


def fit_by_fits(case, trainer, method):
    # An emulated GPU computes in 32 bits; `fits` is asked about real ones.
    computed = "fp16" if case["fp16"] else "fp32" if case["emulated"] else None
    wish = FitQuestion(
        model=case["model"],
        gpu=case["gpu"],
        gpus=case["gpus"],
        gpus_per_member=case["member"],
        seq=case["length"],
        batch=case["microbatch"] * case["gpus"],
        method=case["method"],
        checkpointing=case["checkpointing"],
        rank=case["rank"],
        targets=case["targets"],
        precision=precision_kept(method, computed).value if computed else None,
        memory_gb=case["memory_gb"] or 0.0,
    )
    configuration, _ = asked_configuration(wish, lambda: trainer)
    return Advisor(trainer, History.empty()).fit(configuration)


def recommended(case, trainer):
    asked = request(Wanted(top=1), told(case), site_of(case), 1.0, None, lambda: trainer)
    return Advisor(trainer, History.empty()).recommend(asked)


def planned(case, known):
    """The plan, or why there is none."""
    facts = model_facts(case["model"])
    try:
        return configure(told(case), site_of(case), None, facts, source=lambda: known), ""
    except InvalidInput as error:
        return None, error.allowed


@settings(max_examples=12, deadline=None)
@given(case=cases())
def test_fits_recommend_and_plan_say_the_same(case):
    known = source(case["source"])
    trainer = TrainerKnowledge(known, trainer_software())
    advice = recommended(case, trainer)
    fit = fit_by_fits(case, trainer, advice.fit.configuration.method)
    assert not foreign_fields(fit.configuration)
    assert advice.fit.estimate.memory_gb == fit.estimate.memory_gb
    assert advice.fit.estimate.p_valid == fit.estimate.p_valid
    assert advice.fit.verdict is fit.verdict
    assert bool(advice.candidates) == (fit.verdict is Verdict.YES)
    low, middle, high = fit.estimate.memory_gb
    plan, refused = planned(case, known)
    if plan is None:
        assert fit.verdict is not Verdict.YES
        needs = f"need {middle:.1f} GB, up to {high:.1f} GB"
        assert needs in refused or case["length"] is None  # shorter examples were tried as well
        return
    asked = fit.configuration
    assert fit.verdict is Verdict.YES
    assert plan.p_fits == fit.estimate.p_valid
    assert (plan.memory_gb_low, plan.memory_gb, plan.memory_gb_high) == (low, middle, high)
    for one in (asked, advice.fit.configuration):
        assert (plan.method, plan.precision) == (one.method, one.precision)
        assert plan.max_length == one.tokens_per_sample
        assert plan.gpus_per_member == gpus_per_member(Configurations.of([one]))[0]
    if case["source"] == "analytic" and not case["emulated"] and case["memory_gb"] is None:
        exported = recipe_by_data_sheet(told(case), case["gpu"], case["gpus"])
        assert exported.gpus_per_member == plan.gpus_per_member
        assert exported.estimate.memory_gb == fit.estimate.memory_gb
        assert (exported.one.method, exported.one.precision) == (plan.method, plan.precision)


@settings(max_examples=8, deadline=None)
@given(case=cases())
def test_what_recommend_chooses_can_be_launched_and_fits(case):
    trainer = TrainerKnowledge(source(case["source"]), trainer_software())
    asked = request(
        Wanted(model=case["model"], gpus=f"{case['gpu']}:{case['gpus']}", top=20),
        knowledge=lambda: trainer,
    )
    for each in Advisor(trainer, History.empty()).recommend(asked).candidates:
        one = each.configuration
        assert not foreign_fields(one)
        size = int(gpus_per_member(Configurations.of([one]))[0])
        assert one.num_nodes * size == one.num_gpus
        assert one.batch_size * one.grad_accum >= 16 > one.batch_size * (one.grad_accum - 1)
        assert each.estimate.p_valid >= FITS
        wish = FitQuestion(
            model=case["model"],
            gpu=case["gpu"],
            gpus=one.num_gpus,
            gpus_per_member=size,
            method=one.method.value,
            precision=one.precision.value,
            seq=one.tokens_per_sample,
            batch=one.batch_size,
            checkpointing=one.grad_checkpoint,
        )
        configuration, _ = asked_configuration(wish, lambda: trainer)
        again = trainer.query(Configurations.of([configuration]))[0]
        # One row and many are computed by different instructions of the processor.
        assert again.memory_gb == pytest.approx(each.estimate.memory_gb, rel=1e-12)
        assert again.p_valid == pytest.approx(each.estimate.p_valid, rel=1e-12)


@pytest.mark.parametrize("name", ["analytic", "hybrid"])
def test_an_8b_full_fine_tune_does_not_fit_on_80_gb_whoever_is_asked(name):
    case = {
        "model": "meta-llama/Llama-3.1-8B",
        "gpu": "A100-80GB",
        "gpus": 1,
        "method": "full",
        "microbatch": 1,
        "accumulation": 1,
        "length": 1024,
        "checkpointing": True,
        "rank": None,
        "targets": None,
        "fp16": False,
        "memory_gb": None,
        "emulated": False,
        "member": 1,
    }
    trainer = TrainerKnowledge(source(name), trainer_software())
    spec = told(case | {"precision": "bf16-mixed"})
    asked = request(Wanted(), spec, site_of(case), 1.0, None, lambda: trainer)
    advice = Advisor(trainer, History.empty()).recommend(asked)
    # Itself, its gradient and two moments, in 32 bits, and a copy to compute with.
    assert advice.fit.estimate.memory_gb.middle > 17.5 * 8.03
    assert advice.fit.verdict is Verdict.NO
    assert "method lora" in {each.what.split(":")[0] for each in advice.fit.changes}
    with pytest.raises(InvalidInput, match="method"):
        configure(
            spec, site_of(case), None, model_facts(case["model"]), source=lambda: source(name)
        )
    # With weights, gradients and moments in 16 bits it may fit, and all say so.
    why = "precision bf16: weights in 32 bits do not fit in GPU memory"
    plan, _ = planned(case, source(name))
    fit = fit_by_fits(case, trainer, "full")
    assert (fit.verdict is Verdict.YES) == (plan is not None)
    if plan is not None:
        assert plan.precision == fit.configuration.precision == "bf16"
        assert why in recommended(case, trainer).assumptions
        assert plan.reasons["precision"] == "weights in 32 bits do not fit in GPU memory"


@pytest.mark.parametrize("gpu", ["V100", "T4"])
def test_plan_and_recommend_refuse_bfloat16_on_a_gpu_without_it_alike(gpu):
    spec = JobSpec.model_validate(
        {
            "model": MODELS[0],
            "dataset": "org/data",
            "deadline": "8h",
            "resources": {"accelerators": gpu},
            "training": {"bf16": True, "max_steps": 10},
        }
    )
    site = Site(accelerator=gpu, software=trainer_software())
    with pytest.raises(InvalidInput) as by_recommend:
        request(Wanted(), spec, site, 1.0)
    with pytest.raises(InvalidInput) as by_plan:
        configure(spec, site, None, model_facts(MODELS[0]))
    assert str(by_plan.value) == str(by_recommend.value)
    assert "training.bf16: True is not allowed" in str(by_plan.value)
    assert f"{gpu} cannot compute in bfloat16" in str(by_plan.value)

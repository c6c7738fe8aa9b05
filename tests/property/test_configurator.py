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
from duetune.jobs.site import Site
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.trainer_facts import (
    TrainerKnowledge,
    foreign_fields,
    precision_kept,
    trainer_software,
)
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
    rows = drawn(160, 3, sharding=("ddp",), software=("torch 2.0, transformers 5.0, peft 0.2",))
    return HybridSource(History(measured(rows, 4)))


@st.composite
def cases(draw):
    gpus = draw(st.sampled_from([1, 2, 3, 4, 8]))
    return {
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
        "max_steps": 10,
    }
    return JobSpec.model_validate(
        {
            "model": case["model"],
            "dataset": "org/data",
            "deadline": "8h",
            "method": case["method"] or "auto",
            # `fits` and `recommend` are asked about GPUs that hold the whole model.
            "resources": {"accelerators": f"{case['gpu']}:{case['gpus']}", "gpus_per_member": 1},
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


def fit_by_fits(case, advisor, method):
    # An emulated GPU computes in 32 bits; `fits` is asked about real ones.
    computed = "fp16" if case["fp16"] else "fp32" if case["emulated"] else None
    wish = FitQuestion(
        model=case["model"],
        gpu=case["gpu"],
        gpus=case["gpus"],
        seq=case["length"],
        batch=case["microbatch"] * case["gpus"],
        method=case["method"],
        checkpointing=case["checkpointing"],
        rank=case["rank"],
        targets=case["targets"],
        precision=precision_kept(method, computed).value if computed else None,
        memory_gb=case["memory_gb"] or 0.0,
    )
    configuration, _ = asked_configuration(wish, advisor.fits)
    return advisor.fit(configuration)


def recommended(case, advisor):
    asked = request(Wanted(top=1), told(case), site_of(case), 1.0, advisor.fits)
    return advisor.recommend(asked)


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
    advisor = Advisor(TrainerKnowledge(known, trainer_software()), History.empty())
    advice = recommended(case, advisor)
    fit = fit_by_fits(case, advisor, advice.fit.configuration.method)
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
    smaller = (plan.method, plan.precision) != (asked.method, asked.precision)
    if smaller or plan.max_length < asked.tokens_per_sample:
        # Weights in fewer bits come before shorter examples, where the job leaves them open.
        assert fit.verdict is not Verdict.YES
        assert plan.p_fits >= FITS
        return
    assert fit.verdict is Verdict.YES
    assert plan.method == fit.configuration.method
    assert plan.p_fits == fit.estimate.p_valid
    assert (plan.memory_gb_low, plan.memory_gb, plan.memory_gb_high) == (low, middle, high)


@settings(max_examples=8, deadline=None)
@given(case=cases())
def test_what_recommend_chooses_can_be_launched_and_fits(case):
    advisor = Advisor(TrainerKnowledge(source(case["source"]), trainer_software()), History.empty())
    asked = request(
        Wanted(model=case["model"], gpus=f"{case['gpu']}:{case['gpus']}", top=20),
        fits=advisor.fits,
    )
    for each in advisor.recommend(asked).candidates:
        one = each.configuration
        assert not foreign_fields(one)
        assert one.num_nodes == one.num_gpus
        assert one.batch_size * one.grad_accum >= 16 > one.batch_size * (one.grad_accum - 1)
        assert each.estimate.p_valid >= FITS
        wish = FitQuestion(
            model=case["model"],
            gpu=case["gpu"],
            gpus=one.num_gpus,
            batch=one.batch_size,
            checkpointing=one.grad_checkpoint,
        )
        configuration, _ = asked_configuration(wish, advisor.fits)
        again = advisor.source.query(Configurations.of([configuration]))[0]
        assert again.memory_gb == each.estimate.memory_gb
        assert again.p_valid == each.estimate.p_valid


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
    }
    advisor = Advisor(TrainerKnowledge(source(name), trainer_software()), History.empty())
    fit = fit_by_fits(case, advisor, "full")
    # Itself, its gradient and two moments, in 32 bits, and a copy to compute with.
    assert fit.estimate.memory_gb.middle > 17.5 * 8.03
    assert fit.verdict is Verdict.NO
    assert "method lora" in {each.what.split(":")[0] for each in fit.changes}
    assert recommended(case, advisor).chosen is None
    # With weights, gradients and moments in 16 bits it does fit.
    plan, _ = planned(case, source(name))
    assert plan is None or plan.precision == "bf16"


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
        request(Wanted(), spec, site, 1.0, lambda _: True)
    with pytest.raises(InvalidInput) as by_plan:
        configure(spec, site, None, model_facts(MODELS[0]))
    assert str(by_plan.value) == str(by_recommend.value)
    assert "training.bf16: True is not allowed" in str(by_plan.value)
    assert f"{gpu} cannot compute in bfloat16" in str(by_plan.value)

"""What a source of knowledge says reaches the training plan, and nothing else does."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from duetune.cli.plan_tables import _training_table
from duetune.cli.tables import console
from duetune.core.fleet import MarketReport
from duetune.core.market import Slot
from duetune.errors import InvalidInput
from duetune.jobs.configure import TrainingPlan, configure
from duetune.jobs.question import Question
from duetune.jobs.site import Site
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.step_time import STEP_S, Basis
from duetune.jobs.terms import job_terms
from duetune.jobs.training_settings import training_task
from duetune.knowledge.estimate import EXTRAPOLATED, FITS, Estimates
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.knowledge.sources.estimating import Source
from duetune.knowledge.sources.knowledge_source import Term

SITE = Site(accelerator="H200", max_gpus=4, software="torch 2")
MODEL = "Qwen/Qwen2.5-7B"


def rows(configuration):
    """The rows of 1,024 tokens for which a packed microbatch has room."""
    return max(1, configuration.tokens_per_microbatch // 1024)


def growing(configuration):
    """More at once is faster, to compute twice is slower."""
    return 1000.0 * rows(configuration) * (0.8 if configuration.grad_checkpoint else 1.0)


class Told(Source):
    """Says of every configuration what it was told to: that it fits, and a pace."""

    name = "told"

    def __init__(
        self,
        *,
        fits=lambda _: 0.99,
        pace=growing,
        spread=1.25,
        support=12,
        unseen=(),
    ):
        super().__init__()
        self.fits, self.pace, self.spread = fits, pace, spread
        self.support, self.unseen = support, unseen
        self.asked = []

    def estimate(self, configurations):
        told = list(configurations)
        self.asked += told
        middle = np.array([self.pace(each) for each in told])
        memory = np.array([each.tokens_per_microbatch / 1000 for each in told])
        return Estimates(
            p_valid=np.array([float(self.fits(each)) for each in told]),
            cause=np.zeros(len(told), np.int8),
            tokens_per_s=np.stack([middle / self.spread, middle, middle * self.spread], axis=1),
            memory_gb=np.stack([memory, memory, memory], axis=1),
            support=np.full(len(told), self.support, np.int64),
            extrapolated=np.array([[name in self.unseen for name in EXTRAPOLATED]] * len(told)),
            measured=np.zeros(len(told), np.bool_),
            source=self.name,
        )

    def terms(self, configuration):
        logits = Term(name="logits", value=float(rows(configuration)))
        return (Term(name="weights", value=15.2), logits), ()


def planned(source, site=SITE, ran_out=(), tokens_per_row=None, **fields) -> TrainingPlan:
    spec = spec_with(**fields)
    return configure(
        spec,
        site,
        20_000,
        model_facts(spec.model),
        source=lambda: source,
        ran_out=ran_out,
        tokens_per_row=tokens_per_row,
    )


def spec_with(**fields):
    return JobSpec.model_validate(
        {"model": MODEL, "dataset": "org/data", "deadline": "8h", "training": {}} | fields
    )


def test_steps_are_as_long_as_the_source_says_they_are():
    plan = planned(Told(pace=lambda _: 8192.0))
    assert plan.basis is Basis.KNOWLEDGE
    # Examples are half as long as they may be: so many tokens a microbatch, on one GPU.
    one = plan.microbatch * plan.max_length / 2 / 8192
    assert plan.step_s[1] == pytest.approx(plan.accumulation * one + STEP_S)
    assert plan.step_s_slow[1] == pytest.approx(plan.accumulation * one * 1.25 + STEP_S)
    assert plan.step_s_quick[1] == pytest.approx(plan.accumulation * one / 1.25 + STEP_S)
    steps = plan.step_s[1:]
    assert list(steps) == sorted(steps, reverse=True)
    assert all(quick < step < slow for quick, step, slow in each_gpu(plan))


def each_gpu(plan):
    return list(zip(plan.step_s_quick, plan.step_s, plan.step_s_slow, strict=True))[1:]


def test_the_source_is_asked_about_what_the_trainer_will_do():
    source = Told()
    plan = planned(source, training={"per_device_train_batch_size": 2, "lora_r": 32})
    assert not plan.gradient_checkpointing
    longest = Question(lora_r=32).configuration(
        "lora", MODEL, None, SITE, microbatch=2, accumulation=plan.accumulation
    )
    packed = longest.replace(
        batch_size=1, tokens_per_microbatch=2048, attention="varlen", fast_kernels=True
    )
    assert packed in source.asked
    # Rows of the usual length fill as many tokens, in half as many microbatches.
    usual = packed.replace(tokens_per_sample=512, longest_sample=1024)
    assert usual.replace(grad_accum=plan.accumulation // 2) in source.asked
    assert (longest.gpu_model, longest.software) == ("H200", "torch 2")
    assert (longest.precision, longest.lora_targets) == ("bf16", "all-linear")
    assert longest.grad_accum == plan.accumulation


def test_what_the_source_says_does_not_fit_is_not_planned_with():
    roomy = planned(Told())
    assert roomy.microbatch == 4
    assert not roomy.gradient_checkpointing
    small = planned(Told(fits=lambda each: 0.99 if rows(each) == 1 else FITS - 0.01))
    assert small.microbatch == 1
    assert small.accumulation == 16
    frugal = planned(Told(fits=lambda each: each.grad_checkpoint))
    assert frugal.gradient_checkpointing
    assert frugal.reasons["gradient_checkpointing"] == "needed: GPU memory is too small without it"
    short = planned(Told(fits=lambda each: each.tokens_per_sample <= 256))
    assert short.max_length == 256
    assert short.reasons["max_length"] == "the longest that fits in GPU memory"


def test_a_small_model_is_trained_whole_only_if_the_source_lets_it():
    small = "Qwen/Qwen2.5-0.5B"
    assert planned(Told(), model=small).method == "full"
    assert planned(Told(fits=lambda each: each.method == "lora"), model=small).method == "lora"


def test_what_never_fits_is_refused_with_what_would():
    only_small = Told(fits=lambda each: "b" in each.model and float_size(each.model) < 2.0)
    with pytest.raises(InvalidInput, match=r"at most about 2 billion parameters with lora"):
        planned(only_small)
    with pytest.raises(InvalidInput, match=r"batch_size: 64.*at most 20 in the 141"):
        planned(
            Told(fits=lambda each: rows(each) <= 20),
            training={"per_device_train_batch_size": 64, "max_length": 1024},
        )


def float_size(model):
    return model_facts(model).parameters / 1e9


def test_a_larger_microbatch_that_is_slower_is_not_chosen():
    slower = planned(Told(pace=lambda each: 10_000.0 / rows(each)))
    assert slower.microbatch == 1
    assert slower.reasons["microbatch"] == "the fastest of those that fit"
    faster = planned(Told(pace=lambda each: 10_000.0 * rows(each)))
    assert faster.microbatch == 4


def test_recomputing_is_chosen_where_it_is_faster_in_the_end():
    def fits(each):
        return each.grad_checkpoint or rows(each) == 1

    plan = planned(Told(fits=fits))
    assert (plan.microbatch, plan.gradient_checkpointing) == (4, True)
    assert plan.reasons["gradient_checkpointing"] == "faster: it makes room for a larger microbatch"
    slow = planned(Told(fits=fits, pace=lambda each: 1.0 if each.grad_checkpoint else 100.0))
    assert (slow.microbatch, slow.gradient_checkpointing) == (1, False)


def test_of_two_that_are_as_fast_the_smaller_is_chosen():
    assert planned(Told(pace=lambda each: 10_000.0 + rows(each))).microbatch == 1


@pytest.mark.parametrize(("tokens", "length"), [(100.4, 100), (5000.0, 1024)])
def test_examples_are_as_long_as_those_of_the_dataset(tokens, length):
    plan = planned(Told(pace=lambda _: 8192.0), tokens_per_row=tokens)
    one = plan.microbatch * length / 8192
    assert plan.step_s[1] == pytest.approx(plan.accumulation * one + STEP_S)
    assert plan.reasons["step_s"].endswith(f"; examples of about {length:,} tokens")


def test_how_sure_the_pace_is_and_what_it_rests_on_is_told():
    plan = planned(Told(pace=lambda _: 8000.0))
    assert plan.tokens_per_s == pytest.approx((6400.0, 8000.0, 10_000.0))
    assert plan.reasons["step_s"] == (
        "H200: 8,000 tokens/s (6,400 to 10,000), 12 measured runs near it; "
        "examples of about 512 tokens, assumed to be half of max_length"
    )
    assert plan.p_fits == 0.99
    assert plan.memory_terms["weights"] == 15.2
    text = shown(plan)
    low, high = plan.step_s_quick[1], plan.step_s_slow[1]
    assert f"({low:.2g} to {high:.2g})" in text
    assert "fits with 99%" in text
    assert "12 measured runs near it" in text
    assert "weights 15" in text
    assert msgspec.json.decode(msgspec.json.encode(plan), type=TrainingPlan) == plan


def shown(plan):
    screen = console()
    screen.width = 200
    with screen.capture() as captured:
        screen.print(_training_table(plan, ()))
    return captured.get()


def test_what_nothing_was_measured_of_is_said_to_be_by_physics():
    plan = planned(Told(unseen=("gpu_model",)))
    assert plan.basis is Basis.PHYSICS
    assert "; nothing was measured on H200: physics alone; " in plan.reasons["step_s"]
    other = planned(Told(unseen=("model",), support=0))
    assert other.basis is Basis.KNOWLEDGE
    reason = other.reasons["step_s"]
    assert f"no measured run near it; nothing was measured for {MODEL}; " in reason


def test_a_pace_that_may_be_too_slow_for_the_deadline_is_noted():
    sure, unsure = Told(spread=1.01), Told(spread=3.0)
    plan = planned(unsure)
    slot = Slot(spot_price=0.5, available=4, on_demand_price=1.5)
    market = MarketReport(at=0.0, index=0, slot_began=0.0, slot_s=600.0, slot=slot)
    # Twice as long as it takes on all GPUs, as it is believed.
    hours = 2 * plan.total_steps * plan.step_s[-1] / 3600
    spec = spec_with(deadline=f"{hours * 3600:.0f}s")
    terms = job_terms(spec, plan, SITE, market, 0.0)
    (note,) = terms.notes
    assert note.startswith("the speed is uncertain: a step with 4 GPUs may take")
    assert job_terms(spec, planned(sure), SITE, market, 0.0).notes == ()


def test_what_ran_out_of_memory_is_not_tried_again():
    first = planned(Told())
    failed = Question().configuration(
        "lora", MODEL, None, SITE, microbatch=first.microbatch, accumulation=first.accumulation
    )
    again = planned(Told(), ran_out=[failed])
    assert (again.microbatch, again.gradient_checkpointing) == (4, True)
    frugal = failed.replace(grad_checkpoint=True)
    third = planned(Told(), ran_out=[failed, frugal])
    assert third.microbatch == 2
    with pytest.raises(InvalidInput, match=r"at most 3 .*ran out of memory in an earlier job"):
        planned(
            Told(),
            ran_out=[frugal],
            method="lora",
            training={"per_device_train_batch_size": 4, "max_length": 1024},
        )
    # On another GPU it may well fit.
    other = msgspec.structs.replace(SITE, accelerator="B200")
    assert planned(Told(), other, [frugal]).microbatch == 4


@pytest.mark.parametrize(
    "site",
    [
        Site(),
        Site(accelerator="Abacus"),
        Site(accelerator="Abacus", memory_gb=64.0),
    ],
)
@pytest.mark.parametrize("run", [None, "python train.py"])
def test_where_it_could_know_nothing_the_source_is_never_got(site, run):
    def source():
        raise AssertionError

    wish = {"deadline": "8h"}
    wish |= {"model": MODEL, "dataset": "org/data"} if run is None else {"run": run}
    spec = JobSpec.model_validate(wish)
    facts = None if run else model_facts(MODEL)
    plan = configure(spec, site, 20_000, facts, source=source)
    assert plan.basis in {Basis.EMULATED, Basis.RULE, Basis.ASSUMED}
    assert plan.tokens_per_s is None
    assert plan.step_s == plan.step_s_quick == plan.step_s_slow


def test_without_paces_the_largest_that_fits_without_recomputing_is_chosen():
    plan = planned(AnalyticSource(), Site(accelerator="H100", emulated_microbatch_s=0.5))
    assert (plan.microbatch, plan.gradient_checkpointing) == (4, False)


def test_an_emulated_gpu_still_has_no_more_memory_than_it_has():
    site = Site(accelerator="L4", emulated_microbatch_s=0.5)
    with pytest.raises(InvalidInput, match=r"^model.*in the 24 GB of L4"):
        planned(AnalyticSource(), site, model="org/model-70b")


def test_an_emulated_gpu_asks_the_source_for_memory_and_not_for_its_pace():
    source = Told()
    plan = planned(source, Site(accelerator="H200", emulated_microbatch_s=0.5))
    assert source.asked
    assert plan.p_fits == 0.99
    assert plan.basis is Basis.EMULATED
    assert plan.tokens_per_s is None


def test_a_plan_has_the_interval_of_its_memory_and_older_plans_have_none():
    plan = planned(AnalyticSource())
    assert plan.memory_gb_low < plan.memory_gb < plan.memory_gb_high
    assert f"({plan.memory_gb_low:.1f} to {plan.memory_gb_high:.1f})" in shown(plan)
    fields = msgspec.to_builtins(plan)
    del fields["memory_gb_low"], fields["memory_gb_high"]
    old = msgspec.convert(fields, TrainingPlan)
    assert old.memory_gb_low is None
    assert "(" not in shown(old).split("memory")[1].split("fits")[0]


def test_a_microbatch_has_room_for_the_rows_that_there_are_and_not_for_longer_ones():
    batch = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    roomy = planned(Told(), training=batch)
    real = planned(Told(), tokens_per_row=100.0, training=batch)
    assert roomy.tokens_per_microbatch == roomy.microbatch * 1024
    # A step of 16 rows of 100 tokens, and a little more.
    assert real.tokens_per_microbatch == 2000
    given = planned(Told(), training={"max_tokens_per_microbatch": 5000})
    assert given.tokens_per_microbatch == 5000
    task = training_task(spec_with(), real)
    assert task.microbatch_tokens == 2000


def test_four_bits_are_chosen_where_adapters_on_sixteen_do_not_fit():
    plan = planned(Told(fits=lambda each: each.method == "qlora"))
    assert plan.method == "qlora"
    assert plan.reasons["method"] == "adapters on weights in 16 bits do not fit in GPU memory"
    with pytest.raises(InvalidInput, match="with lora"):
        planned(Told(fits=lambda each: each.method == "qlora"), method="lora")


def test_all_weights_are_stored_in_16_bits_only_where_32_do_not_fit():
    assert planned(Told(), method="full").precision == "bf16-mixed"
    plan = planned(Told(fits=lambda each: each.precision == "bf16"), method="full")
    assert plan.precision == "bf16"
    assert training_task(spec_with(method="full"), plan).trained_in_bf16

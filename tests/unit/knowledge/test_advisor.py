from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.knowledge.advice import (
    GIVEN,
    Request,
    Verdict,
    asked_gpu,
    asked_model,
)
from duetune.knowledge.advisor import Advisor
from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.configurations.space_files import default_space
from duetune.knowledge.estimate import FITS, Cause, Estimate, Interval
from duetune.knowledge.facts.gpus import GPUS, USUAL_PRICES, prices_for
from duetune.knowledge.history import History
from duetune.knowledge.next_measurement import best_lesson, one_gpu
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.knowledge.sources.knowledge_source import Candidate, Limits, Objective

SMALL = Configuration(model="llama3.2-1b", gpu_model="A100-80GB", batch_size=4)
LARGE = SMALL.replace(model="llama3.1-8b", method="full", batch_size=8, tokens_per_sample=4096)
SOURCE = AnalyticSource()
ADVISOR = Advisor(SOURCE, History.empty())


def chance(configuration):
    return float(SOURCE.query(Configurations.of([configuration])).p_valid[0])


def request(objective=Objective.FASTEST, given=None, **limits):
    inventory = limits.setdefault("inventory", {"A100-80GB": 4, "L40S": 4})
    space = default_space().with_values("gpu_model", tuple(inventory))
    return Request(
        given={"model": "llama3.1-8b", **(given or {})},
        space=space.with_values("num_gpus", (1, 2, 4)),
        objective=objective,
        limits=Limits(**limits),
    )


def test_what_fits_is_told_with_the_room_there_is():
    fit = ADVISOR.fit(SMALL)
    assert fit.verdict is Verdict.YES
    assert not fit.changes
    batch = next(each for each in fit.room if each.what.startswith("batch"))
    assert batch.configuration.batch_size > SMALL.batch_size
    assert chance(batch.configuration) == batch.p_valid >= FITS
    assert chance(SMALL.replace(batch_size=2 * batch.configuration.batch_size)) < FITS


def test_a_smaller_card_is_named_only_if_it_is_smaller():
    for fit in (ADVISOR.fit(SMALL), ADVISOR.fit(SMALL.replace(gpu_model="A10G"))):
        for each in fit.room:
            if each.what.startswith("GPU"):
                sold = GPUS[each.configuration.gpu_model].memory_gb
                assert sold < GPUS[fit.configuration.gpu_model].memory_gb


def test_what_does_not_fit_is_told_with_changes_that_make_it_fit():
    fit = ADVISOR.fit(LARGE)
    assert fit.verdict is Verdict.NO
    assert fit.cause is Cause.MEMORY
    assert not fit.room
    assert {each.what.split()[0] for each in fit.changes} >= {"batch", "sequences", "GPU"}
    for each in fit.changes:
        assert chance(each.configuration) == each.p_valid >= FITS
        assert each.configuration.model == LARGE.model
    tight = LARGE.replace(gpu_model="A10G", batch_size=1, tokens_per_sample=512)
    assert {each.what.split(":")[0] for each in ADVISOR.fit(tight).changes} >= {"method lora"}


def test_where_no_single_change_helps_the_nearest_is_named():
    fit = ADVISOR.fit(LARGE.replace(model="llama3.1-405b", gpu_model="L4"))
    assert not fit.changes
    assert fit.nearest is not None
    assert fit.nearest.p_valid > fit.estimate.p_valid or fit.nearest.p_valid < FITS


def test_the_parts_at_the_peak_are_the_peak():
    for one in (SMALL, LARGE, LARGE.replace(num_gpus=8, sharding="fsdp", grad_accum=4)):
        fit = ADVISOR.fit(one)
        peak = sum(part.at_peak_gb for part in fit.parts)
        assert peak == pytest.approx(fit.estimate.memory_gb.middle, rel=1e-6)
        assert all(part.at_peak_gb <= part.gb + 1e-9 for part in fit.parts)
    adapters = {part.name: part for part in ADVISOR.fit(SMALL).parts}
    assert adapters["logits"].at_peak_gb == pytest.approx(adapters["logits"].gb)


def test_a_broken_rule_is_named():
    fit = ADVISOR.fit(SMALL.replace(num_gpus=3, batch_size=4, sharding="ddp"))
    assert fit.verdict is Verdict.NO
    assert fit.cause is Cause.RULE
    assert "same number of sequences" in fit.rule


def test_sequences_are_never_longer_than_the_model_takes(tmp_path):
    facts = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 700,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(facts))
    fit = ADVISOR.fit(SMALL.replace(model=asked_model(str(path)), tokens_per_sample=512))
    lengths = [each.configuration.tokens_per_sample for each in fit.room if "tokens" in each.what]
    assert lengths == [700]


def test_an_unknown_model_is_refused_with_names_like_it():
    with pytest.raises(InvalidInput, match="Mistral-7B"):
        asked_model("mistrall")
    with pytest.raises(InvalidInput, match=r"config\.json"):
        asked_model("zzzz")
    assert asked_model("my-own-7b") == "my-own-7b"
    assert asked_model("llama3.1-8b") == "meta-llama/Llama-3.1-8B"


def test_an_unknown_gpu_is_refused_with_names_like_it():
    with pytest.raises(InvalidInput, match="H200"):
        asked_gpu("H300")
    assert asked_gpu("nvidia a100-sxm4-80gb") == "A100-80GB"


def test_what_16_bits_mean_where_all_weights_are_sharded_is_said():
    several = LARGE.replace(num_gpus=4, sharding="fsdp")
    words = "keeps weights in 32 bits"
    assert any(words in each for each in ADVISOR.fit(several).assumptions)
    for other in (several.replace(precision="bf16-mixed"), several.replace(method="lora"), LARGE):
        assert not any(words in each for each in ADVISOR.fit(other).assumptions)


def test_assumptions_are_named():
    told = " ".join(ADVISOR.fit(SMALL.replace(model="lama3.1-8b")).assumptions)
    assert "no run was measured" in told
    assert "estimated from its size" in told
    assert "Llama-3.1-8B?" in told


def test_a_recommendation_keeps_what_is_given_and_has_a_reason_for_the_rest():
    advice = ADVISOR.recommend(request(given={"tokens_per_sample": 2048}))
    assert advice.chosen is not None
    assert advice.chosen.configuration.tokens_per_sample == 2048
    reasons = {each.field: each.reason for each in advice.choices}
    assert reasons["tokens_per_sample"] == reasons["model"] == GIVEN
    for field in ("gpu_model", "num_gpus", "batch_size", "grad_checkpoint", "sharding"):
        assert "best" in reasons[field] or "only value" in reasons[field]
        assert reasons[field] != GIVEN
    assert advice.fit is not None
    assert advice.fit.verdict is Verdict.YES
    assert advice.time


def test_the_difference_that_a_field_makes_is_the_best_one_with_another_value():
    asked = request()
    advice = ADVISOR.recommend(asked)
    chosen = advice.chosen
    other = "A100-80GB" if chosen.configuration.gpu_model == "L40S" else "L40S"
    only = ADVISOR.recommend(
        msgspec.structs.replace(asked, given={**asked.given, "gpu_model": other})
    )
    ratio = chosen.estimate.tokens_per_s.middle / only.chosen.estimate.tokens_per_s.middle
    reason = next(each.reason for each in advice.choices if each.field == "gpu_model")
    assert other in reason
    assert f"{1 - 1 / ratio:.0%} slower" in reason


def test_prices_decide_where_the_deadline_leaves_a_choice():
    chosen = []
    for price in ({"A100-80GB": 0.5, "L40S": 5.0}, {"A100-80GB": 5.0, "L40S": 0.5}):
        asked = request(Objective.DEADLINE, tokens=2e7, deadline_s=1e5, price=price)
        chosen.append(ADVISOR.recommend(asked).chosen.configuration.gpu_model)
    assert chosen == ["A100-80GB", "L40S"]


def test_a_deadline_that_cannot_be_met_is_given_up_for_the_fastest():
    price = {"A100-80GB": 1.6, "L40S": 1.0}
    late = request(Objective.DEADLINE, tokens=1e12, deadline_s=600.0, price=price)
    advice = ADVISOR.recommend(late)
    assert "no configuration finishes by the deadline" in advice.note
    fastest = ADVISOR.recommend(msgspec.structs.replace(late, objective=Objective.FASTEST))
    assert advice.chosen == fastest.chosen
    assert advice.chosen.on_time < 0.01


def test_alternatives_are_of_different_gpus_as_far_as_there_are_such():
    advice = ADVISOR.recommend(request(top=5))
    cells = {
        (each.configuration.gpu_model, each.configuration.num_gpus) for each in advice.candidates
    }
    assert len(cells) >= 5
    scores = [each.score for each in advice.candidates[:5]]
    assert scores == sorted(scores, reverse=True)
    one = {"gpu_model": "A100-80GB", "num_gpus": 1}
    assert len(ADVISOR.recommend(request(top=4, given=one)).candidates) >= 4


def test_where_nothing_fits_the_nearest_miss_and_what_to_change_are_told():
    given = {"model": "llama3.1-70b", "method": "full"}
    advice = ADVISOR.recommend(request(given=given, inventory={"L4": 1}))
    assert advice.chosen is None
    assert "no configuration qualifies" in advice.note
    assert advice.fit is not None
    assert advice.fit.verdict is not Verdict.YES
    assert advice.fit.configuration.gpu_model == "L4"
    assert advice.fit.changes or advice.fit.nearest is not None


def candidate(pace, width, *, gpus=1, p_valid=0.99):
    return Candidate(
        configuration=SMALL.replace(
            num_gpus=gpus, batch_size=4 * gpus, sharding="none" if gpus == 1 else "ddp"
        ),
        estimate=Estimate(
            p_valid=p_valid,
            cause=Cause.NONE,
            tokens_per_s=Interval(pace / width, pace, pace * width),
            memory_gb=Interval(1.0, 1.0, 1.0),
            support=0,
            extrapolated=(),
            measured=False,
            source="test",
        ),
        score=pace,
    )


def test_a_run_of_what_is_not_known_teaches_more_than_one_of_what_is():
    known, unknown = candidate(1000, 1.02), candidate(980, 1.6)
    sure, lesson = best_lesson([known, unknown], Objective.FASTEST, Limits())
    assert 0.4 < sure < 0.7
    assert lesson.about == 1
    assert lesson.gain > 0.05
    assert lesson.sure_after > sure + 0.3


def test_where_the_best_is_clear_nothing_is_to_be_learnt():
    sure, lesson = best_lesson(
        [candidate(1000, 1.05, p_valid=1.0), candidate(500, 1.05)], Objective.FASTEST, Limits()
    )
    assert sure > 0.999
    assert lesson.gain < 1e-3


def test_what_a_run_is_worth_agrees_with_the_closed_form():
    """E max(0, N(difference, deviation)) for one candidate against another that is known."""
    deviation, difference = 0.2, -0.1
    width = float(np.exp(1.6448536 * deviation))
    first = candidate(1000, 1.000001, p_valid=1.0)
    second = candidate(1000 * float(np.exp(difference)), width, p_valid=1.0)
    _, lesson = best_lesson([first, second], Objective.FASTEST, Limits())
    z = difference / deviation
    density = float(np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi))
    below = 0.3085375  # of the normal distribution at -0.5
    expected = deviation * density + difference * below
    assert np.log1p(lesson.gain) == pytest.approx(expected, rel=0.08)


def test_a_run_on_one_gpu_tells_less_of_several():
    two = [candidate(1000, 1.02), candidate(990, 1.5)]
    many = [candidate(1000, 1.02), candidate(990, 1.5, gpus=4)]
    gains = [best_lesson(each, Objective.FASTEST, Limits())[1].gain for each in (two, many)]
    assert 0 < gains[1] < gains[0]


def test_what_is_to_be_run_is_the_share_of_one_gpu_where_that_can_be():
    four = SMALL.replace(num_gpus=4, batch_size=16, sharding="ddp", grad_accum=2)
    assert one_gpu(four) == SMALL
    sharded = four.replace(sharding="fsdp")
    assert one_gpu(sharded).num_gpus == 4


def test_what_a_run_costs_is_told_if_there_is_a_price():
    pair = [candidate(1000, 1.3), candidate(990, 1.3)]
    limits = Limits(price={"A100-80GB": 3.0})
    _, lesson = best_lesson(pair, Objective.FASTEST, limits)
    assert lesson.cost == pytest.approx(3.0 * lesson.seconds / 3600)
    assert best_lesson(pair, Objective.FASTEST, Limits())[1].cost is None


def test_an_unknown_pace_teaches_nothing():
    nothing = candidate(float("nan"), 1.0)
    assert best_lesson([nothing, nothing], Objective.FASTEST, Limits()) == (None, None)
    assert best_lesson([], Objective.FASTEST, Limits()) == (None, None)


def test_the_same_question_has_the_same_answer():
    asked = request(
        Objective.DEADLINE, tokens=2e8, deadline_s=2e4, price={"A100-80GB": 1.6, "L40S": 1.0}
    )
    first, second = (msgspec.json.encode(ADVISOR.recommend(asked)) for _ in range(2))
    assert first == second


def test_every_known_gpu_has_a_usual_price():
    assert set(USUAL_PRICES) == set(GPUS)
    prices, usual = prices_for(("H100", "L40S", "unheard-of"), {"nvidia h100": 2.0})
    assert prices == {"H100": 2.0, "L40S": USUAL_PRICES["L40S"]}
    assert usual == ("L40S",)

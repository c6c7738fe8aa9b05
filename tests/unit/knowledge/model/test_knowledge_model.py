"""The learned model as a whole: what it promises whatever the history."""

from __future__ import annotations

from importlib.resources import as_file, files

import msgspec
import numpy as np
import pytest

from duetune.interop.import_runs.recognise import import_history
from duetune.knowledge.configurations.configuration import Configuration, Configurations, Method
from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.configurations.space_files import default_space, read_space
from duetune.knowledge.estimate import EXTRAPOLATED, Cause
from duetune.knowledge.facts.gpus import GPUS
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.history import History
from duetune.knowledge.history_files import read_history
from duetune.knowledge.model.learned_model import KnowledgeModel
from duetune.knowledge.model.quality import IMPLAUSIBLE, SATURATED
from duetune.knowledge.observation import Observation, RunOutcome
from duetune.knowledge.sources.learned import HybridSource
from duetune.market.datasets import data_folder
from support.synthetic_history import TRUTH, drawn, measured

COLUMNS = ("p_valid", "cause", "tokens_per_s", "memory_gb", "support", "extrapolated")
SIZE = 110


def slower(rows):
    return np.where(rows.is_("gpu_model", "L40S") & (rows.number("batch_size") >= 8), 0.7, 1.0)


def world(size, seed, **given):
    rows = drawn(size, seed)
    return measured(rows, seed + 100, slower=slower(rows), **given)


HISTORY = world(SIZE, 1)
FRESH = drawn(200, 2, method=("full", "lora", "qlora"), gpu_model=("A100-80GB", "L40S", "H200"))
ONE = Configuration(model="meta-llama/Llama-3.2-1B", gpu_model="A100-80GB")


@pytest.fixture(scope="module")
def model():
    return KnowledgeModel.fit(HISTORY)


@pytest.fixture(scope="module")
def blank():
    return KnowledgeModel.fit(History())


def same(first, second, rows=FRESH):
    mine, theirs = first.estimate(rows), second.estimate(rows)
    return all(getattr(mine, name).tobytes() == getattr(theirs, name).tobytes() for name in COLUMNS)


def one(learned, /, **changes):
    return learned.estimate(Configurations.of([ONE.replace(**changes)]))[0]


@pytest.mark.more
def test_order_and_repetition_of_observations_do_not_show(model):
    turned = list(HISTORY)[::-1]
    again = KnowledgeModel.fit(History([*turned, *turned[:7]]))
    assert again.snapshot == model.snapshot
    assert same(model, again)


def test_what_is_in_quarantine_changes_nothing(model):
    mad = [
        Observation(configuration=ONE, outcome=RunOutcome.VALID, tokens_per_s=1e9),
        Observation(
            configuration=ONE.replace(gpu_model="emulated"),
            outcome=RunOutcome.VALID,
            tokens_per_s=5.0,
        ),
        Observation(
            configuration=ONE, outcome=RunOutcome.VALID, tokens_per_s=3.0, flags=(IMPLAUSIBLE,)
        ),
    ]
    again = KnowledgeModel.fit(History([*HISTORY, *mad]))
    assert again.learnt == model.learnt == HISTORY.keys
    assert again.snapshot == model.snapshot
    assert same(model, again)


def test_what_failed_or_was_stopped_teaches_neither_pace_nor_memory():
    few = world(12, 3)
    odd = [
        Observation(configuration=each.configuration, outcome=outcome, tokens_per_s=1.0)
        for each in few
        for outcome in (RunOutcome.FAILED, RunOutcome.STOPPED, RunOutcome.REJECTED)
    ]
    assert same(KnowledgeModel.fit(few), KnowledgeModel.fit(History([*few, *odd])))


def test_one_by_one_is_the_same_as_all_at_once(model):
    whole = model.estimate(FRESH)
    for index in range(0, len(FRESH), 17):
        alone = model.estimate(Configurations.of([FRESH[index]]))
        assert alone[0] == whole[index]
    part = model.estimate(FRESH.take(np.arange(50, 90)))
    assert part.tokens_per_s.tobytes() == whole.tokens_per_s[50:90].tobytes()
    assert part.p_valid.tobytes() == whole.p_valid[50:90].tobytes()


def test_a_grid_is_answered_like_the_same_rows_listed(model):
    grid = Configurations.grid(
        {
            "model": ["meta-llama/Llama-3.1-8B", "HuggingFaceTB/SmolLM2-135M"],
            "gpu_model": ["L40S", "A100-80GB"],
            "batch_size": [1, 16],
        }
    )
    listed = Configurations.of(list(grid))
    assert (
        model.estimate(grid).tokens_per_s.tolist() == model.estimate(listed).tokens_per_s.tolist()
    )


def test_nothing_asked_is_answered_with_nothing(model, blank):
    for each in (model, blank):
        answer = each.estimate(Configurations.of([]))
        assert len(answer) == 0
        assert answer.tokens_per_s.shape == answer.memory_gb.shape == (0, 3)


def test_intervals_are_in_order_and_probabilities_are_probabilities(model, blank):
    for each in (model, blank):
        answer = each.estimate(FRESH)
        for interval in (answer.tokens_per_s, answer.memory_gb):
            assert np.isfinite(interval).all()
            assert (interval > 0).all()
            assert (np.diff(interval, axis=1) > 0).all()
        assert ((answer.p_valid > 0) & (answer.p_valid < 1)).all()


def test_the_cause_is_memory_where_it_likely_does_not_fit(model):
    answer = model.estimate(FRESH)
    for index in range(len(FRESH)):
        told = answer[index]
        assert told.cause is (Cause.MEMORY if told.p_valid < 0.5 else Cause.NONE)
    assert {Cause.MEMORY, Cause.NONE} == {answer[index].cause for index in range(len(FRESH))}


@pytest.mark.parametrize(
    "changes",
    [
        {"num_gpus": 2, "batch_size": 3, "sharding": "fsdp"},
        {"num_gpus": 2, "batch_size": 2},
        {"batch_size": 0},
        {"tokens_per_sample": 0},
        {"num_gpus": 0},
        {"num_gpus": -1},
        {"num_nodes": 0},
        {"grad_accum": 0},
        {"lora_rank": 0},
        {"fast_moe": 3},
    ],
)
def test_what_breaks_a_rule_never_works_and_is_told_so(model, blank, changes):
    for each in (model, blank):
        told = one(each, **changes)
        assert (told.p_valid, told.cause) == (0.0, Cause.RULE)
        both = each.estimate(Configurations.of([ONE.replace(**changes), ONE]))
        assert both[1] == one(each)


def test_the_empty_history_answers_with_usual_physics(blank):
    told = one(blank)
    assert told.extrapolated == EXTRAPOLATED
    assert told.support == 0
    assert 1_000 < told.tokens_per_s.middle < 50_000
    assert 3 < told.memory_gb.middle < 20


def test_one_observation_is_enough_to_lean_towards_it(blank):
    seen = Observation(configuration=ONE, outcome=RunOutcome.VALID, tokens_per_s=4000.0)
    told = one(KnowledgeModel.fit(History([seen])))
    assert told.support == 1
    assert told.extrapolated == ()
    before = one(blank).tokens_per_s.middle
    assert abs(told.tokens_per_s.middle - 4000) < abs(before - 4000)
    assert told.tokens_per_s.low < told.tokens_per_s.high


@pytest.mark.parametrize("outcome", [RunOutcome.OOM, RunOutcome.FAILED, RunOutcome.REJECTED])
def test_one_observation_of_any_kind_can_be_learnt_from(outcome):
    seen = Observation(configuration=ONE.replace(gpu_model="H200"), outcome=outcome)
    told = one(KnowledgeModel.fit(History([seen])))
    assert np.isfinite([*told.tokens_per_s, *told.memory_gb]).all()
    assert told.p_valid > 0.5


def test_what_was_never_seen_is_named_and_less_sure(model):
    near = {"batch_size": 4, "tokens_per_sample": 1024}

    def width(**changes):
        told = one(model, **near, **changes)
        return told.tokens_per_s.high / told.tokens_per_s.low, told.extrapolated

    usual, nothing = width()
    assert nothing == ()
    for changes, names in (
        ({"software": "other"}, ("software",)),
        ({"gpu_model": "H200"}, ("gpu_model",)),
        ({"method": "gptq-lora"}, ("method",)),
        ({"model": "x/Unheard-Of-2B", "gpu_model": "a card"}, ("model", "gpu_model")),
    ):
        wide, told = width(**changes)
        assert told == names
        assert wide > usual


def test_another_version_of_measured_software_is_taken_to_need_as_much():
    rows = [
        each.replace(software=("a 1.9, b 2", "a 1.10, b 2", "c")[place % 3])
        for place, each in enumerate(drawn(60, 5))
    ]
    learned = KnowledgeModel.fit(measured(Configurations.of(rows), 6))
    newest = one(learned, software="a 1.10, b 2")
    for other in ("a 3, b 4", "a, b"):
        told = one(learned, software=other)
        assert told.memory_gb == newest.memory_gb
        assert told.p_valid == newest.p_valid
        assert told.tokens_per_s.middle == newest.tokens_per_s.middle
        assert told.extrapolated == ("software",)
    assert one(learned, software="a 1.9, b 2").memory_gb != newest.memory_gb
    assert one(learned, software="d").memory_gb != newest.memory_gb

    def width(software):
        pace = one(learned, software=software).tokens_per_s
        return pace.high / pace.low

    assert width("a 1.10, b 2") < width("a 1.11, b 2") < width("d")


def test_support_counts_runs_that_fitted_or_did_not_near_by(model):
    for row in list(FRESH)[:60:7]:
        near = [
            each
            for each in HISTORY
            if (each.configuration.model, each.configuration.method, each.configuration.gpu_model)
            == (row.model, row.method, row.gpu_model)
            and all(
                getattr(row, field) / 2.01
                < getattr(each.configuration, field)
                < 2.01 * getattr(row, field)
                for field in ("num_gpus", "batch_size", "tokens_per_sample")
            )
        ]
        assert model.estimate(Configurations.of([row]))[0].support == len(near)


@pytest.mark.more
def test_more_observations_make_smaller_errors(model, blank):
    rows = drawn(300, 5)
    it = Described(rows)
    truth = TRUTH.pace.tokens_per_s(it) * slower(rows)
    fits = TRUTH.memory.peak(it) <= it.capacity

    def errors(each):
        answer = each.estimate(rows)
        off = np.abs(np.log(answer.tokens_per_s[:, 1] / truth))[fits]
        memory = np.abs(np.log(answer.memory_gb[:, 1] * 1e9 / TRUTH.memory.peak(it)))
        return off.mean(), memory.mean(), np.mean((answer.p_valid - fits) ** 2)

    few = errors(KnowledgeModel.fit(HISTORY.take(np.arange(30))))
    none, many = errors(blank), errors(model)
    assert many[0] < 0.85 * few[0] < 0.85 * none[0]
    assert many[1] < few[1] < none[1]
    assert many[2] < 0.9 * none[2]


def test_nine_of_ten_new_runs_are_inside_the_interval(model):
    fresh = world(200, 6)
    valid = fresh.take(fresh.outcome == "valid")
    answer = model.estimate(valid.configurations)
    pace, memory = answer.tokens_per_s, answer.memory_gb
    inside = (pace[:, 0] <= valid.tokens_per_s) & (valid.tokens_per_s <= pace[:, 2])
    assert inside.mean() > 0.8
    held = (memory[:, 0] <= valid.peak_memory_gb) & (valid.peak_memory_gb <= memory[:, 2])
    assert held.mean() > 0.8


def saturated(rows):
    """Every run shows all memory taken, which says nothing of what it needed."""
    full = Described(rows).capacity / 1e9
    return [
        Observation(
            configuration=row,
            outcome=RunOutcome.VALID,
            tokens_per_s=1000.0,
            peak_memory_gb=float(full[index]) * share,
            flags=flags,
        )
        for index, row in enumerate(rows)
        for share, flags in ((0.99, ()), (0.6, (SATURATED,)))
    ]


def test_a_full_memory_is_not_taken_for_what_was_needed(blank):
    small = drawn(12, 7, model=("HuggingFaceTB/SmolLM2-135M",), num_gpus=(1,), batch_size=(1,))
    told = KnowledgeModel.fit(History(saturated(small)))
    assert told.estimate(small).memory_gb[:, 1] == pytest.approx(
        blank.estimate(small).memory_gb[:, 1], rel=0.05
    )


def test_what_a_paged_optimiser_shows_is_not_taken_for_what_was_needed(blank):
    small = {"model": ("HuggingFaceTB/SmolLM2-135M",), "num_gpus": (1,), "batch_size": (1,)}
    paged = drawn(12, 9, optimiser=("paged-adamw",), **small)
    told = KnowledgeModel.fit(
        History(
            Observation(
                configuration=row,
                outcome=RunOutcome.VALID,
                tokens_per_s=1000.0,
                peak_memory_gb=30.0,
            )
            for row in paged
        )
    )
    assert told.estimate(paged).memory_gb[:, 1] == pytest.approx(
        blank.estimate(paged).memory_gb[:, 1], rel=0.05
    )


def test_what_was_needed_counts_and_not_what_was_kept_beside_it():
    rows = drawn(12, 8, model=("HuggingFaceTB/SmolLM2-135M",), num_gpus=(1,), batch_size=(1,))
    needed = TRUTH.memory.peak(Described(rows)) / 1e9
    history = History(
        Observation(
            configuration=row,
            outcome=RunOutcome.VALID,
            tokens_per_s=1000.0,
            peak_memory_gb=30.0,
            needed_memory_gb=float(needed[index]),
        )
        for index, row in enumerate(rows)
    )
    told = KnowledgeModel.fit(history).estimate(rows).memory_gb[:, 1]
    assert told == pytest.approx(needed, rel=0.1)


def test_memory_is_in_gigabytes_of_one_gpu_and_pace_of_all_together(model):
    four = {"num_gpus": 4, "batch_size": 16, "sharding": "fsdp", "tokens_per_sample": 2048}
    alone, together = one(model, batch_size=4, tokens_per_sample=2048), one(model, **four)
    assert 1.5 < together.tokens_per_s.middle / alone.tokens_per_s.middle < 4.2
    assert 0.3 < together.memory_gb.middle / alone.memory_gb.middle < 1.6


# Common sense, with real measurements.


LARGE = Configurations.grid(
    {
        "model": ["meta-llama/Llama-3.1-405B", "x/Unheard-Of-405B"],
        "gpu_model": list(GPUS),
        "method": [each.value for each in Method],
        "optimiser": ["adamw", "paged-adamw", "sgd"],
        "grad_checkpoint": [True, False],
        "tokens_per_sample": [128, 4096],
        "software": ["", "torch 2.11.0, transformers 5.17.0, peft 0.21.0"],
    }
)
SMALL = Configurations.grid(
    {
        "model": ["HuggingFaceTB/SmolLM2-135M"],
        "gpu_model": list(GPUS),
        "method": [each.value for each in Method],
        "grad_checkpoint": [True, False],
        "tokens_per_sample": [128, 1024],
        "software": ["", "torch 2.11.0, transformers 5.17.0, peft 0.21.0"],
    }
)


def check_common_sense(model):
    large = model.estimate(LARGE)
    assert large.p_valid.max() < 0.2
    assert np.quantile(large.p_valid, 0.99) < 0.05
    small = model.estimate(SMALL)
    assert small.p_valid.min() > 0.8
    for rows, answer in ((LARGE, large), (SMALL, small)):
        assert np.isfinite(answer.tokens_per_s).all()
        it = Described(rows)
        flop = np.where(it.full, 6.0, 4.0) * it.active
        assert (answer.tokens_per_s[:, 1] * flop <= it.peak * it.gpus).all()


def test_the_largest_model_never_fits_one_card_and_the_smallest_every(model, blank):
    for each in (model, blank):
        check_common_sense(each)


@pytest.fixture(scope="module")
def shipped():
    with as_file(files("duetune.knowledge") / "data" / "h200.csv") as path:
        history = read_history(path)
    return history.take(np.arange(0, len(history), 7))


def test_common_sense_stays_with_the_shipped_measurements(shipped):
    check_common_sense(KnowledgeModel.fit(shipped))


@pytest.mark.more
def test_common_sense_stays_with_public_tables(shipped):
    folder = data_folder() / "config"
    if not folder.is_dir():
        pytest.skip("the data folder (shared/data beside the repository) is not here")
    rows = list(shipped)[::4]
    for name, every in (("llmfinetuningbench_sample.csv", 1), ("ibm_sft_throughput.csv", 12)):
        rows.extend(list(import_history(folder / name).history)[::every])
    check_common_sense(KnowledgeModel.fit(History(rows)))


@pytest.mark.parametrize("which", ["poster", "default"])
def test_every_point_of_the_packaged_spaces_has_an_answer(model, which):
    if which == "poster":
        space = read_space("poster")
        rows = space.at(np.arange(0, space.combinations, 7))
    else:
        space = default_space().given({"model": "meta-llama/Llama-3.1-8B"})
        rows = space.points()
    assert len(rows) > 1000
    answer = model.estimate(rows)
    kept = answer.cause != 1
    assert kept.any()
    for interval in (answer.tokens_per_s[kept], answer.memory_gb[kept]):
        assert np.isfinite(interval).all()
        assert (np.diff(interval, axis=1) > 0).all()


def test_facts_of_the_models_here_are_known():
    assert model_facts("meta-llama/Llama-3.1-405B").parameters > 4e11


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("sharding", {"sharding": "hybrid", "num_gpus": 2, "batch_size": 4}),
        ("optimiser", {"optimiser": "lion"}),
        ("attention", {"attention": "varlen"}),
        ("packed", {"tokens_per_microbatch": 4096, "batch_size": 1}),
        ("num_gpus", {"num_gpus": 256, "batch_size": 256, "sharding": "fsdp"}),
    ],
)
def test_memory_is_less_sure_of_what_was_never_measured(model, field, changes):
    usual, told = one(model), one(model, **changes)
    assert field in told.extrapolated
    assert told.memory_gb.high / told.memory_gb.low > usual.memory_gb.high / usual.memory_gb.low


@pytest.mark.more
def test_whole_campaigns_held_out_make_intervals_honest_on_another_day():
    """Each day is faster or slower by its own factor, which no other day tells."""
    random = np.random.default_rng(1)
    rows = drawn(240, 31)

    def day(number, table):
        return [
            msgspec.structs.replace(
                each,
                tokens_per_s=each.tokens_per_s and each.tokens_per_s * float(factor),
                origin="campaign",
                provenance=f"day {number}",
                measured_at=86_400.0 * number,
            )
            for each, factor in zip(
                measured(table, number),
                np.repeat(np.exp(0.15 * random.standard_normal()), len(table)),
                strict=True,
            )
        ]

    days = [day(number, rows.take(np.arange(number, 240, 6))) for number in range(6)]
    known = History([each for part in days[:5] for each in part])
    mixed = History(
        msgspec.structs.replace(each, provenance="one day", measured_at=0.0) for each in known
    )
    table = Configurations.of(each.configuration for each in known)
    model = KnowledgeModel.fit(known)
    honest, naive = model.estimate(table), KnowledgeModel.fit(mixed).estimate(table)

    def width(estimates):
        return np.nanmedian(estimates.tokens_per_s[:, 2] / estimates.tokens_per_s[:, 0])

    assert width(honest) > 1.05 * width(naive)
    # What was measured on one of these days is as uncertain on another day.
    again = HybridSource(known, model=model).query(table)
    assert again.measured.all()
    assert width(again) > 1.2

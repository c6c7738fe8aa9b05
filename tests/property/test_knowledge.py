"""Whatever the configuration: memory and time go the right way, and what follows, follows."""

from __future__ import annotations

import math
import string

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.knowledge.configurations.configuration import (
    CATEGORIES,
    FIELDS,
    Attention,
    Configuration,
    Configurations,
    Interconnect,
    Method,
    Optimiser,
    Precision,
    Sharding,
)
from duetune.knowledge.configurations.configuration_table import Described, card_bytes
from duetune.knowledge.facts.gpus import GPUS
from duetune.knowledge.history import History
from duetune.knowledge.model.features import Physics, Reckoned, feature_matrix
from duetune.knowledge.model.forest import (
    SMALLEST,
    TRIED,
    grow_classification,
    grow_regression,
    sortable,
)
from duetune.knowledge.model.frontier import INVALID, UNKNOWN, VALID, Frontier, Support
from duetune.knowledge.model.learned_model import KnowledgeModel
from duetune.knowledge.observation import Observation, RunOutcome
from support.later import later

ensemble = later("sklearn.ensemble")

MODELS = (
    "HuggingFaceTB/SmolLM2-135M",
    "meta-llama/Llama-3.1-8B",
    "mistralai/Mixtral-8x7B-v0.1",
    "meta-llama/Llama-3.1-405B",
    "bigcode/starcoder",
    "nobody/knows",
)
words = st.text(min_size=1, max_size=8)
sizes = st.sampled_from([1, 2, 3, 4, 8, 16, 64])


@st.composite
def runnable(draw, **given_):
    """Keeps the rules of counting."""
    gpus = draw(st.sampled_from([1, 2, 4, 8, 16]))
    sharding = Sharding.NONE if gpus == 1 else draw(st.sampled_from(list(Sharding)[1:]))
    fields = {
        "model": draw(st.sampled_from(MODELS)),
        "gpu_model": draw(st.sampled_from([*GPUS, "a card of nobody"])),
        "method": draw(st.sampled_from(Method)),
        "num_gpus": gpus,
        "num_nodes": 2 if gpus == 16 else 1,
        "batch_size": gpus * draw(sizes),
        "tokens_per_sample": draw(st.sampled_from([1, 128, 500, 1024, 8192, 131072])),
        "grad_accum": draw(st.sampled_from([1, 2, 16])),
        "precision": draw(st.sampled_from(Precision)),
        "sharding": sharding,
        "grad_checkpoint": draw(st.booleans()),
        "lora_rank": draw(st.sampled_from([1, 8, 256])),
        "lora_targets": draw(st.sampled_from(["attention", "all-linear"])),
        "optimiser": draw(st.sampled_from(Optimiser)),
        "attention": draw(st.sampled_from(Attention)),
        "fast_kernels": draw(st.booleans()),
        "interconnect": draw(st.sampled_from(Interconnect)),
        "memory_cap_gb": draw(st.sampled_from([0.0, 0.0, 1.0, 24.0, 47.0])),
        "software": draw(st.sampled_from(["", "trl 1.0", "é|=, "])),
    }
    return Configuration(**(fields | given_))


def reckoned(*rows):
    return Reckoned(Described(Configurations.of(rows)), Physics())


@given(st.lists(runnable(), min_size=1, max_size=5))
def test_every_term_is_finite_and_not_negative(rows):
    told = reckoned(*rows)
    for column in (*told.memory.values(), *told.time.values()):
        assert np.isfinite(column).all()
        assert (column >= 0).all()
    assert (told.peak > 0).all()
    assert (told.step_s > 0).all()
    assert np.isfinite(feature_matrix(told, {})).all()


@given(runnable())
def test_the_peak_is_no_less_than_what_is_always_there_and_no_more_than_all_terms(row):
    told = reckoned(row)
    terms = {name: float(column[0]) for name, column in told.memory.items()}
    state = 0.0 if row.optimiser is Optimiser.PAGED_ADAMW else terms["optimiser"]
    always = terms["weights"] + state + terms["gathered layers"] + terms["context"]
    peak = float(told.peak[0])
    assert always * (1 - 1e-12) <= peak <= sum(terms.values()) * (1 + 1e-12)


@given(runnable(), st.sampled_from(["batch_size", "tokens_per_sample"]), st.integers(2, 8))
def test_more_tokens_need_more_memory_and_more_time(row, field, factor):
    told = reckoned(row, row.replace(**{field: factor * getattr(row, field)}))
    assert told.peak[0] <= told.peak[1]
    assert told.step_s[0] < told.step_s[1]
    assert (told.memory["activations"][0] < told.memory["activations"][1]) or (
        row.tokens_per_sample * row.batch_size == 0
    )


@given(runnable())
def test_computing_again_saves_memory_and_costs_time(row):
    told = reckoned(row.replace(grad_checkpoint=True), row.replace(grad_checkpoint=False))
    assert told.peak[0] <= told.peak[1] * (1 + 1e-12)
    assert told.time["arithmetic"][0] > told.time["arithmetic"][1]


@given(runnable())
def test_eager_attention_is_never_smaller_or_faster(row):
    told = reckoned(row.replace(attention="sdpa"), row.replace(attention="eager"))
    assert told.peak[0] <= told.peak[1]
    assert told.step_s[0] < told.step_s[1]


@given(runnable(), st.sampled_from([2, 4, 8]))
def test_sharing_the_state_among_more_needs_less_of_each(row, gpus):
    each = row.batch_size // row.num_gpus
    few = row.replace(num_gpus=gpus, batch_size=gpus * each, num_nodes=1, sharding="fsdp")
    many = few.replace(num_gpus=2 * gpus, batch_size=2 * gpus * each)
    told = reckoned(few, many)
    assert told.peak[1] < told.peak[0]


@given(st.sampled_from([*GPUS, "a card of nobody"]), st.just(0.0) | st.floats(0.001, 500))
def test_a_cap_only_lowers_the_capacity(gpu, cap):
    row = Configuration(model=MODELS[0], gpu_model=gpu)
    capped, whole = Described(Configurations.of([row.replace(memory_cap_gb=cap), row])).capacity
    assert capped <= whole
    assert capped > 0


@given(st.floats(0.01, 1000), st.floats(0.01, 1000))
def test_a_higher_cap_is_never_less(one, other):
    low, high = sorted((one, other))
    assert card_bytes(low) <= card_bytes(high)


@given(runnable())
def test_no_card_does_more_than_its_peak(row):
    told = reckoned(row)
    it = told.it
    flop = (6 if row.method is Method.FULL else 4) * it.active[0]
    assert told.tokens_per_s[0] * flop <= it.peak[0] * it.gpus[0]


@given(st.lists(runnable(), min_size=1, max_size=6))
def test_what_is_told_of_one_does_not_depend_on_the_others(rows):
    together = reckoned(*rows)
    for index, row in enumerate(rows):
        alone = reckoned(row)
        assert alone.peak[0] == together.peak[index]
        assert alone.step_s[0] == together.step_s[index]


BLANK = KnowledgeModel.fit(History())


@given(st.lists(runnable(), min_size=1, max_size=6))
def test_without_any_history_every_answer_is_finite_and_in_order(rows):
    answer = BLANK.estimate(Configurations.of(rows))
    kept = answer.cause != 1
    for interval in (answer.tokens_per_s[kept], answer.memory_gb[kept]):
        assert np.isfinite(interval).all()
        assert (np.diff(interval, axis=1) > 0).all()
    assert ((answer.p_valid >= 0) & (answer.p_valid <= 1)).all()
    assert answer.extrapolated.all()


# What follows from runs alone, against the plain definition.

small = st.builds(
    Configuration,
    model=st.sampled_from(["a", "b|b"]),
    gpu_model=st.sampled_from(["L40S", "A100-80GB"]),
    method=st.sampled_from(["full", "lora"]),
    num_gpus=st.sampled_from([1, 2]),
    sharding=st.just("fsdp"),
    batch_size=st.sampled_from([2, 4, 6, 8]),
    tokens_per_sample=st.sampled_from([128, 256, 512]),
    memory_cap_gb=st.sampled_from([0.0, 24.0, 40.0]),
    software=st.sampled_from(["", "x"]),
).map(lambda row: row.replace())
outcomes = st.sampled_from([RunOutcome.VALID, RunOutcome.OOM, RunOutcome.FAILED])


def cell(row):
    return row.replace(batch_size=1, tokens_per_sample=1, memory_cap_gb=0.0)


def needs(row):
    capacity = GPUS[row.gpu_model].capacity
    cap = card_bytes(row.memory_cap_gb) if row.memory_cap_gb else math.inf
    return (row.batch_size, row.tokens_per_sample, -min(capacity, cap))


def at_least(one, other):
    return all(mine >= theirs for mine, theirs in zip(needs(one), needs(other), strict=True))


def follows(past, row):
    mine = [(run, outcome) for run, outcome in past if cell(run) == cell(row)]
    fits = any(outcome is RunOutcome.VALID and at_least(run, row) for run, outcome in mine)
    fails = any(outcome is RunOutcome.OOM and at_least(row, run) for run, outcome in mine)
    if fits == fails:
        return UNKNOWN
    return VALID if fits else INVALID


@given(st.lists(st.tuples(small, outcomes), max_size=12), st.lists(small, min_size=1, max_size=12))
def test_the_frontier_is_what_follows_by_definition(past, asked):
    frontier = Frontier(
        History(
            Observation(configuration=row, outcome=outcome, tokens_per_s=1.0)
            for row, outcome in past
        )
    )
    asked = [*asked, *(row for row, _ in past)]
    told = frontier.answers(Configurations.of(asked)).tolist()
    assert told == [follows(past, row) for row in asked]


def near(one, other):
    words_ = ("model", "method", "gpu_model")
    numbers = ("num_gpus", "batch_size", "tokens_per_sample")
    return all(getattr(one, field) == getattr(other, field) for field in words_) and all(
        abs(round(math.log2(getattr(one, field))) - round(math.log2(getattr(other, field)))) <= 1
        for field in numbers
    )


@given(st.lists(small, max_size=12), st.lists(small, min_size=1, max_size=8))
def test_support_counts_what_is_near_by_definition(rows, asked):
    told = Support.of(Configurations.of(rows)).count(Configurations.of(asked))
    assert told.tolist() == [sum(near(row, each) for row in rows) for each in asked]


# Trees.

numbers = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-126])


@given(st.lists(numbers, min_size=2, max_size=30))
def test_keys_compare_like_their_numbers(values):
    column = np.array(values, np.float32)
    keys = sortable(column)
    assert ((column[:, None] > column[None, :]) == (keys[:, None] > keys[None, :])).all()


@given(
    st.lists(st.tuples(numbers, numbers, st.booleans()), min_size=4, max_size=25),
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=10),
)
@settings(max_examples=25)
def test_flat_trees_are_the_librarys(rows, asked):
    matrix = np.array([row[:2] for row in rows], np.float32)
    label = np.array([row[2] for row in rows])
    weight = np.linspace(1, 2, len(rows))
    questions = np.array([*asked, *matrix.tolist()], np.float32)
    target = matrix.sum(axis=1, dtype=np.float64)
    grown = ensemble.ExtraTreesRegressor(
        3, random_state=1, max_features=TRIED, min_samples_leaf=SMALLEST
    ).fit(matrix, target, sample_weight=weight)
    flat = grow_regression(matrix, target, weight, trees=3, seed=1)
    assert (flat.predict(sortable(questions))[0] == grown.predict(questions)).all()
    forest = grow_classification(matrix, label, weight, rising=[1], trees=3, seed=1)
    told = forest.predict(sortable(questions))[0]
    if label.all() or not label.any():
        assert (told == float(label[0])).all()
        return
    judge = ensemble.ExtraTreesClassifier(3, random_state=1, max_features=0.5, monotonic_cst=[0, 1])
    judge.fit(matrix, label, sample_weight=weight)
    assert (told == judge.predict_proba(questions)[:, 1]).all()
    line = np.stack([np.full(20, questions[0, 0]), np.linspace(-1e6, 1e6, 20)], axis=1)
    rising = forest.predict(sortable(np.ascontiguousarray(line, np.float32)))[0]
    assert (np.diff(rising) >= 0).all()


# Configurations.


@given(st.lists(runnable(model="模型/é-1B", software="ünïcode ☃"), max_size=5), words)
def test_rows_survive_columns_whatever_their_words(rows, word):
    rows = [*rows, Configuration(model=word, gpu_model=word)]
    many = Configurations.of(rows)
    assert list(many) == rows
    assert [row.key for row in many] == [row.key for row in rows]
    order = np.arange(len(rows))[::-1].copy()
    assert list(many.take(order)) == rows[::-1]
    assert many.words("model") == [row.model for row in rows]


@given(runnable())
def test_a_key_is_of_the_content_alone(row):
    again = msgspec.json.decode(msgspec.json.encode(row), type=Configuration)
    assert again == row
    assert again.key == row.key
    assert len(row.key) == 16
    assert set(row.key) <= set(string.hexdigits)


@given(st.lists(runnable(), min_size=1, max_size=6), st.sampled_from(sorted(CATEGORIES)))
def test_a_number_is_gathered_for_each_word_and_each_word_is_asked_once(rows, field):
    asked = []

    def length(word):
        asked.append(word)
        return float(len(word))

    told = Configurations.of(rows).gather(field, length)
    assert told.tolist() == [len(str(getattr(row, field))) for row in rows]
    assert len(asked) == len(set(asked))


@given(
    st.permutations(["num_gpus", "method", "batch_size", "software"]),
    st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
def test_a_grid_is_the_product_in_the_order_of_its_fields(fields, lengths):
    values = {
        "num_gpus": [1, 2, 4],
        "method": ["full", "lora", "qlora"],
        "batch_size": [8, 16, 32],
        "software": ["", "é", "b"],
    }
    domains = {"model": ["a"], "gpu_model": ["L4"]}
    domains |= {field: values[field][:size] for field, size in zip(fields, lengths, strict=True)}
    expected = [Configuration(model="a", gpu_model="L4")]
    for field in fields:
        expected = [row.replace(**{field: value}) for row in expected for value in domains[field]]
    assert list(Configurations.grid(domains)) == expected
    assert set(FIELDS) >= set(domains)

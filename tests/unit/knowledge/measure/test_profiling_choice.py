"""Which configurations a campaign runs next."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.configurations.space import Domain, Space
from duetune.knowledge.configurations.space_sampling import sample
from duetune.knowledge.estimate import EXTRAPOLATED, Estimates
from duetune.knowledge.measure.active import Active, information, positions, spread_out
from duetune.knowledge.measure.choice import (
    BATCH,
    Costs,
    Drawn,
    RemainingBudget,
    check_measurable,
    fitting,
    trial_seconds,
)
from duetune.knowledge.measure.repeats import Repeating
from duetune.knowledge.measure.surrogate import RUNS, HoldOut, RidgeEnsemble
from duetune.knowledge.measure.trials import Batch
from duetune.knowledge.measure.worker_messages import Timing
from duetune.knowledge.observation import Observation, RunOutcome

SMALL, MIDDLE, LARGE = "HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.2-1B"
ENDLESS = RemainingBudget(seconds=1e9, count=10**9)


def space(**domains):
    values = {
        "model": (SMALL, MIDDLE),
        "gpu_model": ("H200",),
        "method": ("full", "lora"),
        "tokens_per_microbatch": (1024, 2048, 4096, 8192),
        "tokens_per_sample": (128, 256, 512, 1024),
        "precision": ("bf16",),
        "grad_checkpoint": (True, False),
        **domains,
    }
    return Space({field: Domain(tuple(each)) for field, each in values.items()})


def configuration(**changes):
    values = {"model": SMALL, "gpu_model": "H200", "method": "full", "tokens_per_microbatch": 4096}
    return Configuration(**{**values, "attention": "varlen", **changes})


def observation(outcome=RunOutcome.VALID, pace=1000.0, peak=10.0, **changes):
    valid = outcome is RunOutcome.VALID
    return Observation(
        configuration=configuration(**changes),
        outcome=outcome,
        tokens_per_s=pace if valid else None,
        peak_memory_gb=peak if valid else None,
    )


class Believing:
    """A surrogate that is unsure, or slow, where it is told."""

    def __init__(self, unsure=lambda _: 0.1, pace=lambda _: 1e6, p_valid=lambda _: 1.0):
        self.unsure, self.pace, self.p_valid = unsure, pace, p_valid

    def __call__(self, _observations):
        return self

    def estimate(self, configurations):
        rows = list(configurations)
        pace = np.array([float(self.pace(each)) for each in rows])
        wide = np.array([float(self.unsure(each)) for each in rows])
        nothing = np.zeros(len(rows))
        return Estimates(
            p_valid=np.array([float(self.p_valid(each)) for each in rows]),
            cause=nothing.astype(np.int8),
            tokens_per_s=np.column_stack([pace * np.exp(-wide), pace, pace * np.exp(wide)]),
            memory_gb=np.ones((len(rows), 3)),
            support=nothing.astype(np.int64),
            extrapolated=np.zeros((len(rows), len(EXTRAPOLATED)), np.bool_),
            measured=nothing.astype(np.bool_),
            source="belief",
        )


def active(there, fit, most_s=1e9, seed=0):
    rng = np.random.default_rng(seed)
    return Active(there, rng, costs=Costs(Timing(), most_s), fit=fit, pool=1000)


def seen_everywhere(there):
    """One observation of each model, so that none is new."""
    return [observation(model=str(model)) for model in there.values["model"]]


def test_active_chooses_the_model_it_is_unsure_of():
    there = space(model=(SMALL, MIDDLE, LARGE))
    unsure = Believing(unsure=lambda each: 3.0 if each.model == MIDDLE else 0.1)
    batch = active(there, unsure).choose(seen_everywhere(there), set(), ENDLESS)
    assert batch.model == MIDDLE


def test_active_prefers_what_it_is_unsure_of_inside_a_model():
    there = space(model=(SMALL,), tokens_per_microbatch=tuple(range(1024, 33 * 1024, 1024)))
    unsure = Believing(unsure=lambda each: 3.0 if each.method == "lora" else 0.05)
    batch = active(there, unsure).choose(seen_everywhere(there), set(), ENDLESS)
    methods = Counter(str(each.method) for each in batch.configurations)
    assert methods["lora"] > 0.9 * BATCH


def test_active_prefers_the_cheaper_of_what_teaches_as_much():
    there = space(model=(SMALL, MIDDLE))
    slow = Believing(pace=lambda each: 100.0 if each.model == SMALL else 1e6)
    batch = active(there, slow).choose(seen_everywhere(there), set(), ENDLESS)
    assert batch.model == MIDDLE


def test_active_first_looks_at_every_model_and_covers_it():
    there = space(model=(SMALL, MIDDLE, LARGE))
    chooser, seen, order = active(there, Believing()), [], []
    for _ in range(3):
        batch = chooser.choose(seen, {each.configuration.key for each in seen}, ENDLESS)
        order.append(batch.model)
        seen += [
            Observation(configuration=each, outcome=RunOutcome.OOM) for each in batch.configurations
        ]
        for field in ("method", "grad_checkpoint", "tokens_per_microbatch", "tokens_per_sample"):
            assert len({getattr(each, field) for each in batch.configurations}) > 1, field
    assert order == [SMALL, MIDDLE, LARGE], "small ones first"


def test_active_leaves_the_model_that_is_running_to_its_worker():
    there = space()
    unsure = Believing(unsure=lambda each: 3.0 if each.model == MIDDLE else 0.1)
    room = msgspec.structs.replace(ENDLESS, running=MIDDLE)
    batch = active(there, unsure).choose(seen_everywhere(there), set(), room)
    assert batch.model == SMALL


def test_active_runs_nothing_twice_and_ends_when_nothing_is_left():
    there = space(model=(SMALL,))
    chooser, taken = active(there, Believing()), set()
    for _ in range(100):
        batch = chooser.choose(seen_everywhere(there), taken, ENDLESS)
        if batch is None:
            break
        keys = {each.key for each in batch.configurations}
        assert not keys & taken
        taken |= keys
    assert len(taken) == there.cardinality


def test_active_leaves_out_what_takes_too_long():
    there = space(model=(SMALL,))
    slow = Believing(pace=lambda each: 10.0 if each.tokens_per_microbatch > 2048 else 1e6)
    batch = active(there, slow, most_s=20.0).choose([], set(), ENDLESS)
    assert {each.tokens_per_microbatch for each in batch.configurations} <= {1024, 2048}


def test_active_goes_on_when_the_surrogate_breaks():
    def broken(_observations):
        raise ValueError("no trees")

    assert active(space(), broken).choose([], set(), ENDLESS) is not None


def test_the_same_seed_chooses_the_same():
    one, two = (active(space(), RidgeEnsemble, seed=7).choose([], set(), ENDLESS) for _ in "ab")
    assert one == two


def test_a_run_that_is_bound_to_fit_or_not_teaches_nothing_of_validity():
    known = [
        observation(tokens_per_microbatch=4096),
        observation(RunOutcome.OOM, tokens_per_microbatch=16384),
    ]
    rows = Configurations.of(
        configuration(tokens_per_microbatch=size) for size in (2048, 8192, 32768)
    )
    # The surrogate is of no opinion; runs decide the first and the last.
    estimates = Believing(unsure=lambda _: 0.0, p_valid=lambda _: 0.5).estimate(rows)
    below, between, above = information(rows, estimates, known)
    assert between > 0.6
    assert below == pytest.approx(0.0, abs=1e-6)
    assert above == pytest.approx(0.0, abs=1e-6)


def test_an_interval_across_the_capacity_keeps_the_question_open():
    rows = Configurations.of([configuration(memory_cap_gb=24.0)])
    sure = Believing(unsure=lambda _: 0.0, p_valid=lambda _: 0.999).estimate(rows)
    closed = information(rows, sure, [])
    sure.memory_gb = np.array([[20.0, 24.0, 30.0]])
    assert information(rows, sure, [])[0] > closed[0] + 0.2


def test_chosen_ones_are_far_from_each_other_and_from_those_that_were_run():
    rows = [configuration(tokens_per_sample=2**power) for power in range(5, 14)]
    table = Configurations.of(rows)
    places = positions(table, table.labels)
    chosen = spread_out(places, np.ones(len(rows)), 3, taken=places[:1])
    assert chosen[0] == len(rows) - 1
    assert chosen[1] == len(rows) // 2
    assert 0 not in chosen


def drawn_by(there, method, count, seed=0, most_s=1e9):
    rng = np.random.default_rng(seed)
    costs = Costs(Timing(), most_s)
    return Drawn(there, rng, method, count=count, costs=costs, fit=RidgeEnsemble)


def all_of(chooser, count=10**9):
    found, taken = [], set()
    while len(taken) < count:
        room = RemainingBudget(seconds=1e9, count=count - len(taken))
        batch = chooser.choose([], taken, room)
        if batch is None:
            break
        found.append(batch)
        taken |= {each.key for each in batch.configurations}
    return found


def test_a_latin_hypercube_has_every_value_about_equally_often():
    there = space()
    batches = all_of(drawn_by(there, "latin-hypercube", 64), 64)
    rows = [each for batch in batches for each in batch.configurations]
    assert len(rows) == len({each.key for each in rows}) == 64
    for field in (
        "model",
        "method",
        "tokens_per_microbatch",
        "tokens_per_sample",
        "grad_checkpoint",
    ):
        counts = Counter(str(getattr(each, field)) for each in rows)
        even = 64 / len(counts)
        assert all(abs(count - even) <= 0.15 * even for count in counts.values()), field


@pytest.mark.parametrize("method", ["random", "latin-hypercube"])
def test_a_batch_has_one_model(method):
    there = space(precision=("bf16", "bf16-mixed"))
    for batch in all_of(drawn_by(there, method, 100), 100):
        assert len({each.model for each in batch.configurations}) == 1
        assert len(batch.configurations) <= BATCH


def test_no_more_is_drawn_than_there_is():
    there = space(model=(SMALL,))
    rows = [
        each for batch in all_of(drawn_by(there, "random", 10**6)) for each in batch.configurations
    ]
    assert len(rows) == there.cardinality


@pytest.mark.parametrize("method", ["random", "latin-hypercube"])
def test_what_was_run_before_does_not_count_as_drawn(method):
    there = space()
    taken = {
        each.key
        for batch in all_of(drawn_by(there, method, 50), 50)
        for each in batch.configurations
    }
    batch = drawn_by(there, method, 5).choose([], taken, RemainingBudget(seconds=1e9, count=5))
    assert 1 <= len(batch.configurations) <= 5
    assert not taken & {each.key for each in batch.configurations}


def test_what_breaks_a_rule_is_not_drawn():
    there = space(model=(SMALL,), num_gpus=(1, 2))
    rows = [
        each for batch in all_of(drawn_by(there, "random", 900)) for each in batch.configurations
    ]
    assert {each.num_gpus for each in rows} == {1}
    assert active(there, RidgeEnsemble).choose([], set(), ENDLESS) is not None


def test_a_short_time_is_shared_by_the_models():
    """Were each model run to its end, a short campaign would have seen one of them."""
    chooser = drawn_by(space(model=(SMALL, MIDDLE, LARGE)), "random", 90)
    room = RemainingBudget(seconds=60.0, count=10**9)
    models, taken = set(), set()
    while (batch := chooser.choose([], taken, room)) is not None and room.seconds > 0:
        models.add(batch.model)
        taken |= {each.key for each in batch.configurations}
        room = msgspec.structs.replace(room, seconds=room.seconds - batch.expected_s)
    assert models == {SMALL, MIDDLE, LARGE}


def test_a_batch_is_cut_to_the_room_there_is():
    rows = tuple(configuration(tokens_per_microbatch=size) for size in (1, 2, 4, 8))
    batch = Batch(configurations=rows, seconds=(1.0, 2.0, 3.0, 4.0), start_s=5.0)
    assert fitting(batch, RemainingBudget(seconds=8.5, count=9)).configurations == rows[:2]
    assert fitting(batch, RemainingBudget(seconds=1e9, count=3)).configurations == rows[:3]
    assert (
        fitting(batch, RemainingBudget(seconds=8.5, count=9, slowness=1.4)).configurations
        == rows[:1]
    )
    assert fitting(batch, RemainingBudget(seconds=5.5, count=9)) is None


def test_a_space_of_which_nothing_can_be_measured_is_refused_with_the_reason():
    with pytest.raises(InvalidInput, match="method pt cannot be measured"):
        check_measurable(space(method=("pt",)))
    check_measurable(space(method=("pt", "lora")))
    with pytest.raises(InvalidInput, match="tokens_per_microbatch is needed"):
        check_measurable(space(tokens_per_microbatch=(0,)))


def test_the_seconds_of_a_trial_follow_the_protocol():
    timing = Timing()
    rows = Configurations.of(
        [
            configuration(tokens_per_microbatch=4096),
            configuration(tokens_per_microbatch=4096, grad_accum=2),
        ]
    )
    quick, _ = trial_seconds(rows, np.full(2, 1e6), timing)
    assert timing.min_s < quick < 1.0
    middling, double = trial_seconds(rows, np.full(2, 16_384.0), timing)
    assert 0.25 * 4 < middling < timing.max_s
    assert 1.8 < double / middling < 2.2
    slow, _ = trial_seconds(rows, np.full(2, 410.0), timing)
    assert slow == pytest.approx(35, rel=0.1), "the first step, and two more"


def test_two_steps_that_agree_or_three_are_enough():
    timing = Timing()
    assert not timing.enough([1.0])
    assert timing.enough([1.0, 1.03])
    assert not timing.enough([1.0, 1.05])
    assert timing.enough([1.0, 1.05, 1.2])


def test_known_configurations_are_measured_again_beside_new_ones():
    there = space(model=(SMALL,))
    known = [observation(tokens_per_sample=length) for length in (128, 256, 512, 1024)]
    twice = [*known, known[0]]
    gone = observation(RunOutcome.OOM, tokens_per_sample=64)
    taken = {each.configuration.key for each in known}
    chooser = Repeating(drawn_by(there, "random", 12), 0.2, np.random.default_rng(0))
    batch = chooser.choose([*twice, gone], taken, RemainingBudget(seconds=1e9, count=30))
    keys = [each.key for each in batch.configurations]
    assert len(keys) == len(set(keys)) == 15
    repeated = set(keys) & taken
    assert repeated == {each.configuration.key for each in known[1:]}, "the least measured ones"


def campaign_history(count, seed=0):
    """Observations of a made-up GPU."""
    rng = np.random.default_rng(seed)
    sizes = tuple(512 * 2**power for power in range(7))
    there = space(model=(SMALL, MIDDLE, LARGE), tokens_per_microbatch=sizes)
    rows = []
    for each in sample(there, count, rng):
        tokens = each.tokens_per_microbatch
        pace = 2e5 * tokens / (tokens + 2000) * (0.7 if each.grad_checkpoint else 1.0)
        peak = 3.0 + tokens / 3000
        fits = peak < 20
        rows.append(
            Observation(
                configuration=each,
                outcome=RunOutcome.VALID if fits else RunOutcome.OOM,
                tokens_per_s=pace if fits else None,
                peak_memory_gb=peak if fits else None,
            )
        )
    return rows


def test_the_ridge_ensemble_learns_the_pace_and_where_memory_ends():
    history = campaign_history(150)
    train, test = history[:110], history[110:]
    cold, warm = RidgeEnsemble([]), RidgeEnsemble(train)
    valid = [each for each in test if each.outcome is RunOutcome.VALID]
    table = Configurations.of(each.configuration for each in valid)
    measured = np.array([each.tokens_per_s for each in valid])
    error = np.median(np.abs(warm.estimate(table).tokens_per_s[:, 1] / measured - 1))
    before = np.median(np.abs(cold.estimate(table).tokens_per_s[:, 1] / measured - 1))
    assert error < 0.25 < before
    low, middle, high = warm.estimate(table).tokens_per_s.T
    assert np.all((low < middle) & (middle < high))
    assert 0.7 < np.mean((low < measured) & (measured < high)) <= 1.0


def test_the_ridge_ensemble_is_the_same_every_time():
    history = campaign_history(60)
    table = Configurations.of(each.configuration for each in history)
    one, two = (RidgeEnsemble(history).estimate(table) for _ in "ab")
    assert np.array_equal(one.tokens_per_s, two.tokens_per_s)
    assert np.array_equal(one.p_valid, two.p_valid)


class Improving:
    """Predictions that are off by so much after so many runs."""

    def __init__(self, error_at):
        self.error_at = error_at

    def __call__(self, observations):
        error = self.error_at(len(observations))
        pace = {each.configuration.key: each.tokens_per_s for each in campaign_history(330)}
        return Believing(pace=lambda each: (pace[each.key] or 1.0) * (1 + error))


def test_a_campaign_stops_once_runs_hardly_improve_predictions():
    history = campaign_history(330)
    counts = range(RUNS, 330, RUNS)
    still = HoldOut(Improving(lambda count: 10.0 / count))
    assert not any(still.satisfied(history[:count]) for count in counts)
    flat = HoldOut(Improving(lambda _: 0.1))
    assert any(flat.satisfied(history[:count]) for count in counts)

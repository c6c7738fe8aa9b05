"""Markets as Markov chains: learned from what was seen, and as regimes that are believed."""

from __future__ import annotations

import numpy as np
import pytest

from duetune.core.decision import Seen
from duetune.market.forecast.market_chain import (
    LEVELS,
    PRICES,
    learned_chain,
    level_counts,
    number_of,
    price_state,
)
from duetune.market.forecast.regimes import SPELLS, believe, first_belief, regime_chain
from duetune.market.forecast.simple import past_before
from duetune.testing import market_of, random_market


def state_of(chain, available, spot_price):
    return number_of(chain, available) * chain.by_price.shape[0] + price_state(chain, spot_price)


def seen(available, spot_price=0.4) -> Seen:
    counts = np.array(available, dtype=np.int64)
    return Seen(np.array(np.broadcast_to(spot_price, counts.shape), dtype=np.float64), counts)


def drawn(random, slots, most) -> Seen:
    return Seen(random.uniform(0.1, 1.2, slots), random.integers(0, most + 1, slots))


def are_probabilities(rows) -> bool:
    return bool((rows >= 0).all() and np.allclose(rows.sum(axis=-1), 1.0))


# --- The learned chain


@pytest.mark.parametrize("max_gpus", [1, 2, 8, 16, 17, 40, 1024])
@pytest.mark.parametrize("slots", [1, 2, 300])
def test_rows_are_probabilities_whatever_was_seen(max_gpus, slots):
    chain = learned_chain(drawn(np.random.default_rng(slots), slots, max_gpus + 2), max_gpus)
    states = chain.available.size
    assert chain.transition.shape == (states, states)
    assert chain.spot_price.shape == (states,)
    assert are_probabilities(chain.transition)
    assert (chain.transition > 0).all(), "nothing is excluded that was not seen yet"


@pytest.mark.parametrize("max_gpus", [1, 5, 16, 17, 60])
@pytest.mark.parametrize("spot_price", [0.4, [0.2, 0.9, 0.5, 0.31] * 20], ids=["constant", "moves"])
def test_the_slot_of_a_state_is_in_that_state(max_gpus, spot_price):
    chain = learned_chain(seen([0, 1, 2, 3] * 20, spot_price), max_gpus)
    states = range(chain.available.size)
    found = [
        state_of(chain, int(chain.available[state]), float(chain.spot_price[state]))
        for state in states
    ]
    assert found == list(states)


def test_up_to_16_gpus_every_count_has_a_level_and_more_are_binned():
    assert level_counts(16).tolist() == list(range(17))
    for max_gpus in (17, 40, 1024):
        levels = level_counts(max_gpus)
        assert levels.size == LEVELS
        assert (levels[0], levels[-1]) == (0, max_gpus)


def test_a_count_between_two_levels_counts_as_the_lower_and_one_above_the_job_as_all():
    chain = learned_chain(seen([7] * 50), 64)
    assert chain.available[state_of(chain, 7, 0.4)] == 4
    assert chain.available[state_of(chain, 8, 0.4)] == 8
    assert chain.available[state_of(chain, 63, 0.4)] == 60
    assert chain.available[state_of(chain, 500, 0.4)] == 64


def test_a_price_that_hardly_moves_is_one_price_that_of_now():
    for prices in ([0.400, 0.405, 0.41], [0.0, 0.0, 0.0]):
        chain = learned_chain(seen([1, 2, 3], prices), 4)
        assert chain.available.tolist() == [0, 1, 2, 3, 4]
        assert chain.spot_price == pytest.approx(np.full(5, prices[-1]), rel=0.02)


def test_a_price_that_moves_has_a_few_levels_within_what_was_seen():
    prices = np.random.default_rng(1).uniform(0.2, 1.4, 500)
    levels = np.unique(learned_chain(seen([4] * 500, prices), 4).spot_price)
    assert levels.size == PRICES
    assert prices.min() <= levels[0] <= levels[-1] <= prices.max()
    assert np.unique(learned_chain(seen([4, 4], [0.2, 0.6]), 4).spot_price).tolist() == [0.2, 0.6]


def test_what_was_seen_often_becomes_likely():
    chain = learned_chain(seen([0, 0, 4] * 100), 4)
    none, all_of_them = state_of(chain, 0, 0.4), state_of(chain, 4, 0.4)
    assert chain.transition[all_of_them, none] > 0.9
    assert chain.transition[none, none] == pytest.approx(0.5, abs=0.05)
    assert chain.transition[none, all_of_them] == pytest.approx(0.5, abs=0.05)


def test_a_market_that_never_moved_is_expected_to_stay():
    chain = learned_chain(seen([3] * 336), 4)
    here = state_of(chain, 3, 0.4)
    assert chain.transition[here, here] > 0.99
    first = learned_chain(seen([3]), 4)
    assert 0.5 < first.transition[here, here] < 0.9, "after one slot nobody can be that sure"


def test_an_unseen_count_is_expected_to_go_to_its_neighbours_rather_than_far():
    chain = learned_chain(seen([8, 7] * 50), 8)
    row = chain.transition[state_of(chain, 3, 0.4)]
    two, one, none = (row[state_of(chain, count, 0.4)] for count in (2, 1, 0))
    assert two > one > none > 0


def test_recent_slots_count_more_than_old_ones():
    calm, restless = [4] * 500, [0, 4] * 250
    here = 4
    now_restless = learned_chain(seen(calm + restless), 4).transition[here, here]
    now_calm = learned_chain(seen(restless + calm), 4).transition[here, here]
    assert now_calm > now_restless + 0.1


def test_count_and_price_are_learned_apart():
    """Prices alternate; counts do not move: a price says nothing about a count."""
    chain = learned_chain(seen([2] * 200, [0.2, 0.8] * 100), 4)
    cheap, dear = state_of(chain, 2, 0.2), state_of(chain, 2, 0.8)
    assert chain.transition[cheap, dear] > 0.8
    assert chain.transition[dear, cheap] > 0.8


# --- What was seen


def test_the_past_is_the_week_before_the_job():
    trace = random_market(1, 400)
    past = past_before(trace, 350)
    assert past.available == tuple(trace.available[0, 350 - 336 : 350].tolist())
    assert past.spot_price == tuple(trace.spot_price[0, 350 - 336 : 350].tolist())
    assert past_before(trace, 2).counts.tolist() == trace.available[0, :2].tolist()
    assert past_before(market_of([0.3], [1]), 0).available == ()


# --- Regimes


def test_regimes_are_a_chain_of_spot_or_none():
    chain = regime_chain()
    assert are_probabilities(chain.transition)
    assert chain.available.tolist() == [0, 1] * len(SPELLS) ** 2


def test_the_first_belief_is_a_probability_and_takes_no_side():
    belief = first_belief()
    assert are_probabilities(belief)
    assert belief[1::2].sum() == pytest.approx(0.5)


def believed(there) -> np.ndarray:
    return believe(first_belief(), regime_chain().transition, np.array(there, dtype=np.int64))


@pytest.mark.parametrize("there", [[0], [1], [0, 1] * 30, [1] * 5000, [0] * 5000])
def test_a_belief_sums_to_one_and_agrees_with_what_is_seen_now(there):
    belief = believed(there)
    assert are_probabilities(belief)
    assert belief[1 - there[-1] :: 2].sum() == 0
    assert (belief[there[-1] :: 2] > 0).all(), "no regime is ever excluded"


def mean_spells(belief) -> tuple[float, float]:
    """Mean length of a spell with and without spot, as believed."""
    weights = belief.reshape(-1, 2).sum(axis=1)
    lengths = np.array([(up, down) for up in SPELLS for down in SPELLS])
    with_spot, without = weights @ lengths
    return float(with_spot), float(without)


def test_long_spells_move_the_belief_to_regimes_of_long_spells():
    long_with, _ = mean_spells(believed([1] * 60))
    _, long_without = mean_spells(believed([0] * 60))
    short_with, short_without = mean_spells(believed([1, 0] * 30))
    assert long_with > 2 * mean_spells(first_belief())[0] > short_with
    assert long_without > 2 * mean_spells(first_belief())[1] > short_without
    uneven_with, uneven_without = mean_spells(believed(([1] * 30 + [0]) * 5))
    assert uneven_with > 2 * uneven_without


def test_spot_is_expected_to_stay_longer_where_it_stayed_long():
    transition = regime_chain().transition
    stays = [
        float((believed(there) @ transition)[1::2].sum()) for there in ([1, 0] * 20 + [1], [1] * 41)
    ]
    assert stays[0] < 0.7
    assert stays[1] > 0.95


def test_what_happened_long_ago_is_forgotten():
    after_calm, after_storm = believed([1] * 400 + [0, 1] * 200), believed([0, 1] * 400)
    assert after_calm == pytest.approx(after_storm, abs=1e-4)
    assert believed([1] * 400) != pytest.approx(after_storm, abs=0.1)


def test_slot_by_slot_the_belief_is_the_same_as_at_once():
    transition = regime_chain().transition
    there = np.random.default_rng(2).integers(0, 2, 50)
    belief = believe(first_belief(), transition, there[:1])
    for slot in there[1:]:
        belief = believe(belief @ transition, transition, np.array([slot]))
    assert belief == pytest.approx(believed(there))

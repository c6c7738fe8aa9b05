"""Microbatches and shares of members: every row once, within the budget, the same everywhere."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duetune.training.pace import MemberPace
from duetune.training.packed_rows import laid_end_to_end, microbatches, shares
from duetune.training.tokens import TokenizedRows

lengths_of_rows = st.lists(st.integers(1, 50), min_size=1, max_size=40).map(np.array)


@given(lengths=lengths_of_rows, budget=st.integers(1, 120), at_least=st.integers(1, 8))
def test_every_row_is_in_one_microbatch_within_the_budget(lengths, budget, at_least):
    found = microbatches(lengths, budget, at_least)
    assert sorted(np.concatenate(found)) == list(range(len(lengths)))
    assert all(len(rows) == 1 or lengths[rows].sum() <= budget for rows in found)
    assert len(found) >= min(at_least, len(lengths))
    again = microbatches(lengths.copy(), budget, at_least)
    assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))


@given(lengths=lengths_of_rows, rows=st.integers(1, 8))
def test_the_usual_budget_never_needs_more_microbatches_than_padding(lengths, rows):
    assert len(microbatches(lengths, rows * 50)) <= -(-len(lengths) // rows)


@given(lengths=lengths_of_rows, budget=st.integers(50, 200))
def test_microbatches_are_nearly_as_few_as_can_be(lengths, budget):
    least = -(-int(lengths.sum()) // budget)
    assert len(microbatches(lengths, budget)) <= 11 / 9 * max(least, 1) * 2 + 1


@given(
    lengths=lengths_of_rows,
    paces=st.lists(st.sampled_from([0.0, 100.0, 250.0, 1000.0]), min_size=1, max_size=6),
)
def test_members_share_a_step_without_gap_or_overlap(lengths, paces):
    found = shares(lengths, paces)
    assert len(found) == len(paces)
    assert sorted(place for share in found for place in share) == list(range(len(lengths)))
    known = [pace for pace in paces if pace] or [1.0]
    speeds = [pace or sum(known) / len(known) for pace in paces]
    ends = [lengths[share].sum() / speed for share, speed in zip(found, speeds, strict=True)]
    # Nobody ends later than perfect sharing by more than one row on the slowest member.
    assert max(ends) <= lengths.sum() / sum(speeds) + lengths.max() / min(speeds) + 1e-9


def test_a_member_twice_as_fast_gets_twice_the_tokens():
    lengths = np.random.default_rng(3).integers(50, 100, 300)
    slow, fast = (lengths[share].sum() for share in shares(lengths, [500.0, 1000.0]))
    assert 1.98 < fast / slow < 2.02
    # One that is not known yet counts as the others do.
    one, two = (lengths[share].sum() for share in shares(lengths, [0.0, 1000.0]))
    assert abs(one - two) <= 100


def test_a_pace_is_told_when_it_is_known_and_changes_slowly():
    pace, random = MemberPace(), np.random.default_rng(1)
    for _ in range(4):
        pace.measured(1000, 1.0)
    assert pace.told == 0
    told = set()
    for _ in range(200):
        pace.measured(1000, random.uniform(0.9, 1.1))
        told.add(pace.told)
    assert len(told) == 1
    assert abs(told.pop() / 1000 - 1) < 0.05
    for _ in range(20):
        pace.measured(1000, 2.0)
    assert abs(pace.told / 500 - 1) < 0.05
    pace.measured(0, 1.0)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_rows_are_laid_end_to_end_without_a_prediction_across_borders(lengths, seed):
    random = np.random.default_rng(seed)
    begins = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.arange(begins[-1], dtype=np.int32)
    data = TokenizedRows(ids, random.random(len(ids)) < 0.5, begins)
    before = data.counts.copy()
    order = random.permutation(len(lengths))
    packed = laid_end_to_end(data, order)
    np.testing.assert_array_equal(data.counts, before)
    assert packed.lengths.tolist() == [lengths[row] for row in order]
    assert len(packed.targets) == data.targets(order)
    # Tokens were numbered, so a target follows its predicting token in the same row.
    np.testing.assert_array_equal(packed.ids[packed.predicting] + 1, packed.targets)
    assert not set(packed.targets) & set(begins)
    starts = np.flatnonzero(packed.positions == 0)
    np.testing.assert_array_equal(np.sort(packed.ids[starts]), begins[:-1])

"""Who does what in a round: a pure function, so every case can be drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from duetune.training.membership import Member, arrange


def member(name, **fields):
    return Member(id=name, address=f"tcp://{name}", **({"step": 0} | fields))


def all_of(members):
    return [arrange(members, each.id) for each in members]


def after(arrangements):
    """The members as they come back when the round went well."""
    return [
        replace(
            arrangement.members[arrangement.rank],
            step=arrangement.step + 1,
            group=arrangement.group,
            formations=arrangement.members[arrangement.rank].formations + arrangement.connect,
            fresh=False,
        )
        for arrangement in arrangements
    ]


members = st.lists(
    st.builds(
        Member,
        id=st.sampled_from("abcdefgh"),
        address=st.just("tcp://x"),
        step=st.integers(0, 3),
        formations=st.integers(0, 3),
        group=st.sampled_from(["", "old.1", "other.2"]),
        fresh=st.booleans(),
        restored=st.sampled_from(["", "checkpoint 1", "checkpoint 2"]),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda each: each.id,
).filter(lambda members: any(each.believed for each in members))


@given(members=members, order=st.randoms())
def test_all_members_come_to_the_same_plan(members, order):
    plans = all_of(members)
    shuffled = list(members)
    order.shuffle(shuffled)
    assert [arrange(shuffled, each.id) for each in members] == plans
    assert sorted(plan.rank for plan in plans) == list(range(len(members)))
    assert len({(plan.group, plan.step, plan.connect) for plan in plans}) == 1
    assert sum(plan.leads for plan in plans) == 1


@given(members=members)
def test_whoever_is_behind_takes_over_from_one_who_is_not(members):
    plans = all_of(members)
    for each, plan in zip(members, plans, strict=True):
        if each.step != plan.step or not each.believed:
            assert plan.source is not None
        if plan.source is not None:
            assert plan.source.step == plan.step
            assert plan.source.id != each.id
            assert plan.source.believed
            # A source keeps its own state in the same round.
            assert arrange(members, plan.source.id).source is None


@given(members=members)
def test_of_members_at_one_step_at_most_one_unproven_state_counts(members):
    """Two fresh ones at the same step might differ, unless both have loaded one checkpoint."""
    plans = all_of(members)
    keeping = [each for each, plan in zip(members, plans, strict=True) if plan.source is None]
    assert keeping
    assert len({each.fresh for each in keeping}) == 1
    if keeping[0].fresh and len(keeping) > 1:
        assert len({each.restored for each in keeping}) == 1
        assert keeping[0].restored


def test_a_member_that_only_says_it_is_ahead_is_given_the_state_of_the_group():
    for settled in (3, 0):
        group = replace(member("b", step=settled), fresh=False)
        plans = all_of([group, member("a", step=9_999)])
        assert [plan.step for plan in plans] == [settled, settled]
        assert plans[0].source is None
        assert plans[1].source == group


def test_a_checkpoint_is_believed_over_a_member_that_was_asleep():
    asleep = replace(member("a", step=10), fresh=False)
    new = member("b", step=100, restored="step-00000100.epoch-000004")
    plans = all_of([asleep, new])
    assert [plan.step for plan in plans] == [100, 100]
    assert plans[0].source == new
    assert plans[1].source is None


def test_without_a_state_that_can_be_believed_there_is_no_group():
    with pytest.raises(LookupError, match="checkpoint that exists"):
        all_of([member("a", step=3), member("b", step=4)])


def test_nothing_is_connected_anew_while_nothing_changes():
    first = all_of([member("a"), member("b")])
    assert all(plan.connect for plan in first)
    second = all_of(after(first))
    assert not any(plan.connect for plan in second)
    assert second[0].group == first[0].group


def test_a_change_of_members_connects_anew_under_a_name_never_used():
    both = after(all_of([member("a"), member("b")]))
    three = all_of([*both, member("c")])
    assert all(plan.connect for plan in three)
    # c goes again without a trace: a and b have been a group before, but not under this name.
    again = all_of([each for each in after(three) if each.id != "c"])
    assert all(plan.connect for plan in again)
    assert len({both[0].group, three[0].group, again[0].group}) == 3


def test_one_broken_member_makes_all_connect_anew():
    one, other = after(all_of([member("a"), member("b")]))
    broken = replace(one, group="", formations=one.formations + 1)
    plans = all_of([broken, other])
    assert all(plan.connect for plan in plans)
    assert plans[0].group != one.group


def test_a_member_that_joins_takes_over_the_state_in_use_even_at_the_same_step():
    plans = all_of([replace(member("b", step=5), fresh=False), member("a", step=5)])
    assert plans[0].source is None
    assert plans[1].source is not None
    assert plans[1].source.id == "b"


def test_accelerators_are_connected_directly_only_if_each_member_has_its_own():
    for devices, direct in (("xy", True), ("xx", False), (["x", ""], False), (["", ""], False)):
        names = zip("ab", devices, strict=True)
        (plan, _) = all_of([member(name, device=device) for name, device in names])
        assert plan.accelerators_differ is direct


def test_every_member_sees_the_same_paces_in_the_order_of_ranks():
    told = [member("b", pace=200.0), member("a", pace=100.0), member("c")]
    assert {arrangement.paces for arrangement in all_of(told)} == {(100.0, 200.0, 0.0)}
    # A new pace is no reason to connect again.
    formed = after(all_of(told))
    again = [replace(each, pace=each.pace + 50) for each in formed]
    assert not any(arrangement.connect for arrangement in all_of(again))

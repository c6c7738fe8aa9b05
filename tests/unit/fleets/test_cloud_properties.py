"""Whatever is asked of the cloud and whenever: nobody is overcharged, and time has no grain."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from duetune.core.fleet import Launch, Limit, NodeKind, NodeState, Release, Task
from duetune.fleets.embedded import FleetSettings
from duetune.fleets.embedded.cloud import Cloud
from duetune.fleets.embedded.replay import MarketReplay
from duetune.testing import random_market

BEGAN = 1_700_000_000.0
TASK = Task(folder="/nonexistent", command=("true",))
JOBS = ("one", "two")
names = st.sampled_from([f"n{number}" for number in range(8)])
jobs = st.sampled_from(JOBS)
launches = st.builds(
    Launch,
    names,
    jobs,
    st.sampled_from(NodeKind),
    st.just(1),
    st.just(TASK),
    st.none() | st.floats(0.0, 2.5),
)
limits = st.builds(Limit, jobs, st.none() | st.floats(0.0, 5.0))
commands = launches | launches | st.builds(Release, names, jobs) | limits
# After so many market seconds, this command.
stories = st.lists(st.tuples(st.floats(0.0, 4000.0), commands), min_size=1, max_size=25)
rules = st.builds(
    FleetSettings,
    grant_delay_s=st.sampled_from([0.0, 30.0, 900.0]),
    notice_s=st.sampled_from([0.0, 120.0, 4000.0]),
    silent_share=st.sampled_from([0.0, 0.5]),
    on_demand_capacity=st.integers(0, 4),
    wrap=st.booleans(),
)


def cloud_of(seed, rule):
    return Cloud(MarketReplay(random_market(seed, 12, most=4), began=BEGAN, wrap=rule.wrap), rule)


def bill(cloud, job):
    return sum(node.billed for node in cloud.report(job).nodes)


def told(cloud):
    return [node for job in JOBS for node in cloud.report(job).nodes]


@given(st.integers(0, 50), rules, stories)
def test_no_limit_is_exceeded_no_spot_oversold_and_no_bill_falls(seed, rule, story):
    cloud = cloud_of(seed, rule)
    now, billed, ended, allowed = BEGAN, defaultdict(float), {}, {}
    for pause, command in story:
        for _ in range(3):
            now += pause / 3
            cloud.advance(now)
            for job, dollars in allowed.items():
                assert bill(cloud, job) <= dollars
            held = [node for node in told(cloud) if node.state.alive]
            spot = [node for node in held if node.kind is NodeKind.SPOT]
            assert len(spot) <= cloud.replay.report(now).slot.available
            assert len(held) - len(spot) <= rule.on_demand_capacity
            for node in told(cloud):
                key = node.job, node.id
                assert node.billed >= billed[key]
                billed[key] = node.billed
                assert ended.setdefault(key, node) == node or ended[key].state.alive
                ended[key] = node
                if node.state is NodeState.REFUSED:
                    assert node.billed == 0
                if node.notice_at is not None and node.ended_at is not None:
                    assert node.ended_at <= node.notice_at
        cloud.apply(command, now)
        if isinstance(command, Limit) and command.dollars is not None:
            allowed[command.job] = max(command.dollars, bill(cloud, command.job))
        elif isinstance(command, Limit):
            allowed.pop(command.job, None)


@given(st.integers(0, 50), rules, stories, st.integers(2, 9))
def test_looking_more_often_changes_nothing(seed, rule, story, looks):
    rare, often = cloud_of(seed, rule), cloud_of(seed, rule)
    now = BEGAN
    for pause, command in story:
        for look in range(1, looks):
            often.advance(now + pause * look / looks)
        now += pause
        rare.apply(command, now)
        often.apply(command, now)
    for ours, theirs in zip(told(rare), told(often), strict=True):
        assert (ours.id, ours.state, ours.reason) == (theirs.id, theirs.state, theirs.reason)
        for field in ("started_at", "ended_at", "notice_at", "billed"):
            mine, other = getattr(ours, field), getattr(theirs, field)
            assert mine == other or abs(mine - other) < 0.05, (ours, theirs)

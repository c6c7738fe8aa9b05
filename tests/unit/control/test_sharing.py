"""Jobs on a finite fleet: who waits, who makes room, who grows again."""

from __future__ import annotations

import pytest

from duetune.control.crash_points import CRASH_POINTS, CrashPlan
from duetune.control.queue import Contender, Queue, shares
from duetune.core.events import Decided, Observed, Pause, Resume
from duetune.core.job import linear_throughput
from duetune.core.planning import Plan
from duetune.engine.engine import Engine
from duetune.errors import Bug
from duetune.fleets.embedded.cloud_settings import FleetSettings
from duetune.jobs.explain import explained
from duetune.registry.planners import planner_named
from duetune.registry.policies import policy_named
from duetune.simulate.journal_replay import redecided
from duetune.testing import constant_market
from support.harness import SLOT_S, Room, Status, market_of

PLENTY = constant_market(available=16)
TWO = linear_throughput(2, slope=3.0)


class InTurn:
    """The higher priority first, each as much as it likes."""

    name = "in_turn"

    def plan(self, views, stock):  # noqa: ARG002 - what nobody was given is given in turn
        return Plan()


def room_of(gpus=None, *, quotas=None, trace=PLENTY, **options):
    return Room(trace, queue=Queue(InTurn(), gpus, quotas or {}), **options)


def eager(room, name, **options):
    """A job that takes all the spot it can."""
    terms = {"policy": "maximal_spot", "deadline": 30, **options}
    room.submit(name, **terms)


def alive(room, *names):
    return sum(len(room.fleet.alive(name)) for name in names or room.journal.streams())


def watched(room, most, slots=60):
    """To the end; never more than ``most`` nodes."""

    def each():
        assert alive(room) <= most

    room.run(slots=slots, each=each)


def test_a_job_of_higher_priority_takes_the_gpus_and_gives_them_back():
    room = room_of(4)
    eager(room, "first", steps=100)
    room.at(2.3, lambda: eager(room, "urgent", steps=12, priority=5))
    seen = []

    def each():
        assert alive(room) <= 4
        if "urgent" in room.journal.streams():
            seen.append((alive(room, "first"), alive(room, "urgent")))

    room.run(slots=60, each=each)
    assert room.status("first") is room.status("urgent") is Status.SUCCEEDED
    assert (0, 4) in seen, "the first one is preempted, within the slot"
    assert seen.index((0, 4)) < 5
    assert room.ended("urgent").at < room.began + 4 * SLOT_S
    assert seen[-1][0] <= 4
    waits = [each for each in room.decisions("first") if each.reason.startswith("waits: ")]
    assert waits
    assert "all jobs together may hold 4 GPUs, urgent has 4" in waits[0].reason
    after = [each for each in room.decisions("first") if each.at > waits[-1].at]
    assert after[0].allocation.total == 4
    assert after[0].at <= room.ended("urgent").at + 0.2 * SLOT_S, "not only in the next slot"
    for name in ("first", "urgent"):
        again = redecided(room.journal.read(name), policy_named)
        assert again
        assert all(each.same for each in again)
    explanation = explained("first", room.journal.read("first"), policy_named)
    limited = [each for each in explanation.slots if each.share == 0]
    assert limited[0].wish == 4
    assert "urgent has 4" in limited[0].share_reason
    slot = limited[0].slot
    (*_, one) = explained("first", room.journal.read("first"), policy_named, slot=slot).slots
    assert one.others == ()


def test_jobs_that_all_fit_are_left_alone():
    together, alone = room_of(8), Room(PLENTY)
    for room in (together, alone):
        eager(room, "a")
        eager(room, "b")
        room.run()
    for name in ("a", "b"):
        assert all(each.share is None for each in together.events(name, Observed))
        assert together.decisions(name) == alone.decisions(name)


def test_spot_that_one_may_not_have_is_the_next_ones():
    """A job that its quota keeps waiting is the first to be asked, and has no spot."""
    trace = market_of([0.3] * 40, [0, 1] * 20)
    room = room_of(2, quotas={"vision": 1}, trace=trace)
    one = linear_throughput(1, slope=3.0)
    room.submit("holder", policy="on_demand", priority=20, project="vision", throughput=one)
    eager(room, "waiter", priority=10, project="vision", throughput=one)
    eager(room, "other", throughput=one)
    room.run(slots=8.5)
    assert not room.fleet.observe("waiter").nodes
    assert room.status("waiter") is Status.QUEUED, "it has never had a GPU"
    held = [each.allocation.spot for each in room.decisions("other")]
    assert held == [0, 1] * (len(held) // 2) + [0] * (len(held) % 2)
    assert len(held) >= 8
    assert not any("other jobs have" in each.reason for each in room.decisions("other"))


def test_a_limit_may_be_far_beyond_what_anybody_wishes():
    room = room_of(10**9, quotas={"x": 1})
    for name in "ab":
        eager(room, name, project="x", throughput=TWO)
    watched(room, 1)
    assert room.status("a") is room.status("b") is Status.SUCCEEDED


def test_a_limit_that_changes_acts_at_once_and_so_does_one_that_is_gone():
    room = room_of(1)
    for name in "abc":
        eager(room, name, steps=60, throughput=TWO)
    room.run(slots=1.3)
    assert alive(room) == 1
    for limit, most in ((4, 4), (None, 6)):
        room.queue = Queue(InTurn(), limit)
        room.run(slots=0.3)
        assert alive(room) == most
    room.run(slots=60)
    assert all(room.status(name) is Status.SUCCEEDED for name in "abc")
    assert room.events("c", Observed)[-1].wish is None, "nobody shares any more"


def test_a_project_holds_no_more_than_its_quota():
    room = room_of(8, quotas={"vision": 3})
    eager(room, "a", project="vision")
    eager(room, "b", project="vision")
    eager(room, "c", project="speech")
    most = {"vision": 0, "all": 0}

    def each():
        most["vision"] = max(most["vision"], alive(room, "a", "b"))
        most["all"] = max(most["all"], alive(room))

    room.run(each=each)
    assert most == {"vision": 3, "all": 7}
    reasons = [each.share_reason for name in "ab" for each in room.events(name, Observed)]
    assert any("project vision may hold 3 GPUs" in reason for reason in reasons)
    assert all(room.status(name) is Status.SUCCEEDED for name in "abc")


def test_a_quota_counts_without_a_limit_for_all():
    room = room_of(None, quotas={"vision": 2})
    eager(room, "a", project="vision")
    eager(room, "b", project="vision")
    watched(room, 2)
    assert all(room.status(name) is Status.SUCCEEDED for name in "ab")


def test_a_job_that_never_gets_gpus_fails_at_its_hard_deadline_and_not_as_stalled():
    room = room_of(4)
    eager(room, "long", steps=400, deadline=40, priority=1)
    room.at(0.1, lambda: eager(room, "poor", steps=20, deadline=8))
    room.run(slots=20)
    assert room.status("long") is Status.RUNNING
    ended = room.ended("poor")
    assert ended.status is Status.FAILED
    assert ended.reason.startswith("the hard deadline has passed")
    assert room.state("poor").slot == 13
    assert room.fleet.observe("poor").nodes == ()


def test_a_job_is_queued_until_it_has_had_gpus():
    room = room_of(4)
    eager(room, "a", priority=1)
    eager(room, "b")
    room.run(slots=1.5)
    assert (room.status("a"), room.status("b")) == (Status.RUNNING, Status.QUEUED)
    room.ask(Pause(), "a")
    room.run(slots=1)
    assert (alive(room, "a"), room.status("b")) == (0, Status.RUNNING)
    room.ask(Resume(), "a")
    room.run(slots=1)
    assert (alive(room, "a"), alive(room, "b")) == (4, 0)
    assert room.status("b") is Status.RUNNING


def test_spot_that_a_lower_priority_holds_is_there_for_the_higher():
    room = room_of(4, trace=constant_market(available=4))
    eager(room, "first", steps=100)
    room.at(1.2, lambda: eager(room, "urgent", steps=20, priority=5))
    watched(room, 4)
    assert room.status("first") is room.status("urgent") is Status.SUCCEEDED
    kinds = {node.kind for node in room.fleet.observe("urgent").nodes}
    assert kinds == {"spot"}
    assert {node.state.value for node in room.fleet.observe("urgent").nodes} == {"released"}


def test_what_does_not_change_is_not_decided_again():
    room = room_of(3)
    eager(room, "a", steps=90)
    eager(room, "b", steps=90)
    room.run(slots=8)
    for name in "ab":
        slots = [each.slot for each in room.decisions(name)]
        assert len(slots) == len(set(slots)), "one decision in a slot"


def test_a_job_grows_at_the_end_of_the_slot_only_with_the_next():
    room = room_of(4)
    eager(room, "a", steps=100)
    eager(room, "b", steps=12, priority=1)
    room.at(0.9, lambda: room.ask(Pause(), "b"))
    room.run(slots=1.5)
    first, second = room.decisions("a")[:2]
    assert (first.slot, first.allocation.total) == (1, 0)
    assert (second.slot, second.allocation.total) == (2, 4)


def test_a_job_that_needs_many_is_not_given_a_few():
    room = room_of(4)
    eager(room, "big", steps=60, min_gpus=3)
    room.at(0.1, lambda: eager(room, "small", steps=30, throughput=linear_throughput(2, slope=3.0)))
    held = set()
    room.run(slots=60, each=lambda: held.add(len(room.fleet.running("big"))))
    assert held <= {0, 3, 4}
    assert room.status("big") is room.status("small") is Status.SUCCEEDED


def test_a_smaller_queue_after_a_restart_is_kept_to():
    room = room_of(8)
    eager(room, "a", steps=100)
    eager(room, "b", steps=100)
    room.run(slots=1.5)
    assert alive(room) == 8
    room.queue = Queue(InTurn(), 3)
    room.restart()
    room.run(slots=0.3)
    assert alive(room) <= 3
    room.run(slots=60)
    assert all(room.status(name) is Status.SUCCEEDED for name in "ab")


def test_a_slow_fleet_has_time_to_give_nodes_back():
    room = room_of(4, settings=FleetSettings(grant_delay_s=200.0, notice_s=0.0, preload=""))
    eager(room, "first", steps=100)
    room.at(1.2, lambda: eager(room, "urgent", steps=20, priority=5))
    watched(room, 4)
    assert room.status("first") is room.status("urgent") is Status.SUCCEEDED


@pytest.mark.parametrize(
    "point", [point for point in CRASH_POINTS if not point.startswith(("submission", "learning"))]
)
def test_a_controller_that_dies_while_one_makes_room_for_the_other(point):
    for passage in (1, 4):
        room = room_of(4, poll_s=300.0)
        eager(room, "first", steps=60)
        room.at(1.2, lambda room=room: eager(room, "urgent", steps=20, priority=5))
        room.run(slots=1.1)
        room.survive(CrashPlan(point, passage), CrashPlan(point, passage))
        assert room.status("first") is room.status("urgent") is Status.SUCCEEDED
        changes = sorted(
            change
            for name in ("first", "urgent")
            for node in room.fleet.observe(name).nodes
            for change in ((node.requested_at, 1), (node.ended_at, -1))
        )
        held = 0
        for _, change in changes:
            held += change
            assert held <= 4


class Broken:
    name = "broken"

    def __init__(self, answer):
        self.answer = answer

    def plan(self, views, stock):  # noqa: ARG002
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        ZeroDivisionError(),
        Bug("no plan"),
        Plan({"a": 3, "b": 3}),
        Plan({"nobody": 0}),
        Plan({"a": 99}),
    ],
)
def test_a_planner_that_fails_stops_nobody(answer, caplog):
    room = Room(PLENTY, queue=Queue(Broken(answer), 4, {"x": 3}))
    eager(room, "a")
    eager(room, "b", priority=3, project="x")
    watched(room, 4)
    assert all(room.status(name) is Status.SUCCEEDED for name in "ab")
    assert "planner broken failed" in caplog.text
    assert room.decisions("b")[0].allocation.total == 3
    assert room.decisions("a")[0].allocation.total == 1


@pytest.mark.parametrize("planner", ["fifo", "fifo:backfill", "srt", "edf", "sia", "tutti"])
def test_every_planner_shares_what_there_is(planner):
    room = Room(PLENTY)
    jobs = []
    for number in range(5):
        name = f"job{number}"
        room.submit(name, priority=number % 2, project="x" if number < 2 else "")
        engine = Engine(name, policy_named)
        for recorded in room.journal.read(name):
            engine.handle(recorded.event)
        jobs.append(Contender(engine.state, 4))
    queue = Queue(planner_named(planner), 6, {"x": 3})
    given = shares(queue, jobs, room.clock.now())
    assert set(given) == {job.state.stream for job in jobs}
    total = sum(share.gpus for share in given.values())
    assert 3 <= total <= 6
    assert given["job0"].gpus + given["job1"].gpus <= 3
    assert all(share.reason for share in given.values())
    assert shares(queue, jobs[:1], room.clock.now()) != {}, "the quota"
    assert shares(queue, jobs[2:3], room.clock.now()) == {}


def test_planners_are_shown_the_most_gpus_a_job_has_run_with():
    class Noting(InTurn):
        def plan(self, views, stock):
            self.view = views[0]
            return super().plan(views, stock)

    room = Room(PLENTY)
    room.submit("a", policy="maximal_spot", deadline=30, steps=200)
    room.run(slots=4)
    state, planner = room.state("a"), Noting()
    shares(Queue(planner, 1), [Contender(state, 8)], room.clock.now())
    assert planner.view.most_gpus == max(state.pace) > 0
    running = room.clock.now() - min(node.started_at for node in state.nodes.values())
    assert 0 < planner.view.attained_gpu_s <= running * len(state.nodes)
    assert not planner.view.rigid


def test_nothing_is_left_where_others_have_it_all():
    room = Room(PLENTY)
    room.submit()
    job = Contender(room.state(), 2)
    given = shares(Queue(InTurn(), 4), [job], room.clock.now(), taken=4)
    assert given["job"].gpus == 0


def test_the_memo_of_a_smaller_share_is_forgotten():
    """AHAP's plans for four GPUs must not be followed with two."""
    room = room_of(4)
    eager(room, "ahap", policy="ahap:5:3:0.9", steps=150, deadline=20)
    room.at(2.1, lambda: eager(room, "urgent", steps=12, priority=5, throughput=(0.0, 3.0, 6.0)))
    room.run(slots=60)
    assert not [each for each in room.decisions("ahap") if "failed" in each.reason]
    cut = [each for each in room.decisions("ahap") if "at most 2 GPUs: " in each.reason]
    assert cut
    assert all(each.allocation.total <= 2 for each in cut)
    assert isinstance(cut[0], Decided)
    assert all(each.same for each in redecided(room.journal.read("ahap"), policy_named))


def test_a_job_is_told_that_others_have_the_spot():
    room = room_of(8, trace=constant_market(available=4))
    eager(room, "first", steps=100)
    eager(room, "second", steps=20)
    room.run(slots=2)
    reasons = [each.reason for each in room.decisions("second")]
    assert reasons[-1].endswith("; other jobs have 4 of 4 spot GPUs")
    assert not any("other jobs" in each.reason for each in room.decisions("first"))


def test_a_job_that_waits_for_its_quota_takes_no_spot_from_others():
    room = room_of(quotas={"vision": 2}, trace=constant_market(available=4))
    for name in ("one", "two"):
        eager(room, name, steps=100, project="vision", priority=10, throughput=TWO)
    eager(room, "free", steps=100, throughput=TWO)
    room.run(slots=4)
    assert [alive(room, name) for name in ("one", "two", "free")] == [2, 0, 2]
    assert not any("other jobs" in each.reason for each in room.decisions("free")[1:])


def test_limits_count_the_gpus_of_members():
    """Two jobs with members of 2 GPUs and one of single GPUs share 5 GPUs."""
    room = room_of(5)
    eager(room, "pairs", steps=60, gpus=2)
    eager(room, "urgent", steps=12, gpus=2, throughput=TWO, priority=5)
    eager(room, "single", steps=12)
    held = []

    def each():
        gpus = {
            name: sum(node.gpus for node in room.state(name).nodes.values() if node.state.alive)
            for name in room.journal.streams()
        }
        assert sum(gpus.values()) <= 5
        held.append((gpus["pairs"], gpus["urgent"], gpus["single"]))

    room.run(slots=60, each=each)
    for name in room.journal.streams():
        assert room.status(name) is Status.SUCCEEDED
    assert (0, 4, 1) in held
    assert max(pairs for pairs, _, _ in held) == 4
    words = " ".join(one.reason for one in room.decisions("pairs"))
    assert "all jobs together may hold 5 GPUs, urgent has 4, single has 1" in words
    explanation = explained("pairs", room.journal.read("pairs"), policy_named)
    assert explanation.gpus_per_member == 2
    one = max(explanation.slots, key=lambda each: each.decided.total)
    assert (one.decided.total, one.gpus_per_member) == (4, 2)
    assert one.spot_price == pytest.approx(PLENTY.slot(0).spot_price * 3600 / SLOT_S)
    assert all(each.share in {None, 0, 2, 4} for each in explanation.slots)
    assert "at most 0 GPU" not in words


@pytest.mark.parametrize("name", ["fifo", "srt", "edf", "sia", "tutti"])
def test_every_planner_gives_whole_members(name):
    room = Room(PLENTY, queue=Queue(planner_named(name), 7, {}))
    eager(room, "pairs", steps=30, gpus=2)
    eager(room, "fours", steps=30, gpus=4, throughput=TWO)

    def each():
        alive_gpus = [len(room.fleet.alive("pairs")) * 2, len(room.fleet.alive("fours")) * 4]
        assert sum(alive_gpus) <= 7

    room.run(slots=90, each=each)
    assert room.status("pairs") is room.status("fours") is Status.SUCCEEDED

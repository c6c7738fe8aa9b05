from __future__ import annotations

import msgspec
import pytest

from duetune.core.decision import Allocation, Decision
from duetune.core.events import Ended, Status
from duetune.core.job import Job, Reconfiguration, linear_throughput
from duetune.core.ports import Policy
from duetune.errors import InvalidInput
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.ahap import Ahap
from duetune.policies.baselines import MaximalSpot
from duetune.registry.policies import policy_named
from duetune.simulate.cases import Case
from duetune.simulate.episode import Episode, simulate
from duetune.simulate.journal_replay import market_lived, redecided, state_of
from duetune.simulate.tournament import run_tournament
from duetune.store.codec import decode_event, encode_event
from duetune.testing import FixedPlan, Idle, constant_market, market_of, random_market

LAST, PERFECT = ForecastSource.parse("last"), ForecastSource.parse("perfect")


def job(**fields: object) -> Job:
    defaults = {"work": 6.0, "deadline": 4, "value": 20.0, "throughput": linear_throughput(4)}
    return Job(**{**defaults, **fields})


class Wish(msgspec.Struct, frozen=True):
    """Always the same wish, legal or not."""

    spot: int
    on_demand: int

    @property
    def name(self) -> str:
        return "wish"

    def decide(self, view):
        del view
        return Decision(Allocation(self.spot, self.on_demand), "because")


class Historian(msgspec.Struct, frozen=True):
    """Remembers every slot it saw, to show what a policy is given."""

    @property
    def name(self) -> str:
        return "historian"

    def decide(self, view):
        seen = (*view.memo, float(view.slot), view.progress, view.spent, float(view.held.total))
        return Decision(Allocation(1, 0), "one, to look", seen)


def test_a_worked_example():
    """2 spot, then 2 on demand (same total, no loss), then 1 too many lost: see the table."""
    trace = market_of([0.5, 0.5, 0.2, 0.2, 0.2, 0.2], [2, 0, 1, 4, 4, 4])
    outcome = simulate(job(), trace, FixedPlan(((2, 0), (0, 2), (1, 1), (1, 0))), LAST)
    table = [
        (entry.allocation.total, entry.efficiency, entry.work, entry.charge, entry.preempted)
        for entry in outcome.entries
    ]
    assert table == [
        (2, 0.9, 1.8, 1.0, 0),
        (2, 1.0, 2.0, 2.0, 2),
        (2, 1.0, 2.0, 1.2, 0),
        (1, 0.95, 0.95, 0.2, 0),
    ]
    assert outcome.progress == pytest.approx(6.75)
    assert (outcome.finished, outcome.on_time, outcome.value) == (4, True, 20.0)
    assert outcome.cost == pytest.approx(4.4)
    assert outcome.utility == pytest.approx(15.6)


def test_a_job_stops_when_it_is_done():
    outcome = simulate(job(), constant_market(9), FixedPlan(((4, 0),) * 9), LAST)
    assert (outcome.finished, len(outcome.entries)) == (2, 2)


def test_a_job_that_is_never_done_runs_to_its_hard_deadline_and_earns_nothing():
    outcome = simulate(job(), constant_market(9), FixedPlan(((1, 0),) * 3), LAST)
    assert (outcome.finished, outcome.on_time, outcome.value) == (None, False, 0.0)
    assert len(outcome.entries) == 6
    assert outcome.utility == -outcome.cost < 0


def test_a_late_job_earns_what_is_left_of_its_value():
    outcome = simulate(job(), constant_market(9), FixedPlan(((0, 0),) * 3 + ((4, 0),) * 2), LAST)
    assert (outcome.finished, outcome.on_time, outcome.value) == (5, False, 10.0)


def test_the_market_begins_where_the_job_does():
    trace = market_of([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], [4] * 8)
    outcome = simulate(job(), trace, Idle(), LAST, start=2)
    assert [entry.spot_price for entry in outcome.entries] == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


def test_a_policy_is_given_its_memory_progress_spending_and_holdings():
    outcome = simulate(job(work=2.5), constant_market(6, spot_price=0.5), Historian(), LAST)
    assert outcome.finished == 3

    class Last(msgspec.Struct, frozen=True):
        @property
        def name(self) -> str:
            return "last"

        def decide(self, view):
            if view.slot == 3:
                assert view.memo == (1.0, 0.0, 0.0, 0.0, 2.0, 0.9, 0.5, 1.0)
            return Historian().decide(view)

    assert simulate(job(work=2.5), constant_market(6, spot_price=0.5), Last(), LAST).finished == 3


@pytest.mark.parametrize(
    ("wish", "available"),
    [((3, 0), 2), ((0, 5), 9), ((-1, 2), 9), ((2, -1), 9), ((1, 0), 9), ((4, 4), 9)],
)
def test_a_decision_that_may_not_be_held_is_refused_by_name_and_slot(wish, available):
    with pytest.raises(InvalidInput) as caught:
        simulate(job(min_gpus=2), constant_market(9, available=available), Wish(*wish), LAST)
    assert str(caught.value).startswith(f"decision of wish in slot 1: {wish!r}")
    assert "0 or 2 to 4" in str(caught.value)


def test_the_budget_is_a_hard_cap_for_anybodys_policy():
    outcome = simulate(job(budget=5.0), constant_market(9), Wish(0, 4), LAST)
    assert [entry.allocation.on_demand for entry in outcome.entries] == [4, 1, 0, 0, 0, 0]
    assert outcome.cost == 5.0


def test_a_trace_that_is_too_short_is_refused_before_anything_runs():
    with pytest.raises(InvalidInput, match="has 5 slots, the job needs 6"):
        simulate(job(), constant_market(5), Idle(), LAST)
    with pytest.raises(InvalidInput, match="start"):
        simulate(job(), constant_market(9), Idle(), LAST, start=4)


def test_anything_that_decides_is_a_policy():
    assert isinstance(Wish(0, 0), Policy)


def test_finishing_takes_whole_slots_and_bills_them():
    tiny = job(work=0.1, reconfiguration=Reconfiguration(1.0, 1.0, 1.0))
    outcome = simulate(tiny, constant_market(9, spot_price=0.5), Wish(4, 0), LAST)
    assert (outcome.finished, outcome.cost) == (1, 2.0)


def test_a_window_longer_than_a_day_is_the_same_in_simulator_and_tournament():
    long = Job(work=60, deadline=40, value=100, throughput=linear_throughput(4))
    trace = random_market(0, 80, most=4)
    policy = Ahap(window=36, commitment=1, threshold=0.0, outlook=0.0, patience=0.0)
    stepped = simulate(long, trace, policy, PERFECT)
    played = run_tournament([policy], [Case(long, 0, 0)], [trace], PERFECT, workers=1)
    assert played.utility[0, 0] == pytest.approx(stepped.utility, abs=1e-9)


# --- One engine, two worlds


def stories():
    hurried = Job(work=30, deadline=12, value=60, throughput=linear_throughput(4), budget=25.0)
    hopeless = Job(work=400, deadline=6, value=9, throughput=linear_throughput(4))
    for task in (hurried, hopeless):
        for name in ("ahap", "ahanp", "maximal_spot", "uniform_progress", "rubato"):
            yield Episode(task, random_market(3, 80, most=4), policy_named(name), LAST)


def test_an_episode_is_a_journal_from_which_every_decision_comes_out_again():
    for episode in stories():
        outcome = episode.run()
        again = redecided(episode.story, lambda _, policy=episode.policy: policy)
        assert [each.again for each in again] == [each.allocation for each in outcome.entries]
        assert all(each.same for each in again)


def test_an_episode_leaves_the_engine_where_a_live_job_would_be():
    for episode in stories():
        outcome = episode.run()
        episode.engine.validate()
        ended = episode.story[-1].event
        assert isinstance(ended, Ended)
        assert (ended.cost, ended.value) == (outcome.cost, outcome.value)
        done = outcome.finished is not None
        assert episode.engine.state.status is (Status.SUCCEEDED if done else Status.FAILED)
        assert done or ended.reason.startswith("the hard deadline has passed")
        assert state_of(episode.story, stream="episode") == episode.engine.state


def test_an_episodes_journal_can_be_written_and_read():
    for episode in stories():
        episode.run()
        for each in episode.story:
            body = encode_event(each.event).body
            assert decode_event(body, schema=1, stream="job", position=1) == each.event


def test_the_market_of_an_episodes_journal_is_the_trace():
    trace = random_market(3, 80, most=4)
    episode = Episode(job(), trace, MaximalSpot(), LAST, start=20)
    slots = len(episode.run().entries)
    market = market_lived(episode.story)
    assert market.spot_price[0, :slots].tolist() == trace.spot_price[0, 20 : 20 + slots].tolist()
    assert market.available[0, :slots].tolist() == trace.available[0, 20 : 20 + slots].tolist()


def test_what_the_policy_is_shown_of_the_market_begins_a_week_before_the_job():
    trace = random_market(3, 500, most=4)
    shown = []

    class Looker(msgspec.Struct, frozen=True):
        @property
        def name(self) -> str:
            return "looker"

        def decide(self, view):
            shown.append(view.seen)
            return Decision(Allocation(), "looks")

    simulate(job(), trace, Looker(), LAST, start=400)
    for slot, seen in enumerate(shown, 1):
        assert seen.spot_price.tolist() == trace.spot_price[0, 64 : 400 + slot].tolist()
        assert seen.available.tolist() == trace.available[0, 64 : 400 + slot].tolist()


def test_a_policy_that_fails_is_not_replaced_in_a_simulation():
    class Broken(msgspec.Struct, frozen=True):
        @property
        def name(self) -> str:
            return "broken"

        def decide(self, view):
            raise ZeroDivisionError(view.slot)

    with pytest.raises(InvalidInput, match="policy broken in slot 1"):
        simulate(job(), constant_market(9), Broken(), LAST)

from __future__ import annotations

import pytest

from duetune.errors import InvalidInput
from duetune.interop.deadline_recovery import DeadlineRecovery, RecoveryRecord, RecoveryTerms
from duetune.policies.single_instance import Instance

HOUR = 3600.0
TERMS = {"deadline": "10h", "work": "6h", "restart": "10m"}


def plan_of(**changes):
    return DeadlineRecovery(RecoveryTerms.of({**TERMS, **changes}), RecoveryRecord(began_at=1000.0))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"deadline": "soon"}, "job_recovery.deadline"),
        ({"work": "0h"}, "job_recovery.work"),
        ({"restart": "-1m"}, "job_recovery.restart"),
        ({"spot_wait": ""}, "job_recovery.spot_wait"),
        ({"spot": "slurm/lab/spot"}, "job_recovery.on_demand"),
        ({"on_demand_usd_h": "-1"}, "job_recovery.on_demand_usd_h"),
        ({"dedline": "10h"}, "job_recovery.field"),
    ],
)
def test_wrong_terms_are_refused_by_name(changes, field):
    with pytest.raises(InvalidInput) as raised:
        RecoveryTerms.of({**TERMS, **changes})
    assert raised.value.field == field


def test_a_deadline_that_no_machine_could_meet_is_refused():
    with pytest.raises(InvalidInput, match="at least the work"):
        plan_of(deadline="5h")


def test_spot_is_tried_while_there_is_time_and_on_demand_is_taken_when_there_is_none():
    plan = plan_of()
    seen = []
    for tick in range(60):
        now = 1000.0 + 600 * tick
        seen.append(plan.choose(now, spot=False))
    assert plan_of().wants_spot(1000.0)
    assert seen[0] is Instance.WAIT
    assert seen[-1] is Instance.ON_DEMAND
    # The work and one start must fit behind the last moment at which it may still wait.
    waited_s = 600 * max(tick for tick, choice in enumerate(seen) if choice is Instance.WAIT)
    assert waited_s + 600 + 6 * HOUR + 600 <= 10 * HOUR
    assert not plan.wants_spot(1000.0 + 9.9 * HOUR)


def test_asking_for_spot_teaches_nothing():
    plan = plan_of()
    before = plan._step._belief.copy()
    plan.wants_spot(1000.0)
    assert (plan._step._belief == before).all()
    assert plan._step._seen_at is None


def test_work_is_counted_without_what_a_restart_costs():
    plan = plan_of()
    plan.started(Instance.SPOT, 1000.0)
    assert plan.work_left_s(1000.0 + 300) == 6 * HOUR
    assert plan.work_left_s(1000.0 + HOUR) == 6 * HOUR - (HOUR - 600)
    plan.lost(1000.0 + HOUR)
    assert plan.work_left_s(1000.0 + 5 * HOUR) == 6 * HOUR - (HOUR - 600)
    # It takes longer than was said: it is not over before the host says so.
    plan.started(Instance.ON_DEMAND, 1000.0 + 5 * HOUR)
    assert plan.work_left_s(1000.0 + 50 * HOUR) == plan.tick_s
    assert plan.choose(1000.0 + 50 * HOUR, spot=True) is Instance.ON_DEMAND


def test_losses_use_up_the_reserve_until_on_demand_is_left():
    """Every loss costs a restart. The deadline holds whenever spot is lost."""
    plan, now, lost = plan_of(), 1000.0, 0
    while plan.wants_spot(now):
        plan.started(Instance.SPOT, now)
        now += 1200
        plan.lost(now)
        lost += 1
        assert plan.choose(now, spot=True) in {Instance.SPOT, Instance.ON_DEMAND}
    assert lost > 3
    end = now + 600 + plan.work_left_s(now)
    assert end <= 1000.0 + 10 * HOUR


def test_a_moment_is_a_deadline_too():
    terms = RecoveryTerms.of({**TERMS, "deadline": "2027-01-31T18:00Z"})
    assert terms.deadline_s(1801400000.0) == 1801418400.0 - 1801400000.0

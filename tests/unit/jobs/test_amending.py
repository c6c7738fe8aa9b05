"""Terms of a job: what a plan promises about them, and new ones for a job that runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from duetune.cli.plan_tables import _sentences
from duetune.core.events import Amend, Reported, Submitted, UserRequested
from duetune.core.fleet import Node, NodeKind, NodeState, Task
from duetune.core.job import Job, linear_throughput
from duetune.core.progress import Phase, Progress
from duetune.errors import InvalidInput
from duetune.jobs import submit
from duetune.jobs.amendment import amendment
from duetune.jobs.preflight import Machine
from duetune.jobs.submit import Submitter, prepare
from duetune.jobs.user_requests import amended_terms
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.policies.select.adaptive import AdaHedge
from duetune.registry.policies import policies_named, policy_named
from duetune.settings import QueueSettings, load_settings
from duetune.store.store import opened_store
from duetune.testing import market_of
from support.quoted import HOUR, ORIGIN, SITE, market_at, spec_with, terms_of


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(submit, "SCENARIOS", 20)
    with opened_store(load_settings({"DUETUNE_HOME": str(tmp_path)})) as store:
        yield store


def submitter(*, price=0.5, queue=None, pool="maximal_spot", by_priority=False):
    """``price``: of spot; on demand a GPU costs $1.50 a slot."""
    market = market_at()
    slot = msgspec.structs.replace(market.slot, spot_price=price)
    return Submitter(
        site=SITE,
        market=msgspec.structs.replace(market, slot=slot),
        history=market_of([price] * 336, [4] * 336, on_demand_price=1.5),
        pool=policies_named(pool),
        policy_named=policy_named,
        learner=AdaHedge,
        knowledge=lambda _store: AnalyticSource(),
        machine=Machine(Path()),
        queue=queue or QueueSettings(),
        by_priority=by_priority,
    )


class TestPlanned:
    def test_a_deadline_without_a_value_is_soft_and_the_plan_says_so(self, store):
        prepared = prepare(spec_with(), submitter(), store)
        assert prepared.terms.soft
        first = _sentences(prepared, prepared.quote.document)[0]
        assert "soft deadline: after it the job goes on at the least cost" in first

    def test_a_value_or_a_hard_deadline_makes_it_end(self):
        hard = terms_of(spec_with(hard_deadline=True))
        assert not hard.soft
        assert hard.job.hard_deadline == hard.job.deadline
        valued = terms_of(spec_with(value=50))
        assert not valued.soft
        assert valued.job.hard_deadline > valued.job.deadline

    def test_the_policy_that_will_run_is_judged_and_not_the_best(self, store):
        spec = spec_with(policy="spot_only")
        with pytest.raises(InvalidInput, match=r"policy: 'spot_only' .* in no scenario"):
            prepare(spec, submitter(price=9.0), store)

    def test_a_priority_without_a_limit_on_gpus_is_told_to_have_no_effect(self, store):
        def notes(**given):
            return prepare(spec_with(priority=5), submitter(**given), store).quote.document.notes

        assert any("priority has no effect" in note for note in notes())
        limited = notes(queue=QueueSettings(gpus=3))
        assert not any("priority" in note for note in limited)
        assert not any("priority" in note for note in notes(by_priority=True))

    def test_work_is_called_steps(self):
        assert terms_of(spec_with()).job.unit == "steps"


class TestAmended:
    """A job of 240 steps, 12 a slot on 4 GPUs, with 120 steps done and $10 spent."""

    @pytest.fixture
    def row(self, store):
        job = Job(
            work=240.0,
            deadline=30,
            value=300.0,
            throughput=linear_throughput(4, slope=3.0),
            budget=100.0,
        )
        submitted = Submitted(
            at=ORIGIN,
            spec="{}",
            job=job,
            task=Task(folder="/folder", module="training"),
            policy="rubato",
            origin=ORIGIN,
            slot_s=1800.0,
            soft=True,
        )
        node = Node(
            "node", "job", NodeKind.SPOT, NodeState.RUNNING, ORIGIN, started_at=ORIGIN, billed=10.0
        )
        progress = Progress(step=120, total_steps=240, phase=Phase.TRAINING)
        store.journal.append("job", [submitted], expected=0)
        store.journal.append("job", [Reported(ORIGIN, (node,), progress, ORIGIN)], expected=1)
        return store.job("job")

    def test_it_has_a_quote_for_the_rest(self, row, store):
        amended = amendment(row, Amend(deadline=ORIGIN + 20 * HOUR), submitter(), store)
        assert amended.quote.work == 120
        assert amended.quote.deadline_slot == 40
        assert amended.quote.budget == 90
        assert amended.quote.chosen.policy == "rubato"
        assert 0 < amended.quote.chosen.cost < 60

    def test_a_deadline_that_cannot_be_met_is_refused_with_the_earliest(self, row, store):
        request = Amend(deadline=ORIGIN + 2 * HOUR)
        with pytest.raises(
            InvalidInput, match=r"deadline: '2h' .* at least 5h30m: all \d GPUs need"
        ):
            amendment(row, request, submitter(), store)
        assert amendment(row, request, submitter(), store, force=True).quote is None

    def test_a_budget_that_cannot_do_is_refused(self, row, store):
        with pytest.raises(InvalidInput, match=r"budget: 11.0 .* \$10.00 is already spent"):
            amendment(row, Amend(budget=11.0), submitter(), store)

    def test_a_value_below_the_cost_is_refused(self, row, store):
        with pytest.raises(InvalidInput, match=r"value: 0.0 .* would not be worth it"):
            amendment(row, Amend(value=0.0), submitter(price=9.0), store)

    def test_a_priority_alone_has_no_price(self, row, store):
        amended = amendment(row, Amend(priority=7), submitter(), store)
        assert amended.quote is None
        store.journal.append("job", [UserRequested(ORIGIN, 1, amended.request)], expected=2)
        assert store.job("job").priority == 7

    def test_a_priority_is_read_as_in_a_spec(self, row):
        assert amended_terms(row, None, None, None, priority=-5) == Amend(priority=-5)
        with pytest.raises(InvalidInput, match="priority: 1001"):
            amended_terms(row, None, None, None, priority=1001)

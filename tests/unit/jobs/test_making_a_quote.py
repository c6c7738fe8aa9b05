from __future__ import annotations

import msgspec
import numpy as np
import pytest

from duetune.core.decision import Allocation, Decision, Forecast, View
from duetune.core.fleet import MarketReport
from duetune.core.job import (
    Job,
    Reconfiguration,
    ReconfigurationKey,
    ValueShape,
    linear_throughput,
)
from duetune.core.market import MarketTrace, Slot
from duetune.errors import InvalidInput
from duetune.jobs.market_futures import settled
from duetune.jobs.quote import make_quote
from duetune.jobs.quote_document import LineRole, QuoteDocument
from duetune.jobs.terms import Terms
from duetune.market.forecast.simple import outlook_at
from duetune.market.synthetic import MarketKind, synthetic_market
from duetune.policies.ahanp import Ahanp
from duetune.policies.ahap import Ahap
from duetune.policies.baselines import MaximalSpot, OnDemandOnly, SpotOnly, UniformProgress
from duetune.simulate.episode import simulate
from duetune.testing.policy_contract import PolicyContract
from duetune.testing.small_markets import constant_market

SLOT_S = 1800.0
ORIGIN = 1_800_000_000.0
POOL = (UniformProgress(), Ahap(), Ahanp(), MaximalSpot(), OnDemandOnly())
KNOWN = 500
RULE = Reconfiguration(grow=0.95, shrink=0.98, preempted=0.93, key=ReconfigurationKey.COMPOSITION)


def terms_with(**fields) -> Terms:
    job = {
        "work": 60.0,
        "deadline": 16,
        "value": 200.0,
        "throughput": linear_throughput(8),
        "reconfiguration": RULE,
    }
    other = {name: fields.pop(name) for name in ("max_price", "policy", "pace") if name in fields}
    return Terms(
        job=Job(**(job | fields)),
        origin=ORIGIN,
        slot_s=SLOT_S,
        deadline_at=ORIGIN + 16 * SLOT_S,
        **other,
    )


def report(slot: Slot) -> MarketReport:
    return MarketReport(at=ORIGIN, index=KNOWN, slot_began=ORIGIN, slot_s=SLOT_S, slot=slot)


def past_of(market: MarketTrace, slots: int = KNOWN) -> MarketTrace:
    return MarketTrace.single(
        market.spot_price[0, :slots], market.available[0, :slots], market.on_demand_price[0, :slots]
    )


MARKET = synthetic_market(MarketKind.DIURNAL, seed=5, slots=KNOWN + 100)
STILL = constant_market(600, spot_price=0.4, available=8, on_demand_price=1.0)


def quote_for(terms, market=MARKET, *, scenarios=20, **options):
    past = past_of(market)
    now = report(market.slot(KNOWN))
    return make_quote(
        terms, POOL, market_history=past, now=now, scenarios=scenarios, seed=1, **options
    )


def test_a_quote_is_a_document_of_plain_numbers():
    document = quote_for(terms_with()).document
    text = msgspec.json.encode(document)
    assert msgspec.json.decode(text, type=QuoteDocument) == document
    assert [line.role for line in document.lines] == list(LineRole)


def test_times_are_slots_and_moments():
    document = quote_for(terms_with()).document
    assert document.deadline_slot == 16
    assert document.deadline_at == ORIGIN + 16 * SLOT_S
    assert document.hard_deadline_at == ORIGIN + 24 * SLOT_S
    line = document.chosen
    assert line.finish_slot is not None
    assert line.finish_at is not None
    assert ORIGIN + (line.finish_slot - 1) * SLOT_S < line.finish_at
    assert line.finish_at <= ORIGIN + line.finish_slot * SLOT_S


def test_part_of_the_first_slot_that_has_gone_delays_the_end():
    terms = terms_with()
    delayed = msgspec.structs.replace(terms, late_s=600.0)
    one, other = quote_for(terms).document.chosen, quote_for(delayed).document.chosen
    assert one.finish_at is not None
    assert other.finish_at == pytest.approx(one.finish_at + 600)


def test_on_a_market_that_never_moves_the_quote_is_what_happens():
    quote = quote_for(terms_with(), STILL)
    policy = next(policy for policy in POOL if policy.name == quote.policy)
    outcome = simulate(terms_with().job, STILL, policy, start=KNOWN)
    line = quote.document.chosen
    assert outcome.finished is not None
    assert line.finish_slot == line.finish_slot_late == outcome.finished
    cost = settled(terms_with().job, outcome).cost
    assert [line.cost, line.cost_low, line.cost_high] == pytest.approx([cost] * 3)
    assert line.on_time == line.finished == 1.0


def test_gpus_are_paid_until_the_work_is_done():
    # 8 GPUs do 7.6 in the first slot and 8 in each of the next; half of the fourth is enough.
    job = terms_with(work=7.6 + 8 + 8 + 4, value=1000.0).job
    outcome = simulate(job, STILL, MaximalSpot(), start=0)
    assert outcome.finished == 4
    assert settled(job, outcome).elapsed == pytest.approx(3.5)
    assert settled(job, outcome).cost == pytest.approx(3.5 * 8 * 0.4)


def test_an_unfinished_run_is_paid_in_full_and_never_ends():
    job = terms_with(work=10_000.0).job
    outcome = simulate(job, STILL, UniformProgress(), start=0)
    assert outcome.finished is None
    assert settled(job, outcome).cost == outcome.cost
    assert settled(job, outcome).elapsed == np.inf


def test_the_best_of_the_pool_is_chosen():
    quote = quote_for(terms_with())
    assert quote.pool == tuple(policy.name for policy in POOL)
    assert quote.utilities.shape == (20, len(POOL))
    means = quote.utilities.mean(axis=0)
    assert means[quote.pool.index(quote.policy)] >= means.max() - 0.001 * 200


class Begins(msgspec.Struct, frozen=True):
    """All eight GPUs of one kind from a slot on."""

    slot: int
    kind: str = "spot"

    @property
    def name(self) -> str:
        return f"{self.kind}-from-{self.slot}"

    def decide(self, view: View) -> Decision:
        gpus = 8 if view.slot >= self.slot else 0
        return Decision(Allocation(**{self.kind: gpus}), "as it was made")


def test_of_policies_that_are_nearly_as_good_the_most_punctual_is_chosen():
    terms = terms_with(value=100.0, value_shape=ValueShape.STEP)
    options = {"market_history": past_of(STILL), "now": report(STILL.slot(KNOWN)), "scenarios": 5}
    late, soon, dear = Begins(17), Begins(1), Begins(1, "on_demand")
    assert make_quote(terms, (late, soon), **options).policy == soon.name
    assert make_quote(terms, (late, dear), **options).policy == late.name


def test_spot_saves_what_the_document_says():
    document = quote_for(terms_with(), STILL).document
    on_demand = document.line(LineRole.ON_DEMAND_ONLY)
    assert document.saving == pytest.approx(1 - document.chosen.cost / on_demand.cost)
    assert 0.5 < document.saving < 0.65
    assert document.chosen.spot_share == 1.0
    assert on_demand.spot_share == 0.0
    assert on_demand.gpus == pytest.approx(4.0)


def test_no_policy_exceeds_the_bound():
    quote = quote_for(terms_with())
    bound = quote.document.bound
    assert bound is not None
    assert quote.utilities.mean(axis=0).max() <= bound.utility + 1e-6
    assert bound.cost <= quote.document.chosen.cost * 1.02


def test_a_long_job_has_fewer_scenarios_and_no_bound():
    terms = terms_with(deadline=600, work=200.0)
    quote = quote_for(terms, scenarios=40)
    assert quote.document.bound is None
    assert quote.document.scenarios == 20
    assert quote.utilities.shape[0] == 20


def test_another_policy_takes_the_place_of_the_chosen_one():
    quote = quote_for(terms_with())
    other = quote.with_policy(Ahap(window=3, commitment=2))
    assert other.policy == Ahap(window=3, commitment=2).name
    assert other.document.lines[1:] == quote.document.lines[1:]
    on_demand = quote.with_policy(OnDemandOnly())
    assert on_demand.document.saving == 0.0
    assert quote.with_policy(next(p for p in POOL if p.name == quote.policy)) is quote


@pytest.mark.parametrize("name", ["on_demand", "spot_only"])
def test_where_the_terms_leave_one_policy_it_is_chosen(name):
    quote = quote_for(msgspec.structs.replace(terms_with(), policy=name, policy_reason="told to"))
    assert quote.policy == name
    assert any("told to" in note for note in quote.document.notes)


def test_spot_above_the_highest_price_is_not_there():
    # Spot costs 0.8 an hour here.
    cheap = quote_for(terms_with(max_price=0.7), STILL)
    assert cheap.document.line(LineRole.SPOT_ONLY).finished == 0.0
    assert cheap.document.line(LineRole.SPOT_ONLY).finish_at is None
    dear = quote_for(terms_with(max_price=0.9), STILL)
    assert dear.document.line(LineRole.SPOT_ONLY).finished == 1.0


def test_a_budget_that_no_plan_can_keep_is_refused_with_what_is_likely_enough():
    with pytest.raises(
        InvalidInput, match=r"^budget: 10.*at least \$24\.00.*\$2\d\.\d\d is needed"
    ):
        quote_for(terms_with(budget=10.0), STILL)
    with pytest.raises(InvalidInput, match=r"^budget.*at least \$60\.00"):
        quote_for(terms_with(budget=30.0, policy="on_demand"), STILL)
    quote_for(terms_with(budget=30.0), STILL)


def test_a_budget_that_may_not_last_is_said():
    document = quote_for(terms_with(budget=20.0)).document
    assert document.chosen.finished < 1
    assert document.chosen.cost <= 20.0
    assert any("budget" in note for note in document.notes)


def test_what_is_not_worth_it_is_said():
    document = quote_for(terms_with(value=1.0, policy="on_demand")).document
    assert any("worth" in note for note in document.notes)


def test_policies_are_told_the_outlook_of_the_last_week():
    quote = quote_for(terms_with())
    expected = outlook_at(MARKET, KNOWN)
    assert quote.document.outlook.available == pytest.approx(expected.available)
    assert quote.document.outlook.spot_price == pytest.approx(expected.spot_price)


def test_without_history_there_is_a_quote_that_says_so():
    now = report(MARKET.slot(0))
    quote = make_quote(terms_with(), POOL, market_history=None, now=now, scenarios=10, seed=0)
    assert quote.document.history_slots == 0
    assert any(note.startswith("no market history is known yet") for note in quote.document.notes)


def test_a_short_history_is_told_as_a_duration():
    past = synthetic_market(MarketKind.DIURNAL, seed=5, slots=7)
    now = report(MARKET.slot(7))
    quote = make_quote(terms_with(), POOL, market_history=past, now=now, scenarios=10, seed=0)
    (note,) = [note for note in quote.document.notes if "market history" in note]
    assert SLOT_S == 1800
    assert note == "only 3h30m of market history is known, so the forecast is uncertain"


def test_the_seed_fixes_the_quote():
    assert quote_for(terms_with()).document == quote_for(terms_with()).document


def test_an_empty_pool_is_refused():
    with pytest.raises(InvalidInput, match=r"^policies"):
        make_quote(terms_with(), (), market_history=None, now=report(MARKET.slot(0)))


class TestSpotOnlyKeepsThePolicyContract(PolicyContract):
    def make(self):
        return SpotOnly()


def view(*, available, price, progress=0.0, min_gpus=1):
    forecast = Forecast(np.zeros(0), np.zeros(0, dtype=np.int64))
    job = terms_with(min_gpus=min_gpus).job
    market = Slot(spot_price=price, available=available, on_demand_price=1.0)
    return View(
        job=job, slot=1, progress=progress, held=Allocation(), market=market, forecast=forecast
    )


@pytest.mark.parametrize(
    ("given", "spot"),
    [
        ({"available": 5, "price": 0.4}, 5),
        ({"available": 20, "price": 0.4}, 8),
        ({"available": 3, "price": 0.4, "min_gpus": 4}, 0),
        ({"available": 5, "price": 1.0}, 0),
        ({"available": 5, "price": 0.4, "progress": 59.0}, 2),
    ],
)
def test_spot_only_holds_spot_and_nothing_else(given, spot):
    decision = SpotOnly().decide(view(**given))
    assert decision.allocation == Allocation(spot=spot)
    assert decision.reason


def test_the_ranges_of_a_quote_contain_how_uncertain_the_pace_is():
    sure, unsure = (quote_for(terms_with(pace=pace), STILL) for pace in ((1.0, 1.0), (0.7, 1.4)))
    narrow, wide = sure.document.chosen, unsure.document.chosen
    assert wide.cost_high - wide.cost_low > 5 * (narrow.cost_high - narrow.cost_low) + 1.0
    assert wide.finish_late_at > narrow.finish_late_at
    on_demand = unsure.document.lines[1]
    assert on_demand.cost_low < on_demand.cost < on_demand.cost_high
    assert np.quantile(unsure.futures.paces, [0.05, 0.95]) == pytest.approx([0.7, 1.4], rel=0.1)

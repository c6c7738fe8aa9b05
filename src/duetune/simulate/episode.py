"""One job on one market, slot by slot, with every decision explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.decision import Allocation, View
from duetune.core.ledger import Entry, Outcome
from duetune.core.physics import charge, efficiency, is_done, job_physics
from duetune.engine.deciding import decide, lookahead
from duetune.forecast.outlook import outlook_at, seen_at
from duetune.forecast.source import ForecastKind, ForecastSource

if TYPE_CHECKING:
    from duetune.core.job import Job
    from duetune.core.market import MarketTrace
    from duetune.core.ports import Forecaster, Policy

USUAL_HORIZON = 24
LAST_VALUE = ForecastSource(kind=ForecastKind.LAST)


def simulate(
    job: Job,
    trace: MarketTrace,
    policy: Policy,
    source: ForecastSource | Forecaster = LAST_VALUE,
    *,
    start: int = 0,
) -> Outcome:
    """Run ``job`` from trace slot ``start`` until it is done or its hard deadline has passed.

    A forecaster of your own should already know what it is to know of the slots before ``start``.
    """
    horizon = max(USUAL_HORIZON, lookahead(policy))
    physics = job_physics(job)
    trace.window(start, job.hard_deadline)  # refuses a trace that is too short, before any work
    forecaster = source.forecaster(trace, start) if isinstance(source, ForecastSource) else source
    outlook = outlook_at(trace, start)
    progress, spent, held = 0.0, 0.0, Allocation()
    memo: tuple[float, ...] = ()
    entries: list[Entry] = []
    finished = None
    for slot in range(1, job.hard_deadline + 1):
        market = trace.slot(start + slot - 1)
        forecaster.observe(market)
        view = View(
            job=job,
            slot=slot,
            progress=progress,
            held=held,
            market=market,
            forecast=forecaster.forecast(horizon),
            outlook=outlook,
            spent=spent,
            memo=memo,
            seen=seen_at(trace, start, start + slot - 1),
        )
        decision = decide(policy, view)
        memo, now = decision.memo, decision.allocation
        cost = charge(now.spot, now.on_demand, market.spot_price, market.on_demand_price)
        fraction = efficiency(
            physics, held.spot, held.on_demand, now.spot, now.on_demand, market.available
        )
        work = fraction * float(physics.throughput[now.total])
        spent += cost
        progress += work
        entries.append(
            Entry(
                slot=slot,
                spot_price=market.spot_price,
                available=market.available,
                on_demand_price=market.on_demand_price,
                allocation=now,
                preempted=max(0, held.spot - market.available),
                efficiency=fraction,
                work=work,
                progress=progress,
                charge=cost,
                reason=decision.reason,
            )
        )
        held = now
        if is_done(physics, progress):
            finished = slot
            break
    value = float(physics.values[finished]) if finished else 0.0
    return Outcome(
        policy=policy.name,
        finished=finished,
        on_time=finished is not None and finished <= job.deadline,
        progress=progress,
        cost=spent,
        value=value,
        utility=value - spent,
        entries=tuple(entries),
    )

"""A site, a market and the terms of a job on them, for tests of quotes."""

from __future__ import annotations

from duetune.core.fleet import MarketReport
from duetune.core.market import Slot
from duetune.jobs.configure import configure
from duetune.jobs.site import Site
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.terms import Terms, job_terms

HOUR = 3600.0
ORIGIN = 1_800_000_000.0
SITE = Site(max_gpus=4, emulated_microbatch_s=9.0, startup_s=2.0)


def spec_with(**fields):
    given = {"model": "a/b", "dataset": "c/d", "deadline": "8h", "training": {"max_steps": 200}}
    return JobSpec.model_validate(given | fields)


def market_at(gone_s=0.0, slot_s=1800.0, price=1.5):
    slot = Slot(spot_price=0.5, available=4, on_demand_price=price)
    return MarketReport(at=ORIGIN + gone_s, index=7, slot_began=ORIGIN, slot_s=slot_s, slot=slot)


def terms_of(spec, market=None, site=SITE) -> Terms:
    market = market or market_at()
    return job_terms(spec, configure(spec, site, now=market.at), site, market, market.at)

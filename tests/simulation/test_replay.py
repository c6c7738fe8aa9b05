"""T8: the same seed gives the same bytes, in this process and in another."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np

from duetune.core.job import Job, Reconfiguration, ReconfigurationKey, linear_throughput
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.guard import deadline_guard
from duetune.policies.pool import baselines, paper_pool
from duetune.simulate.cases import JobMix, draw_cases
from duetune.simulate.episode import simulate
from duetune.simulate.tournament import run_tournament
from duetune.testing import Restless, random_market


def digest_of_everything(seed: int) -> str:
    """A tournament and some runs, down to the last bit and word."""
    source = ForecastSource.parse("noisy:fixed-heavy:0.8", seed=seed)
    markets = (random_market(seed, 120), random_market(seed + 1, 90))
    mixes = [JobMix(), JobMix(reconfiguration=Reconfiguration(key=ReconfigurationKey.COMPOSITION))]
    pool = [*paper_pool()[::10], *baselines(), deadline_guard(Restless(seed))]
    digest = hashlib.sha256()
    for mix in mixes:
        cases = draw_cases(mix, markets, 8, np.random.default_rng(seed))
        played = run_tournament(pool, cases, markets, source)
        digest.update(played.utility.tobytes())
        digest.update(played.cost.tobytes())
        for case in cases[:2]:
            for policy in pool[::4]:
                outcome = simulate(case.job, markets[case.market], policy, source, start=case.start)
                digest.update(msgspec.json.encode(outcome))
    return digest.hexdigest()


def test_the_same_seed_gives_the_same_bytes():
    assert digest_of_everything(3) == digest_of_everything(3)


def test_another_seed_gives_other_bytes():
    assert digest_of_everything(3) != digest_of_everything(4)


def test_another_process_gives_the_same_bytes():
    here = Path(__file__)
    code = f"from {here.stem} import digest_of_everything; print(digest_of_everything(3))"
    there = subprocess.run(
        [sys.executable, "-c", code], cwd=here.parent, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert there == digest_of_everything(3)


def test_an_outcome_survives_its_json():
    job = Job(work=20, deadline=6, value=60, throughput=linear_throughput(6))
    source = ForecastSource.parse("last")
    outcome = simulate(job, random_market(1, 20), paper_pool()[40], source)
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=type(outcome)) == outcome

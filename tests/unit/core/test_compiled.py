"""Kernels without the compiler, for who wants to step into them."""

from __future__ import annotations

import os
import subprocess
import sys

EPISODE = """
from duetune import Ahap, ForecastSource, Job, linear_throughput, simulate_job, synthetic_market
from duetune.policies.rubato import Rubato

job = Job(work=30, deadline=8, value=100, throughput=linear_throughput(4))
market = synthetic_market("capacity_storm", seed=1)
for policy in (Ahap(), Rubato()):
    outcome = simulate_job(job, market, policy, ForecastSource.parse("last"), start=60)
    print(repr(outcome.utility), len(outcome.entries))
"""
PLAIN = "import duetune.core.physics as p; print(type(p.cheapest_charge).__name__)"


def printed(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    ).stdout


def test_an_episode_without_the_compiler_is_the_same():
    assert printed(PLAIN, NUMBA_DISABLE_JIT="1").strip() == "function"
    assert printed(EPISODE, NUMBA_DISABLE_JIT="1") == printed(EPISODE, NUMBA_DISABLE_JIT="0")

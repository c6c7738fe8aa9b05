from __future__ import annotations

from hypothesis import HealthCheck, settings

# Derandomised: a run that passed here passes in CI. No example has a time limit, since the first
# one pays for the compiler.
settings.register_profile(
    "duetune",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("duetune")

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Derandomised: a run that passed here passes in CI. No example has a time limit, since the first
# one pays for the compiler. `make test-more` looks further, at other examples each time.
COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
settings.register_profile("duetune", derandomize=True, print_blob=False, max_examples=40, **COMMON)
settings.register_profile("more", max_examples=300, print_blob=True, **COMMON)
settings.load_profile("more" if "DUETUNE_TEST_MORE" in os.environ else "duetune")


def pytest_collection_modifyitems(config, items):
    """Live tests wait more than they compute. All workers but one begin with them, or else one
    would be left with a row of them when all others are done.
    """
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    live = [item for item in items if item.get_closest_marker("live")]
    rest = [item for item in items if not item.get_closest_marker("live")]
    lanes, share = max(1, workers - 1), len(items) // workers
    ordered = []
    for lane in range(lanes):
        ordered += live[lane::lanes]
        room = share * (lane + 1) - len(ordered)
        ordered += rest[: max(0, room)]
        del rest[: max(0, room)]
    items[:] = ordered + rest

from __future__ import annotations

import itertools
import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from support.more import FLEETS, MORE

pytest_plugins = ["support.postgres", "support.pretended_s3"]

# Tests run side by side: threads of a library would wait for each other, and for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Byte code is kept, whatever the shell says: every worker would compile all tests anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Derandomised: a run that passed here passes in CI. No example has a time limit, since the first
# one pays for the compiler. `make test-more` looks further, at other examples each time.
COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
settings.register_profile("duetune", derandomize=True, print_blob=False, max_examples=30, **COMMON)
settings.register_profile("more", max_examples=300, print_blob=True, **COMMON)
settings.load_profile("more" if MORE else "duetune")


def pytest_collection_modifyitems(config, items):
    """Live tests wait more than they compute. All workers but one begin with them, or else one
    would be left with a row of them when all others are done. One of these has all tests that need
    torch, so that no other imports it, and a third as many of the other live ones.
    """
    config.hook.pytest_deselected(items=[each for each in items if not _wanted(each)])
    items[:] = [each for each in items if _wanted(each)]
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    lanes, share = max(1, workers - 1), len(items) // workers
    deal = itertools.cycle([*range(lanes), *range(lanes - 1), *range(lanes - 1)])
    begins = [[] for _ in range(lanes)]
    rest = []
    for item in items:
        if item.get_closest_marker("torch"):
            begins[-1].append(item)
        elif item.get_closest_marker("live"):
            begins[next(deal)].append(item)
        else:
            rest.append(item)
    ordered = []
    for lane, begin in enumerate(begins):
        ordered += begin
        room = max(0, share * (lane + 1) - len(ordered))
        ordered += rest[:room]
        del rest[:room]
    items[:] = ordered + rest


@pytest.fixture(scope="session", autouse=True)
def _shared_models(tmp_path_factory):
    """Homes of tests share the fitted models: to fit the one of the shipped runs takes seconds."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duetune.registry.sources.FOLDER", str(folder / "models"))
        yield


def _wanted(item):
    more, fleets = item.get_closest_marker("more"), item.get_closest_marker("fleets")
    return (MORE or more is None) and (FLEETS or fleets is None)

"""The strategy of managed jobs, with stand-ins for the classes of SkyPilot that it uses.

``tests/e2e/test_skypilot_jobs.py`` runs it inside SkyPilot.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest

from duetune.errors import InvalidInput
from duetune.policies.single_instance import Instance

TERMS = {"deadline": "10h", "work": "6h", "restart": "10m"}


class Executor:
    """What SkyPilot's own strategy does for ours: one try to launch, and an end."""

    def __init__(self, resources, outcomes):
        task = SimpleNamespace(resources=resources)
        task.set_resources = lambda found: setattr(task, "resources", found)
        self.dag = SimpleNamespace(tasks=[task])
        self.job_id, self.task_id = 7, 0
        self.outcomes, self.tried, self.cleaned = outcomes, [], 0

    async def _launch(self, max_retry, raise_on_failure, recovery):
        assert not raise_on_failure
        (wanted,) = self.dag.tasks[0].resources
        self.tried.append((wanted, max_retry, recovery))
        outcome = self.outcomes.pop(0)
        if outcome == "hangs":
            await asyncio.Event().wait()
        return outcome

    def _cleanup_cluster(self):
        self.cleaned += 1


class Wanted:
    def __init__(self, **fields):
        self.fields = fields

    def copy(self, **changes):
        return Wanted(**{**self.fields, **changes})


class Registry(dict):
    def type_register(self, name):
        assert name.lower() not in self  # as SkyPilot's does
        return lambda kind: self.setdefault(name.lower(), kind)


@pytest.fixture
def strategy(monkeypatch, tmp_path):
    registered = {}
    modules = {
        "sky": {},
        "sky.jobs": {},
        "sky.jobs.recovery_strategy": {"FailoverStrategyExecutor": Executor},
        "sky.server": {},
        "sky.server.plugins": {"BasePlugin": object},
        "sky.utils": {},
        "sky.utils.registry": {"JOBS_RECOVERY_STRATEGY_REGISTRY": Registry()},
        "sky.utils.schemas": {"register_job_recovery_property": registered.__setitem__},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)
    name = "duetune.interop.skypilot_strategy"
    monkeypatch.delitem(sys.modules, name, raising=False)
    found = importlib.import_module(name)
    monkeypatch.setattr(found, "FOLDER", str(tmp_path / "records"))
    found.registered = registered
    yield found
    monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def clock(strategy, monkeypatch):
    """The time, which sleeping advances."""
    now = [1_800_000_000.0]

    async def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(strategy, "time", SimpleNamespace(time=lambda: now[0]))
    monkeypatch.setattr(strategy.asyncio, "sleep", sleep)
    return now


def made(strategy, outcomes, **terms):
    found = strategy.DeadlineStrategy([Wanted(use_spot=False)], outcomes)
    found.set_strategy_config({**TERMS, **terms})
    return found


def kinds(job):
    return ["spot" if wanted.fields["use_spot"] else "on-demand" for wanted, *_ in job.tried]


def test_the_plugin_registers_the_strategy_and_its_words_once(strategy):
    plugin = strategy.DeadlinePlugin()
    plugin.install(None)
    plugin.install(None)
    known = sys.modules["sky.utils.registry"].JOBS_RECOVERY_STRATEGY_REGISTRY
    assert known == {"duetune": strategy.DeadlineStrategy}
    assert strategy.registered["deadline"] == {"type": "string"}
    assert strategy.registered["spot_usd_h"] == {"type": "number"}


@pytest.mark.usefixtures("clock")
def test_a_job_begins_on_spot_and_continues_there_while_there_is_time(strategy):
    job = made(strategy, [1.0, 2.0])
    assert asyncio.run(job.launch()) == 1.0
    assert asyncio.run(job.recover()) == 2.0
    assert kinds(job) == ["spot", "spot"]
    assert [recovery for *_, recovery in job.tried] == [False, True]
    assert job.cleaned == 1


def test_without_spot_it_waits_and_then_goes_on_demand_in_time(strategy, clock):
    began = clock[0]
    job = made(strategy, [None] * 30 + [5.0])
    job._launch = _refusing_spot(job)
    assert asyncio.run(job.launch()) == 5.0
    assert kinds(job)[-1] == "on-demand"
    assert kinds(job).count("spot") > 3
    assert clock[0] > began
    assert clock[0] + 6 * 3600 + 600 <= began + 10 * 3600


def _refusing_spot(job):
    async def launch(max_retry, raise_on_failure, recovery):
        assert not raise_on_failure
        (wanted,) = job.dag.tasks[0].resources
        job.tried.append((wanted, max_retry, recovery))
        return None if wanted.fields["use_spot"] else 5.0

    return launch


def test_a_machine_that_never_comes_counts_as_refused(strategy):
    """A queue gives no answer. Real time passes here: a moment."""
    job = made(strategy, ["hangs", 3.0], spot_wait="0.05s", deadline="6h30m")
    job._plan.wants_spot = lambda _: True
    assert asyncio.run(job.launch()) == 3.0
    assert kinds(job) == ["spot", "on-demand"]


@pytest.mark.usefixtures("clock")
def test_a_late_job_goes_on_demand(strategy, clock):
    job = made(strategy, [1.0, 2.0])
    asyncio.run(job.launch())
    clock[0] += 11 * 3600
    asyncio.run(job.recover())
    assert kinds(job) == ["spot", "on-demand"]


@pytest.mark.usefixtures("clock")
def test_places_are_kinds_where_nothing_is_sold_as_spot(strategy):
    places = {"spot": "slurm/lab/spot", "on_demand": "slurm/lab/guaranteed"}
    job = made(strategy, [1.0], **places)
    asyncio.run(job.launch())
    ((wanted, *_),) = job.tried
    assert wanted.fields["infra"] == "slurm/lab/spot"
    assert wanted.fields["use_spot"] is False
    assert job._resources(wanted, Instance.ON_DEMAND).fields["infra"] == "slurm/lab/guaranteed"


def test_a_restarted_controller_knows_what_is_done(strategy, clock):
    job = made(strategy, [1.0])
    asyncio.run(job.launch())
    clock[0] += 3600
    again = made(strategy, [2.0])
    assert again._plan.record.kind is Instance.SPOT
    assert again._plan.work_left_s(clock[0]) == 5 * 3600 + 600
    assert again._plan.record.began_at == clock[0] - 3600


@pytest.mark.usefixtures("clock")
def test_wrong_terms_fail_the_job_with_the_field(strategy):
    with pytest.raises(InvalidInput, match=r"job_recovery\.deadline"):
        made(strategy, [], deadline="soon")

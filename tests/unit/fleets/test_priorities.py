"""The priority of a job, from its spec to the arguments of sbatch."""

from __future__ import annotations

import pytest

from duetune.core.decision import Allocation
from duetune.core.events import (
    Amend,
    NodeRequest,
    Observed,
    Requested,
    Submitted,
    UserRequested,
)
from duetune.core.fleet import Launch, NodeKind, Task
from duetune.core.job import Job, linear_throughput
from duetune.core.market import Slot
from duetune.engine.engine import Engine
from duetune.errors import InvalidInput
from duetune.fleets.driver import PriorityDriver
from duetune.fleets.node_files import StorageFiles
from duetune.fleets.slurm import SlurmDriver, SlurmSettings
from duetune.fleets.slurm.slurm_driver import sbatch_arguments
from duetune.registry.policies import policy_named

SETTINGS = SlurmSettings(spot="cheap", on_demand="sure")


@pytest.fixture
def engine(tmp_path):
    found = Engine("job", policy_named)
    job = Job(work=10.0, deadline=10, value=9.0, throughput=linear_throughput(4))
    task = Task(folder=str(tmp_path), command=("true",))
    found.handle(Submitted(0.0, "{}", job, task, "on_demand", 0.0, 60.0, priority=100))
    found.handle(Observed(0.0, 1, 0.0, Allocation(), Slot(1.0, 4, 3.0), (), (), 0.0))
    return found


def asked(engine, node, epoch, at):
    """Let the job ask for a node; return the arguments of sbatch for it."""
    engine.handle(Requested(at, (NodeRequest(node, NodeKind.SPOT, epoch),)))
    launch = next(each for each in engine.outstanding() if each.node == node)
    assert isinstance(launch, Launch)
    found = StorageFiles(["agent"], b"token").order(launch, f"dt-{node}", at + 300)
    settings = SlurmSettings.of(
        {"spot": "cheap", "nice": 2, "qos": "low", "qos_by_priority": "100=high, 500=urgent"}
    )
    return sbatch_arguments(found, settings)


def test_the_priority_of_a_job_reaches_sbatch(engine):
    assert {"--nice=1800", "--qos=high"} <= set(asked(engine, "n1", 1, 1.0))


def test_nodes_that_are_asked_for_later_have_the_amended_priority(engine):
    engine.handle(UserRequested(2.0, 1, Amend(priority=600)))
    assert engine.state.priority == 600
    assert {"--nice=800", "--qos=urgent"} <= set(asked(engine, "n2", 2, 3.0))
    engine.handle(UserRequested(4.0, 2, Amend(budget=50.0)))
    assert engine.state.priority == 600


@pytest.mark.parametrize(
    ("priority", "qos"), [(-1000, "low"), (99, "low"), (100, "high"), (499, "high"), (500, "best")]
)
def test_the_qos_is_that_of_the_highest_threshold(priority, qos):
    settings = SlurmSettings(spot="cheap", qos="low", qos_by_priority="500=best,100=high")
    assert settings.qos_for(priority) == qos


@pytest.mark.parametrize("words", ["high", "100=", "x=high", "100=high;200=best,300"])
def test_a_wrong_map_is_refused_with_its_form(words):
    with pytest.raises(InvalidInput, match=r"qos_by_priority.*PRIORITY=QOS"):
        SlurmSettings(spot="cheap", qos_by_priority=words)


def test_a_driver_says_whether_priorities_matter():
    assert isinstance(SlurmDriver(SETTINGS, prefix="dt"), PriorityDriver)
    assert not SlurmDriver(SETTINGS, prefix="dt").by_priority()
    for option in ({"nice": 1}, {"qos_by_priority": "1=high"}):
        settings = SlurmSettings(spot="cheap", **option)
        assert SlurmDriver(settings, prefix="dt").by_priority()

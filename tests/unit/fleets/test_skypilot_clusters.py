"""What SkyPilot's answers mean. The states and times are those of a real SkyPilot 0.14.1."""

from __future__ import annotations

import pytest

from duetune.core.fleet import NodeEnd
from duetune.fleets.driver import EngineNode, EngineState
from duetune.fleets.skypilot.skypilot_clusters import (
    SkyCluster,
    SkyFacts,
    SkyJob,
    SkyRequest,
    nodes_of,
)

NOW = 1794980200.0
UP = SkyCluster("dt-a", "UP", 1794980039)
INIT = SkyCluster("dt-a", "INIT", 1794980000)
WAITING = EngineNode(name="dt-a", state=EngineState.WAITING)
RUNNING = EngineNode(name="dt-a", state=EngineState.RUNNING, started_at=1794980039)


def launch(status, **changes):
    known = {"created_at": 1794979983.77, "finished_at": 1794980048.93}
    known["finished_at"] = None if status in {"PENDING", "RUNNING"} else known["finished_at"]
    request = {"name": "sky.launch", "cluster_name": "dt-a", "status": status}
    return SkyRequest(**request, **{**known, **changes})


def down(status):
    moment = 1794980116.52
    return SkyRequest(name="sky.down", cluster_name="dt-a", status=status, created_at=moment)


def judged(*, cluster=None, requests=(), job=None, since=None):
    facts = SkyFacts(
        clusters=[] if cluster is None else [cluster],
        requests=list(requests),
        jobs={} if job is None else {"dt-a": job},
        now=NOW,
    )
    return nodes_of(facts, {} if since is None else {"dt-a": since})["dt-a"]


def test_a_launch_in_progress_waits_until_the_cluster_is_up():
    assert judged(requests=[launch("PENDING")]) == WAITING
    assert judged(requests=[launch("RUNNING")]) == WAITING
    assert judged(requests=[launch("RUNNING")], cluster=INIT) == WAITING
    assert judged(requests=[launch("RUNNING")], cluster=UP) == RUNNING
    assert judged(requests=[launch("SUCCEEDED")], cluster=UP) == RUNNING
    assert judged(cluster=UP) == RUNNING  # the server was restarted
    assert judged(cluster=SkyCluster("dt-a", "AUTOSTOPPING", 1794980039)) == RUNNING


@pytest.mark.parametrize("cluster", [None, INIT])
@pytest.mark.parametrize("status", ["FAILED", "CANCELLED"])
def test_a_launch_that_failed_was_never_granted(cluster, status):
    node = judged(cluster=cluster, requests=[launch(status, error="ValueError: no")])
    assert (node.state, node.end) == (EngineState.ENDED, NodeEnd.CAPACITY)
    assert (node.started_at, node.reason) == (None, "ValueError: no")


def test_a_cluster_that_nobody_launches_any_more_is_over():
    node = judged(cluster=INIT)
    assert (node.state, node.end, node.started_at) == (EngineState.ENDED, NodeEnd.CAPACITY, None)


def test_what_was_up_and_is_gone_was_taken_unless_somebody_gave_it_back():
    for asked in ((), (down("FAILED"),)):
        node = judged(requests=[launch("SUCCEEDED"), *asked], since=1794980039.0)
        assert (node.state, node.end) == (EngineState.ENDED, NodeEnd.CAPACITY)
        assert (node.started_at, node.ended_at) == (1794980039.0, NOW)
    given = judged(requests=[launch("SUCCEEDED"), down("SUCCEEDED")])
    assert (given.state, given.end, given.reason) == (EngineState.ENDED, None, "stopped")
    assert (given.started_at, given.ended_at) == (1794980048.93, 1794980116.52)
    forgotten = judged(since=1794980039.0)  # SkyPilot forgets requests after a day
    assert forgotten.end is NodeEnd.CAPACITY


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED", "FAILED_SETUP", "CANCELLED"])
def test_a_command_that_ended_ends_its_node(status):
    job = SkyJob(status, 1794980050.5, 1794980060.5)
    node = judged(cluster=UP, requests=[launch("SUCCEEDED")], job=job)
    assert (node.state, node.end, node.ended_at) == (EngineState.ENDED, None, 1794980060.5)
    assert node.reason == f"the command ended: {status}"


def test_a_command_that_runs_keeps_its_node():
    for status in ("INIT", "PENDING", "SETTING_UP", "RUNNING"):
        assert judged(cluster=UP, job=SkyJob(status)) == RUNNING


@pytest.mark.parametrize(("status", "end"), [("INIT", NodeEnd.DIED), ("STOPPED", NodeEnd.CAPACITY)])
def test_a_machine_that_was_up_and_is_not_usable_has_ended(status, end):
    broken = SkyCluster("dt-a", status, 1794980039)
    for known in ({"since": 1794980039.0}, {"requests": [launch("SUCCEEDED")]}):
        node = judged(cluster=broken, **known)
        assert (node.state, node.end, node.ended_at) == (EngineState.ENDED, end, NOW)

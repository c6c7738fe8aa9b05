from __future__ import annotations

import msgspec
import pytest

from duetune.core.events import Observed, Reported, Status
from duetune.core.fleet import Node, NodeKind, NodeState
from duetune.errors import InvalidInput, NotFound
from duetune.store.rows import CostBy
from duetune.testing.sample_events import story, submission

DAY = 86_400.0
RUNNING = next(event for event in story() if isinstance(event, Observed))


def submit(store, job, *, name="tuning", at=0.0, spec="{}", running=False, fleet=""):
    event = msgspec.structs.replace(submission(name=name, spec=spec), at=at, fleet=fleet)
    store.journal.append(job, [event, RUNNING][: 1 + running], expected=0)


def bill(store, job, node, *, kind, start, end, dollars):
    told = Node(
        id=node,
        job=job,
        kind=kind,
        state=NodeState.RELEASED,
        requested_at=start,
        started_at=start,
        ended_at=end,
        billed=dollars,
    )
    store.journal.append(job, [Reported(end, (told,))], expected=store.journal.length(job))


def test_jobs_come_newest_first_by_status_and_number(store):
    for number in range(4):
        submit(store, f"job-{number}", at=float(number), running=number % 2 == 1)
    assert [row.id for row in store.jobs()] == ["job-3", "job-2", "job-1", "job-0"]
    assert [row.id for row in store.jobs(limit=2)] == ["job-3", "job-2"]
    assert [row.id for row in store.jobs(status=Status.RUNNING)] == ["job-3", "job-1"]
    assert [row.id for row in store.jobs(status=[Status.QUEUED], limit=1)] == ["job-2"]
    assert len(store.jobs(status=[Status.QUEUED, Status.RUNNING])) == 4
    assert store.jobs(status=[]) == []


def test_a_job_is_found_by_id_name_or_beginning(store):
    submit(store, "ab12", name="first")
    submit(store, "ab34", name="second")
    submit(store, "AB56", name="third")
    assert store.job("ab12").name == "first"
    assert store.job("second").id == "ab34"
    assert store.job("ab3").id == "ab34"
    assert store.job("A").id == "AB56"


def test_an_id_goes_before_a_name_and_a_name_before_a_beginning(store):
    submit(store, "alpha", name="beta")
    submit(store, "beta", name="gamma")
    submit(store, "gamma-1", name="x")
    assert store.job("beta").id == "beta"
    assert store.job("gamma").id == "beta"


def test_what_fits_several_jobs_is_refused_and_they_are_named(store):
    submit(store, "ab12", at=1.0)
    submit(store, "ab34", at=2.0)
    for name in ("ab", "tuning"):
        with pytest.raises(InvalidInput) as refused:
            store.job(name)
        assert "these fit: ab34 (tuning), ab12 (tuning)" in str(refused.value)


def test_an_unknown_job_is_not_found_and_the_latest_are_named(store):
    with pytest.raises(NotFound, match=r"^no job named 'x'$"):
        store.job("x")
    for number in range(7):
        submit(store, f"job-{number}", at=float(number))
    for name in ("x", "", "%", "_", "job-0' OR '1'='1"):
        with pytest.raises(NotFound, match=r"known: job-6 \(tuning\), .*, \.\.\."):
            store.job(name)


@pytest.fixture
def billed(store):
    submit(store, "one", spec='{"tags": {"team": "nlp", "run": 7}}')
    submit(store, "two", spec='{"tags": {"team": "nlp"}}', fleet="campus")
    submit(store, "three", fleet="campus")
    spot, on_demand = NodeKind.SPOT, NodeKind.ON_DEMAND
    bill(store, "one", "a", kind=spot, start=DAY, end=DAY + 7200, dollars=2.0)
    bill(store, "one", "b", kind=on_demand, start=1.75 * DAY, end=3.25 * DAY, dollars=12.0)
    bill(store, "two", "a", kind=spot, start=2 * DAY, end=2 * DAY, dollars=0.5)
    bill(store, "three", "c", kind=spot, start=4 * DAY - 3600, end=4 * DAY, dollars=1.0)
    return store


@pytest.mark.parametrize(
    ("by", "lines"),
    [
        (CostBy.JOB, {"one": (14.0, 38.0, 2), "three": (1.0, 1.0, 1), "two": (0.5, 0.0, 1)}),
        (CostBy.KIND, {"on_demand": (12.0, 36.0, 1), "spot": (3.5, 3.0, 3)}),
        (
            CostBy.DAY,
            {
                "1970-01-02": (4.0, 8.0, 2),
                "1970-01-03": (8.5, 24.0, 2),
                "1970-01-04": (3.0, 7.0, 2),
            },
        ),
        (
            CostBy.TAG,
            {"": (1.0, 1.0, 1), "run=7": (14.0, 38.0, 2), "team=nlp": (14.5, 38.0, 3)},
        ),
        (CostBy.FLEET, {"": (14.0, 38.0, 2), "campus": (1.5, 1.0, 2)}),
    ],
)
def test_costs_are_added_up(billed, by, lines):
    found = {
        line.key: (line.dollars, line.gpu_hours, line.nodes) for line in billed.cost_report(by)
    }
    assert list(found) == list(lines)
    for key, numbers in lines.items():
        assert found[key] == pytest.approx(numbers)


def test_charges_are_those_of_a_job_or_all(billed):
    assert [charge.node for charge in billed.charges("one")] == ["a", "b"]
    assert sum(charge.dollars for charge in billed.charges()) == 15.5
    assert billed.charges("nobody") == []


def test_active_jobs_are_those_of_a_fleet_or_all(store):
    for number, fleet in enumerate(("campus", "", "embedded", "campus")):
        submit(store, f"job-{number}", at=float(number), fleet=fleet)
    assert store.active() == ["job-0", "job-1", "job-2", "job-3"]
    assert store.active(("campus",)) == ["job-0", "job-3"]
    assert store.active(("embedded", "")) == ["job-1", "job-2"]
    assert store.active(("nowhere",)) == []
    assert store.busy_fleets() == ["", "campus", "embedded"]


def test_hours_of_a_node_count_for_each_of_its_gpus(store):
    alone = submission()
    whole = msgspec.structs.replace(alone, task=msgspec.structs.replace(alone.task, gpus=8))
    store.journal.append("whole", [whole], expected=0)
    bill(store, "whole", "a", kind=NodeKind.SPOT, start=DAY, end=DAY + 7200, dollars=16.0)
    (line,) = store.cost_report(CostBy.JOB)
    assert (line.gpu_hours, line.nodes) == (16.0, 1)

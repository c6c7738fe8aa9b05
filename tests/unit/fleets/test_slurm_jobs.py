from __future__ import annotations

import json

import pytest

from duetune.core.fleet import NodeEnd
from duetune.errors import FleetError
from duetune.fleets.driver import EngineState
from duetune.fleets.slurm.slurm_jobs import one_per_name, read_jobs


def job(number=1, **changes):
    known = {
        "job_id": number,
        "name": "dt-a",
        "user_id": 1000,
        "job_state": "RUNNING",
        "state_reason": "None",
        "nodes": "n1",
        "start_time": 100,
        "end_time": 3700,
        "preempt_time": 0,
        "tres_per_node": "gres:gpu:1",
    }
    return {**known, **changes}


def read(*jobs):
    return read_jobs(json.dumps({"meta": {}, "errors": [], "jobs": jobs}))


def node(**changes):
    (found,) = read(job(**changes))
    return found.node()


def number(value):
    return {"set": True, "infinite": False, "number": value}


@pytest.mark.parametrize(
    ("word", "state", "end"),
    [
        ("PENDING", EngineState.WAITING, None),
        ("CONFIGURING", EngineState.WAITING, None),
        ("RUNNING", EngineState.RUNNING, None),
        ("COMPLETING", EngineState.RUNNING, None),
        ("SUSPENDED", EngineState.RUNNING, None),
        ("A_WORD_OF_LATER", EngineState.RUNNING, None),
        ("PREEMPTED", EngineState.ENDED, NodeEnd.CAPACITY),
        ("DEADLINE", EngineState.ENDED, NodeEnd.CAPACITY),
        ("TIMEOUT", EngineState.ENDED, NodeEnd.CAPACITY),
        ("NODE_FAIL", EngineState.ENDED, NodeEnd.DIED),
        ("BOOT_FAIL", EngineState.ENDED, NodeEnd.DIED),
        ("CANCELLED", EngineState.ENDED, None),
        ("COMPLETED", EngineState.ENDED, None),
        ("FAILED", EngineState.ENDED, None),
        ("OUT_OF_MEMORY", EngineState.ENDED, None),
    ],
)
def test_every_state_of_slurm_has_one_of_the_port(word, state, end):
    for shape in (word, [word]):
        found = node(job_state=shape)
        assert (found.state, found.end) == (state, end)


def test_flags_of_newer_versions_come_with_the_state():
    assert node(job_state=["CANCELLED", "COMPLETING"]).state is EngineState.RUNNING
    assert node(job_state=["RUNNING", "CONFIGURING"]).state is EngineState.WAITING
    assert node(job_state=["PREEMPTED", "UPDATE_DB"]).end is NodeEnd.CAPACITY


def test_numbers_of_newer_versions_are_records():
    found = node(start_time=number(100), end_time=number(200), job_state=["NODE_FAIL"])
    assert (found.started_at, found.ended_at) == (100.0, 200.0)
    unset = {"set": False, "infinite": False, "number": 0}
    assert node(start_time=unset, preempt_time=unset).started_at is None


def test_a_waiting_job_has_no_times_although_slurm_guesses_them():
    found = node(job_state="PENDING", nodes="", state_reason="Resources")
    assert (found.started_at, found.ended_at, found.reason) == (None, None, "Resources")


def test_a_request_that_was_withdrawn_never_started():
    found = node(job_state="CANCELLED", nodes="", start_time=200, end_time=200)
    assert (found.started_at, found.ended_at) == (None, 200.0)


def test_a_running_job_has_no_end_but_perhaps_a_notice():
    assert (node().ended_at, node().notice_at) == (None, None)
    assert node(preempt_time=150, end_time=165).notice_at == 165.0
    assert node(preempt_time=150, end_time=165, job_state="PREEMPTED").notice_at is None


@pytest.mark.parametrize("word", ["COMPLETED", "FAILED"])
def test_a_command_that_left_in_its_grace_time_was_preempted(word):
    assert node(job_state=word).end is None
    assert node(job_state=word, preempt_time=150).end is NodeEnd.CAPACITY


def test_an_end_has_a_reason():
    assert node(job_state="FAILED", state_reason="NonZeroExitCode").reason == (
        "FAILED (NonZeroExitCode)"
    )


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "squeue: error",
        "{}",
        '{"jobs": [{"name": "no number"}]}',
        json.dumps(
            {
                "errors": [
                    {"description": "Failed while looking for jobs", "error": "Unspecified error"}
                ],
                "jobs": [],
            }
        ),
    ],
)
def test_what_is_no_list_of_jobs_is_an_error_and_not_an_empty_list(printed):
    with pytest.raises(FleetError) as raised:
        read_jobs(printed)
    assert raised.value.retry


@pytest.mark.parametrize(
    ("states", "kept", "surplus"),
    [
        (["RUNNING"], 1, []),
        (["RUNNING", "PENDING"], 1, [2]),
        (["PENDING", "PENDING"], 1, [2]),
        (["COMPLETED", "PENDING"], 1, [2]),
        (["CANCELLED", "RUNNING"], 2, []),
        (["PENDING", "RUNNING"], 2, [1]),
    ],
)
def test_a_name_has_one_job_and_the_others_are_surplus(states, kept, surplus):
    numbered = [job(number, job_state=word) for number, word in enumerate(states, 1)]
    chosen, others = one_per_name(read(*reversed(numbered)))
    assert [each.job_id for each in chosen] == [kept]
    assert [each.job_id for each in others] == surplus

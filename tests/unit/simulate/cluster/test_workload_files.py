from __future__ import annotations

import io

import numpy as np
import pytest

from duetune.core.planning import Partition, Stock
from duetune.errors import InvalidInput
from duetune.simulate.cluster.workload import poisson_arrivals, workload
from duetune.simulate.cluster.workload_files import read_workload, write_workload
from support.small_cluster import MODEL, small_world

KINDS = small_world().kinds
OWN = "name,submitted_s,model,method,tokens_per_sample,tokens,deadline_s,priority,project\n"
SIA = "name,time,application,num_replicas,batch_size\n"
HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
)


@pytest.fixture
def read(tmp_path):
    def call(text, seed=0, **options):
        path = tmp_path / "jobs.csv"
        path.write_text(text)
        return read_workload(path, KINDS, np.random.default_rng(seed), **options)

    return call


def test_what_is_written_is_read_as_it_was(read):
    random = np.random.default_rng(4)
    jobs = workload(KINDS, poisson_arrivals(30, 17.0, random), random, slack=(1.5, 4.0))
    file = io.StringIO()
    write_workload(jobs, file)
    trace = read(file.getvalue(), seed=99)
    assert trace.jobs == jobs
    assert trace.form == "duetune"
    assert read(file.getvalue(), most=3).jobs == jobs[:3]


def test_bursts_come_at_once_and_as_many_jobs_an_hour_come_as_without():
    moments = poisson_arrivals(4000, 20.0, np.random.default_rng(1), burst=8.0)
    assert len(moments) == 4000
    assert (np.diff(moments) >= 0).all()
    assert 4000 / len(np.unique(moments)) == pytest.approx(8, rel=0.15)
    assert 4000 / moments[-1] * 3600 == pytest.approx(20, rel=0.15)
    alone = poisson_arrivals(4000, 20.0, np.random.default_rng(1))
    assert len(np.unique(alone)) == 4000


def test_rigid_jobs_survive_the_file_too(read):
    jobs = read(SIA + "a,10,bert,2,384\nb,20,bert,16,384\n", rigid=True).jobs
    file = io.StringIO()
    write_workload(jobs, file)
    assert read(file.getvalue()).jobs == jobs


def test_restarts_of_a_job_survive_the_file_too(read):
    jobs = read(OWN.strip() + f",restart_s\na,1,{MODEL},lora,1024,1,,,,250\n").jobs
    assert jobs[0].restart_s == 250.0
    file = io.StringIO()
    write_workload(jobs, file)
    assert read(file.getvalue()).jobs == jobs


def test_a_file_of_ours_may_leave_out_what_is_optional(read):
    row = "name,submitted_s,model,method,tokens_per_sample,tokens\na,0,llama3.2-1b,lora,1024,5e6\n"
    (job,) = read(row).jobs
    assert job.given == {"model": MODEL, "method": "lora", "tokens_per_sample": 1024}
    assert (job.tokens, job.deadline_s, job.priority, job.project) == (5e6, None, 0, "")


def test_sias_form_gives_arrivals_and_sizes_are_drawn(read):
    trace = read(SIA + "cifar10-0,107,cifar10,6,2048\nbert-1,110,bert,12,384\n")
    assert trace.form == "sia"
    assert [(job.name, job.submitted_s) for job in trace.jobs] == [
        ("cifar10-0", 107.0),
        ("bert-1", 110.0),
    ]
    assert all("num_gpus" not in job.given for job in trace.jobs)
    assert trace == read(SIA + "cifar10-0,107,cifar10,6,2048\nbert-1,110,bert,12,384\n")


def test_jobs_ask_for_no_more_gpus_than_the_cluster_can_give():
    stock = Stock((Partition(name="one", gpu_model="A100-80GB", nodes=1, gpus_per_node=2),))
    assert {kind.counts for kind in small_world(stock).kinds} == {(1, 2)}
    assert {kind.counts for kind in KINDS} == {(1, 2, 4, 8)}


def test_rigid_jobs_get_the_nearest_number_their_kind_can_run_with(read):
    rows = "a,0,x,1,1\nb,0,x,3,1\nc,0,x,6,1\nd,0,x,64,1\n"
    jobs = read(SIA + rows, rigid=True).jobs
    assert [job.given["num_gpus"] for job in jobs] == [1, 4, 8, 8]


def test_a_log_as_helios_has_it(read):
    rows = (
        "7,u1,vc1,4,24,1,COMPLETED,2020-05-01 10:30:00,,,1800,60\n"
        "5,u1,vc2,1,6,1,FAILED,2020-05-01 10:00:00,,,600,0\n"
        "8,u2,vc1,0,6,1,COMPLETED,2020-05-01 10:00:00,,,600,0\n"
        "9,u2,vc1,1,6,1,CANCELLED,2020-05-01 10:40:00,,,0,0\n"
    )
    trace = read(HELIOS + rows)
    assert (trace.form, trace.left_out) == ("log", 2)
    assert [(job.name, job.submitted_s, job.project) for job in trace.jobs] == [
        ("5", 0.0, "vc2"),
        ("7", 1800.0, "vc1"),
    ]
    paces = {tuple(kind.given.items()): kind.pace for kind in KINDS}
    for job, seconds in zip(trace.jobs, (600, 1800), strict=True):
        assert job.tokens == pytest.approx(seconds * paces[tuple(job.given.items())])


def test_a_table_as_philly_is_turned_into(read):
    rows = (
        "jobid,submitted_time,run_time,num_gpus\n"
        "a,2017-10-09 07:01:57,60,2\n"
        "a,2017-10-09T07:02:57+00:00,9.5,2\n"
    )
    jobs = read(rows, slack=(2.0, 2.0)).jobs
    assert [job.name for job in jobs] == ["a", "a-2"]
    assert [job.submitted_s for job in jobs] == [0.0, 60.0]
    assert [job.deadline_s for job in jobs] == [120.0, 79.0]


def test_seconds_of_any_epoch_begin_with_the_first_job(read):
    assert [job.submitted_s for job in read("submit_time\n1700000300\n1700000000\n").jobs] == [
        0,
        300,
    ]


def test_a_load_stretches_a_trace(read):
    rows = SIA + "".join(f"j{n},{n * n},x,1,1\n" for n in range(11))
    jobs = read(rows, per_hour=60.0).jobs
    assert jobs[0].submitted_s == 0.0
    assert jobs[-1].submitted_s == pytest.approx(600.0)
    assert jobs[5].submitted_s == pytest.approx(150.0)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", {}, "workload: .*this one is empty"),
        ("a,b\n1,2\n", {}, r"columns of jobs.csv: \['a', 'b'\] is not allowed; expected name, sub"),
        (OWN, {}, "workload: 'jobs.csv' is not allowed; expected at least one job"),
        (SIA + "a,soon,x,1,1\n", {}, "time in row 1 of jobs.csv: 'soon'.* expected seconds, or"),
        (SIA + "a,-5,x,1,1\n", {}, "time in row 1 of jobs.csv: '-5'"),
        (SIA + "a,nan,x,1,1\n", {}, "time in row 1 of jobs.csv"),
        (SIA + "a,1,x,1.5,1\n", {}, "num_replicas in row 1 of jobs.csv: '1.5'.* a whole number"),
        (SIA + "a,1,x,1\n", {}, "row in row 1 of jobs.csv: '4 fields'"),
        (SIA + "a,1,x,0,1\n", {}, "at least one job with GPUs"),
        ("submit_time,duration\n1,-4\n", {}, "duration in row 1 of jobs.csv: -4.0"),
        (SIA + "a,1,x,1,1\n", {"slack": (3.0, 2.0)}, r"slack: \[3.0, 2.0\]"),
        (SIA + "a,1,x,1,1\nb,2,x,1,1\n", {"per_hour": 0.0}, "load: 0.0"),
        (OWN + f"a,1,{MODEL},lora,1024,x,,,\n", {}, "tokens in row 1 of jobs.csv: 'x'"),
        (OWN + f"a,1,{MODEL},lora,1024,0,,,\n", {}, "a.tokens in row 1 of jobs.csv: 0.0"),
        (OWN + f"a,,{MODEL},lora,1024,1,,,\n", {}, "submitted_s in row 1 of jobs.csv: ''"),
        (OWN + f"a,1,{MODEL},lora,1024,1,inf,,\n", {}, "deadline_s in row 1 of jobs.csv: 'inf'"),
        (OWN + f"a,1,{MODEL},lora,1024,1,,0.5,\n", {}, "priority in row 1 of jobs.csv: 0.5"),
        (OWN + f"a,1,{MODEL},lara,1024,1,,,\n", {}, "method in row 1 of jobs.csv: 'lara'"),
        (OWN + f"a,1,{MODEL},lora,77,1,,,\n", {}, "tokens_per_sample in row 1 .* a kind of job"),
        (OWN + "a,1,gpt-5,lora,1024,1,,,\n", {}, "'gpt-5 lora 1024' .* a kind of job"),
        (OWN + f"a,1,{MODEL},lora,1024,1,,,\n" * 2, {}, "name in row 2 of jobs.csv: 'a'"),
        (OWN.replace("project", "colour"), {}, r"columns of jobs.csv: \['colour'\]"),
        (SIA + "a,1,x,1,1\n", {"per_hour": -1.0}, "load: -1.0 .* expected jobs per hour, above 0"),
        (OWN + f"a,1,{MODEL},lora,1024,1,,1001,\n", {}, "priority in .*: 1001.0.* -1000 to 1000"),
        (
            OWN.replace("project", "num_gpus") + f"a,1,{MODEL},lora,1024,1,,,3\n",
            {},
            "num_gpus in row 1 of jobs.csv: 3 is not allowed; expected .*: 1, 2, 4, 8",
        ),
        (OWN + f"a,1,{MODEL},lora,1024,1,,,\n", {"per_hour": 3.0}, "load: 3.0 .* jobs.csv itself"),
        (OWN + f"a,1,{MODEL},lora,1024,1,,,\n", {"rigid": True}, "rigid: True .* jobs.csv itself"),
        (OWN + f"a,1,{MODEL},lora,1024,1,,,\n", {"slack": (2.0, 6.0)}, "slack: '2:6' .* jobs.csv"),
    ],
)
def test_what_cannot_be_read_is_named(read, text, options, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        read(text, **options)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"workload: .*a readable CSV file"):
        read_workload(tmp_path / "nothing.csv", KINDS, np.random.default_rng(0))

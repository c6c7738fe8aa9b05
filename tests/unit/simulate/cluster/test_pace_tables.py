"""A world from a user's own table of paces."""

from __future__ import annotations

import json

import numpy as np
import pytest

from duetune.core.planning import DeclaredGpu, Partition, Stock
from duetune.errors import InvalidInput
from duetune.planners.queues import QueuePlanner
from duetune.planners.sia import Sia
from duetune.registry.clusters import cluster_from_file, declared_gpus
from duetune.simulate.cluster.pace_tables import read_paces, world_of_paces
from duetune.simulate.cluster.trial import Cluster
from duetune.simulate.cluster.workload import ClusterJob
from duetune.simulate.cluster.workload_files import read_workload, write_workload
from support.places import ROOT

HEAD = (
    "application,gpu_model,num_gpus,num_nodes,batch_size,pace,memory_gb,"
    "progress,efficiency,restart_s,work\n"
)
PACES = HEAD + (
    "vision,T4,1,,32,100,8,,,,\n"
    "vision,T4,1,,64,120,20,,,,\n"
    "vision,T4,2,,64,180,8,,,,\n"
    "vision,T4,4,1,64,300,8,,,,\n"
    "vision,T4,4,2,64,200,8,,,,\n"
    "speech,mine,1,,8,50,,,,,\n"
    "speech,mine,1,,16,60,,,,,\n"
    "speech,,,,16,,,,0.5,,\n"
    "speech,,,,16,,,0.5,1,,\n"
    "speech,,,,,,,,,25,60000\n"
)
DECLARED = {"mine": DeclaredGpu(memory_gb=24.0, price=0.5)}
STOCK = Stock(
    (
        Partition(name="t4", gpu_model="T4", nodes=2, gpus_per_node=2),
        Partition(name="mine", gpu_model="mine", nodes=1, gpus_per_node=1),
    )
)


@pytest.fixture
def read(tmp_path):
    def call(text, name="paces.csv"):
        path = tmp_path / name
        path.write_text(text)
        return read_paces(path)

    return call


@pytest.fixture
def world(read):
    return world_of_paces(read(PACES), STOCK, DECLARED)


def played(world, *jobs, planner=None, stock=STOCK):
    return Cluster(stock, world).simulate(jobs, planner or QueuePlanner(), world.truth).jobs


def job(application, work, **fields):
    given = {"model": application, **fields.pop("given", {})}
    return ClusterJob(name="a", submitted_s=0.0, given=given, tokens=work, **fields)


def test_a_job_does_what_the_table_says(world):
    (done,) = played(world, job("vision", 12_000.0, given={"num_gpus": 4}))
    # Four GPUs are on two nodes here; the row of one node does not count.
    assert done.finished_s == pytest.approx(60 + 12_000 / 200)


def test_what_needs_more_memory_than_the_gpu_has_runs_out_of_it(world):
    (done,) = played(world, job("vision", 12_000.0, given={"num_gpus": 1}))
    assert done.finished_s == pytest.approx(60 + 12_000 / 100)
    assert done.failures == 0


def test_efficiency_over_progress_changes_pace_and_batch(world):
    speech = next(kind for kind in world.kinds if kind.given == {"model": "speech"})
    assert (speech.work, speech.restart_s) == (60_000.0, 25.0)
    # The batch of 8 does 50 a second all along; that of 16 does 30, and 60 in the second half.
    (done,) = played(world, job("speech", 60_000.0, restart_s=25.0))
    first = 30_000 / 50
    # The better batch is taken in the first round that begins in the second half.
    turn = 60 * np.ceil((25 + first) / 60)
    rest = 60_000 - (turn - 25) * 50
    assert done.finished_s == pytest.approx(turn + rest / 60)
    assert done.restarts == 0
    (sia,) = played(world, job("speech", 60_000.0, restart_s=25.0), planner=Sia())
    assert sia.finished_s == done.finished_s


def test_json_says_the_same(read):
    rows = [
        {"application": "a", "gpu_model": "T4", "num_gpus": 1, "batch_size": 2, "pace": 3.5},
        {"application": "a", "restart_s": 30, "work": None},
    ]
    table = read(json.dumps(rows), "paces.json")
    assert table.paces[0].pace == 3.5
    assert (table.restart_s, table.work) == ({"a": 30.0}, {})
    with pytest.raises(InvalidInput, match=r"pace in row 1 of paces.json: 'fast'"):
        read(json.dumps([{**rows[0], "pace": "fast"}]), "paces.json")
    with pytest.raises(InvalidInput, match="JSON file with a list of objects"):
        read("{}", "paces.json")


def test_a_declared_gpu_may_be_like_another_and_faster(read):
    declared = {"next": DeclaredGpu(like="T4", speed=3.0)}
    stock = Stock((Partition(name="next", gpu_model="next", nodes=1, gpus_per_node=1),))
    world = world_of_paces(read(PACES), stock, declared)
    (done,) = played(world, job("vision", 36_000.0), stock=stock)
    assert done.finished_s == pytest.approx(60 + 36_000 / 360)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a,T4,1,,3,,,,,,", "pace in row 1 of paces.csv: '' .* work per second"),
        ("a,T4,1,,3,-1,,,,,", "pace in row 1 of paces.csv: '-1'"),
        ("a,T4,2,,3,1,,,,,", "batch_size in row 1 .*: 3 .* a multiple of num_gpus, 2"),
        ("a,T4,0,,3,1,,,,,", "num_gpus in row 1 .*: 0"),
        ("a,T4,x,,3,1,,,,,", "num_gpus in row 1 .*: 'x'"),
        (",T4,1,,3,1,,,,,", "application in row 1"),
        ("a,,1,,3,1,,,,,", "gpu_model in row 1 .* since the row has a num_gpus"),
        ("a,T4,1,,3,1,-2,,,,", "memory_gb in row 1"),
        ("a,T4,1,,3,1,,,0.5,,", "efficiency in row 1 .* no value in a row with a gpu_model"),
        ("a,,,,3,,,1,0.5,,", "progress in row 1 .*: '1'"),
        ("a,,,,3,,,0.2,0,,", "efficiency in row 1 .*: '0'"),
        ("a,,,,,,,0.2,0.5,,", "batch_size in row 1"),
        ("a,,,,,,,,,-1,", "restart_s in row 1 .*: '-1'"),
        ("a,,,,,,,,,,0", "work in row 1 .*: '0' .* above 0"),
        ("a,,,,,,,,,,", "pace in row 1 .* a pace, an efficiency"),
        ("a,T4,1,,3,1,,,,,\na,T4,1,,3,2,,,,,", "batch_size in row 2 .*: 3 .* no other row"),
        ("a,T4,1", "row in row 1"),
        ("a,,,,,,,,,1,", "paces: 'paces.csv' .* at least one row"),
    ],
)
def test_what_is_wrong_is_named_with_row_and_column(read, row, words):
    with pytest.raises(InvalidInput, match=words):
        read(HEAD + row + "\n")


def test_columns_and_gpus_that_are_not_there_are_named(read):
    with pytest.raises(InvalidInput, match=r"columns of paces.csv: \['speed'\]"):
        read("application,speed\na,1\n")
    other = Stock((Partition(name="p", gpu_model="H100", nodes=1, gpus_per_node=1),))
    with pytest.raises(InvalidInput, match="paces on shapes of this cluster: H100"):
        world_of_paces(read(PACES), other)


def test_a_trace_of_sias_format_names_its_applications(world, tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("name,time,application,num_replicas,batch_size\na,5,speech,1,8\n")
    (one,) = read_workload(path, world.kinds, np.random.default_rng(0)).jobs
    assert one == ClusterJob(
        name="a", submitted_s=5.0, given={"model": "speech"}, tokens=60_000.0, restart_s=25.0
    )
    with path.open("w") as file:
        write_workload([one], file)
    assert read_workload(path, world.kinds, np.random.default_rng(0)).jobs == (one,)
    path.write_text("name,time,application,num_replicas,batch_size\na,5,chess,1,8\n")
    with pytest.raises(InvalidInput, match=r"application in row 1 of jobs.csv: 'chess'"):
        read_workload(path, world.kinds, np.random.default_rng(0))


def test_a_cluster_file_declares_gpus(tmp_path):
    path = tmp_path / "cluster.yaml"
    good = "partitions:\n  - {gpu_model: mine, nodes: 1, gpus_per_node: 2}\ngpus:\n  mine:\n"
    path.write_text(good + "    memory_gb: 24\n    price: 0.5\n")
    stock, _ = cluster_from_file(path)
    assert (stock.partitions[0].gpu_model, stock.partitions[0].price) == ("mine", 0.5)
    assert declared_gpus(path) == DECLARED
    path.write_text(good + "    memory_gb: -1\n")
    with pytest.raises(InvalidInput, match=r"cluster.yaml:5 gpus: memory_gb: -1"):
        cluster_from_file(path)
    path.write_text(good.replace("mine", "T4") + "    price: 1\n")
    with pytest.raises(InvalidInput, match=r"cluster.yaml:4 gpus: 'T4' .* no GPU that duetune"):
        cluster_from_file(path)
    path.write_text(good.replace("mine:", "other:") + "    price: 1\n")
    with pytest.raises(InvalidInput, match=r"gpu_model: 'mine' .* or one that the file declares"):
        cluster_from_file(path)


def test_the_example_is_played_to_its_end():
    folder = ROOT / "examples" / "cluster"
    stock, _ = cluster_from_file(folder / "pace-cluster.yaml")
    declared = declared_gpus(folder / "pace-cluster.yaml")
    world = world_of_paces(read_paces(folder / "paces.csv"), stock, declared)
    random = np.random.default_rng(0)
    trace = read_workload(folder / "pace-jobs.csv", world.kinds, random, most=8)
    done = played(world, *trace.jobs, planner=Sia(), stock=stock)
    assert all(each.finished_s is not None for each in done)
    assert {kind.given["model"] for kind in world.kinds} == {"vision", "speech", "language"}

from __future__ import annotations

import numpy as np
import pytest

from duetune.core.planning import Tenure
from duetune.errors import InvalidInput
from duetune.jobs.trainer_facts import trainer_software
from duetune.jobs.trainer_knowledge import TrainerKnowledge
from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.registry.clusters import (
    cluster_from_file,
    cluster_of_nodes,
    world_named,
    world_source,
)
from duetune.settings import QueueSettings, load_settings
from duetune.wiring import QueueFile, live_queue
from support.small_cluster import STOCK, small_world

GOOD = """
partitions:
  - {name: ours, gpu_model: A100-80GB, nodes: 4, gpus_per_node: 8}
  - {gpu_model: l40s, nodes: 2, gpus_per_node: 4, tenure: spot, market: diurnal, price: 1.2}
  - name: rented
    gpu_model: A100-80GB
    nodes: 1
    gpus_per_node: 8
    tenure: on_demand
quotas: {research: 16}
"""


@pytest.fixture
def read(tmp_path):
    def call(text, seed=0):
        (tmp_path / "cluster.yaml").write_text(text)
        return cluster_from_file(tmp_path / "cluster.yaml", seed=seed)

    return call


def test_a_cluster_is_read_from_a_file(read):
    stock, markets = read(GOOD)
    ours, spot, rented = stock.partitions
    assert (ours.gpu_model, ours.gpus, ours.price, ours.tenure) == ("A100-80GB", 32, 1.6, "fixed")
    assert (spot.name, spot.gpu_model, spot.tenure) == ("l40s", "L40S", Tenure.SPOT)
    assert rented.tenure is Tenure.ON_DEMAND
    assert stock.quotas == {"research": 16}
    assert set(markets) == {"l40s"}
    assert markets["l40s"].available.max() <= 2
    assert markets["l40s"].on_demand_price[0, 0] / markets["l40s"].slot_hours == pytest.approx(1.2)
    again = read(GOOD)[1]["l40s"]
    assert np.array_equal(again.spot_price, markets["l40s"].spot_price)
    other = read(GOOD, seed=1)[1]["l40s"]
    assert not np.array_equal(other.spot_price, markets["l40s"].spot_price)


def test_a_recorded_market_is_found_beside_the_file(read, tmp_path):
    lines = ["time,spot_usd_gpu_h,on_demand_usd_gpu_h,available"]
    lines += [f"2026-01-01T0{hour}:00:00+00:00,0.5,1.0,{hour}" for hour in range(4)]
    (tmp_path / "prices.csv").write_text("\n".join(lines) + "\n")
    _, markets = read(
        "partitions:\n  - {name: s, gpu_model: L40S, nodes: 4, gpus_per_node: 1, tenure: spot,"
        " trace: prices.csv}\n"
    )
    assert markets["s"].available[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("partitions: []", "partitions: .* at least one"),
        ("nodes: 4", "cluster.yaml"),
        (GOOD.replace("l40s", "abacus"), "cluster.yaml:4 gpu_model: 'abacus'"),
        (GOOD.replace("nodes: 4", "nodes: -4"), "cluster.yaml:3 nodes: -4"),
        (GOOD.replace("nodes: 4", "nodes: many"), r"cluster.yaml:3 partitions\[0\].nodes: 'many'"),
        (
            GOOD.replace("nodes: 4", "knots: 4"),
            r"yaml:3 partitions\[0\] field: 'knots' is not allowed; expected one of gpu_model,",
        ),
        (
            GOOD + "x: 1",
            "yaml:11 field: 'x' is not allowed; expected one of partitions, quotas, gpus$",
        ),
        ("quotas: {}", "yaml partitions is required; expected a list of partitions$"),
        ("partitions: 3", "yaml:1 partitions: 3 is not allowed; expected a list of partitions$"),
        ("partitions: [3]", r"yaml:1 partitions\[0\]: 3 .* expected a mapping of fields$"),
        (
            GOOD.replace("gpu_model: l40s, ", ""),
            r"yaml:4 partitions\[1\].gpu_model is required; expected the name of a GPU$",
        ),
        (
            GOOD.replace(" nodes: 4,", ""),
            r"yaml:3 partitions\[0\].nodes is required; expected a whole number",
        ),
        (
            GOOD.replace("name: ours", "name: 7"),
            r"yaml:3 partitions\[0\].name: 7 .* expected text$",
        ),
        (
            GOOD.replace("1.2", "cheap"),
            r"yaml:4 partitions\[1\].price: 'cheap' .* expected a number$",
        ),
        (GOOD.replace("{research: 16}", "[16]"), "yaml:10 quotas: .* expected a mapping of proj"),
        (GOOD.replace("diurnal", "lunar"), "cluster.yaml:4 market: 'lunar'"),
        (GOOD.replace(", market: diurnal", ""), "cluster.yaml:4 market: ''"),
        (GOOD.replace("tenure: spot", "tenure: fixed"), "cluster.yaml:4 market: 'diurnal'"),
        (
            GOOD.replace("tenure: spot", "tenure: lent"),
            r"yaml:4 partitions\[1\].tenure: 'lent' .*; expected one of fixed, spot, on_demand$",
        ),
        (GOOD.replace("price: 1.2", "price: -1"), "cluster.yaml:4 price: -1"),
        (
            GOOD.replace("market: diurnal", "trace: none.csv"),
            "yaml:4 trace file: .* expected an existing file",
        ),
        (GOOD.replace("name: rented", "name: ours"), "partitions: .*different names"),
        (GOOD.replace("16", "x"), "yaml:10 quotas.research: 'x' .* a whole number$"),
        (GOOD.replace("16", "-1"), "cluster.yaml:10 quotas.research: -1"),
        ("partitions: [", "cluster.yaml"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(read, text, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        read(text)
    assert not set("\n`") & set(str(caught.value))
    assert "Object" not in str(caught.value)


def test_nodes_in_short():
    stock = cluster_of_nodes(["big=4x8:A100-80GB", "2x4:l40s"])
    assert [(each.name, each.gpus) for each in stock.partitions] == [("big", 32), ("l40s", 8)]


@pytest.mark.parametrize("text", ["4x8", "x8:L40S", "4x0:L40S", "4x8:abacus", "axb:L40S"])
def test_nodes_in_short_are_refused_where_they_say_nothing(text):
    with pytest.raises(InvalidInput):
        cluster_of_nodes([text])


def test_the_oracle_knows_the_truth_and_others_what_was_measured():
    world = small_world()
    assert len(world_source("oracle", world).history) == len(world.truth.history)
    assert len(world_source("nearest", world).source.history) == len(world.known)
    noisy = world_source("noisy:0.1:oracle", world)
    assert len(noisy.source.history) == len(world.truth.history)


def test_worlds_by_name():
    history = small_world().truth.history
    assert world_named("replay", STOCK, history).how == "replay"
    with pytest.raises(InvalidInput, match="world: 'dream'"):
        world_named("dream", STOCK)


def test_the_queue_is_read_again_and_the_last_good_one_is_kept(tmp_path, caplog):
    config = tmp_path / "config.toml"
    config.write_text("[queue]\ngpus = 2\n")
    queue = QueueFile(load_settings({"DUETUNE_HOME": str(tmp_path)}))
    first = queue()
    assert (first.gpus, queue() is first) == (2, True)
    config.write_text("[queue]\ngpus = 5\n")
    assert queue() is first, "it may still be being written"
    assert queue().gpus == 5
    for wrong in ("[queue]\ngpus = 0\n", '[queue]\nplanner = "nope"\n', "[queue"):
        config.write_text(wrong)
        assert [queue().gpus for _ in range(3)] == [5, 5, 5]
    assert caplog.text.count("the queue stays as it was: ") == 3
    config.unlink()
    queue()
    assert not queue().limited


def test_a_planner_that_is_not_known_is_refused_without_a_limit_too():
    with pytest.raises(InvalidInput, match=r"queue\.planner: 'nope' .* expected one of fifo"):
        live_queue(QueueSettings(planner="nope"))
    assert not live_queue(QueueSettings(planner="fifo")).limited


def test_planners_are_told_of_our_trainer_what_fits_and_plan_say():
    software = trainer_software()
    rows = Configurations.of(
        Configuration(
            model="llama3.1-8b",
            method="full",
            gpu_model="A100-80GB",
            num_gpus=gpus,
            batch_size=gpus,
            precision="bf16-mixed",
            sharding="none" if gpus == 1 else "ddp",
            software=each,
        ).replace()
        for gpus in (1, 4)
        for each in (software, "")
    )
    asked = world_source("analytic", small_world()).query(rows)
    configurator = TrainerKnowledge(AnalyticSource(), software).query(rows)
    assert (asked.memory_gb == configurator.memory_gb).all()
    assert (asked.p_valid == configurator.p_valid).all()
    assert asked.memory_gb[0, 1] > AnalyticSource().query(rows).memory_gb[0, 1]
    assert world_source("random", small_world()).name == "random"

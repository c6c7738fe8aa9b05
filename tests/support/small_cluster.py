"""Small clusters whose truth is a formula, for tests of planners and of the simulator."""

from __future__ import annotations

import msgspec

from duetune.core.planning import Partition, Stock
from duetune.knowledge.configurations.configuration import Configuration
from duetune.knowledge.history import History
from duetune.knowledge.listed_space import Listing
from duetune.knowledge.observation import Observation, RunOutcome
from duetune.knowledge.sources.past_runs import OracleSource
from duetune.simulate.cluster.cluster_outcome import What
from duetune.simulate.cluster.cluster_world import ClusterWorld, Supply
from duetune.simulate.cluster.job_views import Briefing
from duetune.simulate.cluster.rounds import Delays, Simulation, Truth
from duetune.simulate.cluster.workload import kinds_of

MODEL = "meta-llama/Llama-3.2-1B"
SPEED = {"A100-80GB": 2000.0, "L40S": 1000.0}
STOCK = Stock(
    (
        Partition(name="large", gpu_model="A100-80GB", nodes=2, gpus_per_node=4, price=2.0),
        Partition(name="small", gpu_model="L40S", nodes=2, gpus_per_node=2, price=1.0),
    )
)


def pace_of(configuration):
    """Tokens per second; 0 where it does not fit: on an L40S a batch of 16 for each GPU."""
    each = configuration
    if each.gpu_model == "L40S" and each.batch_size >= 16 * each.num_gpus:
        return 0.0
    faster = {4: 0.7, 16: 1.0}[each.batch_size // each.num_gpus]
    method = 1.2 if each.method == "lora" else 1.0
    return SPEED[each.gpu_model] * each.num_gpus**0.9 * faster * method


def small_world(stock=STOCK):
    """Two kinds of job, with one, two, four and (on two nodes) eight GPUs."""
    sizes = {each.gpu_model: each.gpus_per_node for each in stock.partitions}
    rows = [
        Configuration(
            model=MODEL,
            method=method,
            gpu_model=gpu,
            num_gpus=gpus,
            num_nodes=-(-gpus // size),
            batch_size=batch * gpus,
            sharding="none" if gpus == 1 else "fsdp",
        ).replace()
        for method in ("full", "lora")
        for gpu, size in sizes.items()
        for gpus in (1, 2, 4, 8)
        if gpus <= 2 * size
        for batch in (4, 16)
    ]
    runs = [
        Observation(
            configuration=each,
            outcome=RunOutcome.VALID if pace_of(each) else RunOutcome.OOM,
            tokens_per_s=pace_of(each) or None,
        )
        for each in rows
    ]
    truth = OracleSource(History(runs))
    space = Listing.of(rows)
    known = History(runs[::2])
    return ClusterWorld("replay", truth, space, known, kinds_of(truth, space, stock, least=4))


class Watched(Simulation):
    """Notes what each job had in each round, and refuses what cannot be."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seen = []

    def _record(self, stock, now):
        free = [[each.gpus_per_node] * each.nodes for each in stock.partitions]
        for each in self.live:
            if each.placement is None:
                continue
            size = stock.partitions[each.placement.partition].gpus_per_node
            whole = all(gpus == size for _, gpus in each.placement.nodes)
            assert len(each.placement.nodes) == 1 or whole, "part of a node was split"
            for node, gpus in each.placement.nodes:
                free[each.placement.partition][node] -= gpus
            price = stock.partitions[each.placement.partition].price
            self.seen.append(
                (each.job.name, now, each.placement.gpus, price, each.pace, each.pending)
            )
        assert all(left >= 0 for nodes in free for left in nodes), "a node was given out twice"
        return super()._record(stock, now)


def watched(jobs, planner, source, world, *, stock=STOCK, markets=None, **options):
    """The simulation, and what came of it."""
    delays = msgspec.structs.replace(Delays(), **options.pop("delays", {}))
    supply = Supply(stock, markets)
    briefing = Briefing(source, world.space, supply.stock, **options)
    simulation = Watched(jobs, supply, planner, briefing, Truth(world.truth), delays)
    return simulation, simulation.run()


def changes(outcome, *kinds):
    return [
        (each.at_s, change.job, What(change.what))
        for each in outcome.rounds
        for change in each.changes
        if not kinds or change.what in kinds
    ]

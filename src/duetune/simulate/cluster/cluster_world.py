"""Simulated worlds: which GPUs are there over time, and what configurations really do.

A replay knows only measurements: jobs choose among the configurations that were run and perform as
those did. An emulation fills a grid of configurations with the predictions of a model fitted to
measurements. It has configurations of every kind, and many that run out of memory. But a source
that learns from it learns from a model, which favours models of the same form.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.cluster_physics import HOUR_S
from duetune.core.planning import Partition, Stock, Tenure
from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configurations, Sharding
from duetune.knowledge.configurations.configuration_rules import broken
from duetune.knowledge.facts.gpus import USUAL_PRICES
from duetune.knowledge.facts.model_registry import model_name
from duetune.knowledge.history import History
from duetune.knowledge.listed_space import Listing
from duetune.knowledge.model.learned_model import KnowledgeModel
from duetune.knowledge.observation import Observation, Origin, RunOutcome
from duetune.knowledge.sources.knowledge_source import KnowledgeSource
from duetune.knowledge.sources.past_runs import OracleSource
from duetune.simulate.cluster.efficiency import EfficiencyTable
from duetune.simulate.cluster.workload import WorkloadKind, kinds_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duetune.core.market import MarketTrace


class Supply:
    """The stock of GPUs over time: fixed nodes stay, rented ones follow a market.

    ``markets`` maps the name of a partition to its market. A spot partition takes nodes and price
    from it, an on-demand partition only the price. A market that ends starts again.
    """

    def __init__(self, stock: Stock, markets: Mapping[str, MarketTrace] | None = None) -> None:
        self.markets = dict(markets or {})
        known = {each.name: each for each in stock.partitions}
        for name in self.markets:
            if name not in known:
                raise InvalidInput("market", name, f"a partition: {', '.join(known)}")
            if known[name].tenure is Tenure.FIXED:
                raise InvalidInput("market", name, "a partition of spot or on-demand nodes")
        # Shapes are numbered for the largest stock, so their numbers never change.
        self.stock = Stock(
            tuple(msgspec.structs.replace(each, most=each.most_nodes) for each in stock.partitions),
            stock.quotas,
        )
        self._at: dict[tuple[int, ...], Stock] = {}

    def at(self, seconds: float) -> Stock:
        """Return the stock at this time, in seconds since the simulation began."""
        if not self.markets:
            return self.stock
        slots = tuple(
            int(seconds / (trace.slot_hours * HOUR_S) + 1e-9) % trace.slots
            for trace in self.markets.values()
        )
        if slots not in self._at:
            self._at[slots] = self._stock(dict(zip(self.markets, slots, strict=True)))
        return self._at[slots]

    def _stock(self, slots: Mapping[str, int]) -> Stock:
        partitions = []
        for each in self.stock.partitions:
            if each.name not in slots:
                partitions.append(each)
                continue
            trace = self.markets[each.name]
            slot = trace.slot(slots[each.name])
            spot = each.tenure is Tenure.SPOT
            price = slot.spot_price if spot else slot.on_demand_price
            partitions.append(
                msgspec.structs.replace(
                    each,
                    nodes=min(each.most, slot.available) if spot else each.most,
                    price=price / trace.slot_hours,
                )
            )
        return Stock(tuple(partitions), self.stock.quotas)


EMULATED_MODELS = ("llama3.2-3b", "mistral-7b-v0.1", "llama3.1-8b")
EMULATED_METHODS = ("full", "lora")
EMULATED_TOKENS = (512, 1024, 2048, 4096, 8192)
EMULATED_COUNTS = (1, 2, 4, 8)
EMULATED_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
EXECUTED = 600
NOISE = 0.05
"""The standard deviation of the logarithm of a measured pace."""


class ClusterWorld(msgspec.Struct, frozen=True, eq=False):
    """What a simulation takes for reality.

    - ``how`` is "replay", "emulated" or "pace table".
    - ``truth`` answers for every configuration of ``space``.
    - ``known`` is the history that sources start with.
    - ``kinds`` are the kinds of jobs that a workload may contain.
    - ``efficiency`` is the share of a pace that counts as progress; None means all of it.
    """

    how: str
    truth: KnowledgeSource
    space: Listing
    known: History
    kinds: tuple[WorkloadKind, ...]
    efficiency: EfficiencyTable | None = None


def usual_stock() -> Stock:
    """Return the default cluster: 32 A100 with NVLink, 16 with PCIe and 16 L40S at usual prices."""
    return Stock(
        tuple(
            Partition(
                name=name,
                gpu_model=gpu,
                nodes=nodes,
                gpus_per_node=gpus,
                price=USUAL_PRICES[gpu],
            )
            for name, gpu, nodes, gpus in (
                ("a100", "A100-80GB", 4, 8),
                ("a100-pcie", "A100-80GB-PCIe", 4, 4),
                ("l40s", "L40S", 4, 4),
            )
        )
    )


def replayed(
    history: History, stock: Stock, *, seed: int = 0, share: float = 0.5, least: int = 8
) -> ClusterWorld:
    """Return a world of measured runs.

    Jobs are of the kinds with at least ``least`` configurations. Sources start with a random
    ``share`` of the runs.
    """
    believed = History(history.plausible)
    gpus = {each.gpu_model for each in stock.partitions}
    runs = [
        each
        for each in believed
        if each.configuration.gpu_model in gpus
        and each.outcome in {RunOutcome.VALID, RunOutcome.OOM}
        and (each.outcome is RunOutcome.OOM or each.tokens_per_s is not None)
    ]
    if not runs:
        raise InvalidInput("history", len(believed), f"runs on {' or '.join(sorted(gpus))}")
    truth = OracleSource(History(runs))
    space = Listing.of({each.configuration.key: each.configuration for each in runs}.values())
    drawn = np.random.default_rng(seed).permutation(len(believed))[: round(share * len(believed))]
    known = History(believed[int(row)] for row in np.sort(drawn))
    kinds = kinds_of(truth, space, stock, least=least)
    if not kinds:
        raise InvalidInput(
            "history",
            len(runs),
            f"runs with at least {least} configurations of one model, method and length",
        )
    return ClusterWorld("replay", truth, space, known, kinds)


def emulated(
    history: History,
    stock: Stock,
    *,
    models: Sequence[str] = EMULATED_MODELS,
    seed: int = 0,
    executed: int = EXECUTED,
) -> ClusterWorld:
    """Return a world in which the predictions of a model fitted to ``history`` are the truth.

    Sources start with ``executed`` of its configurations, measured with 5% noise.
    """
    model = KnowledgeModel.fit(history)
    gpus = tuple(dict.fromkeys(each.gpu_model for each in stock.partitions))
    by_size = itertools.product(EMULATED_COUNTS, {each.gpus_per_node for each in stock.partitions})
    grid = Configurations.grid(
        {
            "model": tuple(model_name(each) for each in models),
            "method": EMULATED_METHODS,
            "gpu_model": gpus,
            "num_gpus": EMULATED_COUNTS,
            "batch_size": EMULATED_BATCHES,
            "tokens_per_sample": EMULATED_TOKENS,
            "num_nodes": tuple(sorted({math.ceil(n / size) for n, size in by_size})),
            "sharding": (Sharding.NONE, Sharding.FSDP),
        }
    )
    placed = np.zeros(len(grid), np.bool_)
    for each in stock.partitions:
        nodes = np.ceil(grid.number("num_gpus") / each.gpus_per_node)
        placed |= grid.is_("gpu_model", each.gpu_model) & (grid.number("num_nodes") == nodes)
    kept = (grid.number("num_gpus") == 1) == grid.is_("sharding", "none")
    kept &= placed & (broken(grid) < 0)
    grid = grid.take(np.flatnonzero(kept))
    estimates = model.estimate(grid)
    fits = (estimates.p_valid >= 0.5) & (estimates.tokens_per_s[:, 1] > 0)
    runs = [
        Observation(
            configuration=configuration,
            outcome=RunOutcome.VALID if fits[row] else RunOutcome.OOM,
            tokens_per_s=float(estimates.tokens_per_s[row, 1]) if fits[row] else None,
            origin=Origin.CAMPAIGN,
            provenance="emulated",
        )
        for row, configuration in enumerate(grid)
    ]
    truth = OracleSource(History(runs))
    space = Listing.of(grid)
    random = np.random.default_rng(seed)
    drawn = np.sort(random.permutation(len(runs))[:executed])
    known = History(_measured(runs[int(row)], random) for row in drawn)
    kinds = kinds_of(truth, space, stock)
    if not kinds:
        words = ", ".join(f"{each.most_nodes}x{each.gpus_per_node}" for each in stock.partitions)
        raise InvalidInput("nodes", words, f"GPUs that one of {', '.join(models)} fits on")
    return ClusterWorld("emulated", truth, space, known, kinds)


def _measured(run: Observation, random: np.random.Generator) -> Observation:
    """Return the run with noise on its pace."""
    if run.tokens_per_s is None:
        return run
    pace = run.tokens_per_s * float(np.exp(NOISE * random.standard_normal()))
    return msgspec.structs.replace(run, tokens_per_s=pace)

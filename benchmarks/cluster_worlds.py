"""The worlds of the cluster benchmark: jobs, what sources know, and GPUs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.planning import Partition, Stock, Tenure
from duetune.errors import NotFound
from duetune.knowledge.facts.gpus import USUAL_PRICES
from duetune.knowledge.history import History
from duetune.knowledge.observation import RunOutcome
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.knowledge.sources.blind import DefaultSource, RandomSource
from duetune.knowledge.sources.decorators import Noisy, Partial
from duetune.knowledge.sources.learned import HybridSource
from duetune.knowledge.sources.proportional import ProportionalSource
from duetune.market.datasets import spot_traces_slots
from duetune.market.synthetic import synthetic_market
from duetune.simulate.cluster.cluster_world import (
    EMULATED_MODELS,
    ClusterWorld,
    emulated,
    replayed,
    usual_stock,
)
from duetune.simulate.cluster.rounds import Delays, Truth
from knowledge_data import absent, table

if TYPE_CHECKING:
    from duetune.core.market import MarketTrace
    from duetune.knowledge.observation import Observation
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource

REPLAY, EMULATED = "replay", "emulated"
REPLAY_ALL = "replay of both tables"
ONE_TABLE = ("ibm",)
TABLES = ("ibm", "sample")
LARGE_MODELS = ("llama3.1-8b", "granite-13b-v2", "mixtral-8x7b-v0.1", "llama3.1-70b")
SLOW = Delays(start_s=120.0, restart_s=120.0, failed_s=240.0)
SLOWER = Delays(start_s=250.0, restart_s=250.0, failed_s=500.0)
NODES = 4
MARKETS = ("synthetic", "real")
SPOT_SHARE = 0.35
"""Of the price on demand, where a real trace of availability has no price."""


class Setting(msgspec.Struct, frozen=True):
    """A world: its jobs, the cost of a start, and in words what is unusual about it."""

    name: str
    how: str
    jobs: int
    delays: Delays = Delays()
    models: tuple[str, ...] = EMULATED_MODELS
    words: str = "as usual"
    tables: tuple[str, ...] = TABLES


SETTINGS = {
    each.name: each
    for each in (
        Setting(REPLAY, REPLAY, 150, tables=ONE_TABLE),
        Setting(REPLAY_ALL, REPLAY, 150),
        Setting(EMULATED, EMULATED, 120),
        Setting("slow", EMULATED, 120, SLOW, words="starts 120 s, failed ones 240 s"),
        Setting("slower", EMULATED, 120, SLOWER, words="starts 250 s, failed ones 500 s"),
        Setting("large", EMULATED, 120, models=LARGE_MODELS, words="models of 8 to 70 billion"),
        Setting(
            "large-slower",
            EMULATED,
            120,
            SLOWER,
            LARGE_MODELS,
            words="models of 8 to 70 billion, starts 250 s, failed ones 500 s",
        ),
    )
}


def missing() -> list[str]:
    """Return why tables are absent; without any of them nothing is simulated."""
    return [reason for name in TABLES if (reason := absent(name)) is not None]


class Prepared:
    """A setting with its worlds, one for each draw of the runs that sources learn from.

    Trial number k uses draw k, in turn.
    """

    def __init__(self, setting: Setting, worlds: tuple[ClusterWorld, ...]) -> None:
        self.setting, self.worlds = setting, worlds
        self._sources: dict[tuple[str, int], KnowledgeSource] = {}
        self._truths: dict[int, Truth] = {}

    def world(self, seed: int) -> ClusterWorld:
        return self.worlds[seed % len(self.worlds)]

    def truth(self, seed: int) -> Truth:
        """Return the truth, one for all trials: it remembers its answers."""
        return self._truths.setdefault(seed % len(self.worlds), Truth(self.world(seed).truth))

    def source(self, name: str, seed: int) -> KnowledgeSource:
        """Return a source; frozen ones are shared, those that draw depend on the seed."""
        match name.split(":"):
            case ["random"]:
                return RandomSource(seed)
            case ["noisy", mape]:
                return Noisy(self.source("hybrid", seed), float(mape), seed=seed)
            case ["biased", bias]:
                return Noisy(self.source("hybrid", seed), 0.0, float(bias), seed)
        key = (name, seed % len(self.worlds))
        if key not in self._sources:
            self._sources[key] = self._made(name, self.world(seed), seed)
        return self._sources[key]

    def fit(self, *names: str) -> None:
        """Fit what takes seconds, before processes are started that share it."""
        for draw in range(len(self.worlds)):
            for name in names:
                rows = self.world(draw).space.rows
                self.source(name, draw).query(rows.take(np.arange(min(1, len(rows)))))

    def _made(self, name: str, world: ClusterWorld, seed: int) -> KnowledgeSource:
        match name.split(":"):
            case ["default"]:
                return DefaultSource()
            case ["analytic"]:
                return AnalyticSource()
            case ["proportional"]:
                return ProportionalSource(profiled(world))
            case ["oracle"]:
                return world.truth
            case ["hybrid"]:
                return HybridSource(world.known)
            case ["nothing"]:
                return HybridSource(History.empty())
            case ["share", share]:
                return HybridSource(older(world.known, float(share)))
            case ["partial", fields]:
                return Partial(self.source("hybrid", seed), fields.split("+"))
        raise NotFound("source", name, "a source of this benchmark")


def prepared(name: str, draws: int, seed: int) -> Prepared:
    """Return a setting with ``draws`` draws of what sources learn from."""
    setting = SETTINGS[name]
    stock = usual_stock()
    history = functools.reduce(
        lambda one, other: one.plus(other), (table(each) for each in setting.tables)
    )
    worlds = tuple(
        replayed(history, stock, seed=seed + draw)
        if setting.how == REPLAY
        else emulated(history, stock, models=setting.models, seed=seed + draw)
        for draw in range(draws)
    )
    return Prepared(setting, worlds)


def profiled(world: ClusterWorld) -> History:
    """Return what Sia measures, for every batch size and for free: each cell and GPU type on the
    fewest GPUs that work, mostly one.
    """
    runs = world.truth.history  # type: ignore[attr-defined] # that of an oracle
    fewest: dict[tuple[object, ...], int] = {}
    for each in runs:
        if each.outcome is RunOutcome.VALID:
            cell, count = _cell(each), each.configuration.num_gpus
            fewest[cell] = min(count, fewest.get(cell, count))
    return History(
        each for each in runs if each.configuration.num_gpus <= fewest.get(_cell(each), 0)
    )


def _cell(run: Observation) -> tuple[object, ...]:
    each = run.configuration
    return each.model, each.method, each.tokens_per_sample, each.gpu_model


def older(history: History, share: float) -> History:
    """Return the first part of a history."""
    return History(list(history)[: round(share * len(history))])


def half_stock() -> Stock:
    """Return half of the usual GPUs, the owned part where the rest is bought on a market."""
    return Stock(
        tuple(
            msgspec.structs.replace(each, nodes=each.nodes // 2)
            for each in usual_stock().partitions
        )
    )


def spot_stock() -> Stock:
    """Return the owned half and up to four spot nodes of two kinds."""
    spot = tuple(
        Partition(
            name=f"{gpu.lower()}-spot",
            gpu_model=gpu,
            nodes=NODES,
            gpus_per_node=gpus,
            tenure=Tenure.SPOT,
            price=USUAL_PRICES[gpu] * SPOT_SHARE,
        )
        for gpu, gpus in (("A100-80GB", 8), ("L40S", 4))
    )
    return Stock((*half_stock().partitions, *spot))


def spot_markets(seed: int, kind: str) -> dict[str, MarketTrace]:
    """Return the spot markets of the two kinds of node.

    "real": how many of four nodes AWS zones gave, at a fixed share of the price; "synthetic":
    counts and prices of a market that switches regimes.
    """
    stock = spot_stock()
    random = np.random.default_rng(seed)
    markets = {}
    for number, each in enumerate(part for part in stock.partitions if part.tenure is Tenure.SPOT):
        on_demand = USUAL_PRICES[each.gpu_model]
        if kind == "real":
            markets[each.name] = _real(seed + number, on_demand, random)
        else:
            markets[each.name] = synthetic_market(
                "regime_switching",
                random=random,
                slots=960,
                max_available=NODES,
                on_demand_usd_gpu_h=on_demand,
            )
    return markets


def _real(number: int, on_demand: float, random: np.random.Generator) -> MarketTrace:
    """Return a zone from a random moment on; the part before comes last."""
    trace = _zones(on_demand)
    pool = trace.pool(trace.pools[number % len(trace.pools)].name)
    begin = int(random.integers(pool.slots))
    return msgspec.structs.replace(pool, available=np.roll(pool.available, -begin, axis=1))


@functools.cache
def _zones(on_demand: float) -> MarketTrace:
    return spot_traces_slots(
        on_demand_usd_gpu_h=on_demand,
        spot_usd_gpu_h=SPOT_SHARE * on_demand,
        trace_set="preemption/4-node/aws-08-03-2023",
    )

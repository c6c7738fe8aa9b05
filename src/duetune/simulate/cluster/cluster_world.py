"""Worlds to simulate: which configurations there are and what they really do.

A replay knows only what was measured: jobs may choose among the very configurations that were run,
and do what those did. An emulation fills a grid with what a model fitted to measurements says, so
there are configurations of every kind, and many that run out of memory; but what learns from it
learns from a model, which flatters one of the same form.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.planning import Partition, Stock
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
from duetune.simulate.cluster.workload import WorkloadKind, kinds_of

if TYPE_CHECKING:
    from collections.abc import Sequence


EMULATED_MODELS = ("llama3.2-3b", "mistral-7b-v0.1", "llama3.1-8b")
EMULATED_METHODS = ("full", "lora")
EMULATED_TOKENS = (512, 1024, 2048, 4096, 8192)
EMULATED_COUNTS = (1, 2, 4, 8)
EMULATED_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
EXECUTED = 600
NOISE = 0.05


class ClusterWorld(msgspec.Struct, frozen=True, eq=False):
    """``truth`` answers for every configuration of ``space``; ``known`` is the history that sources
    begin with. ``how`` is "replay" or "emulated".
    """

    how: str
    truth: KnowledgeSource
    space: Listing
    known: History
    kinds: tuple[WorkloadKind, ...]


def usual_stock() -> Stock:
    """32 A100 with NVLink, 16 with PCIe and 16 L40S, at what they usually cost."""
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
    """Jobs of the cells with at least so many configurations; sources begin with a random ``share``
    of the runs.
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
            f"a model, method and length with {least} or more configurations that were run",
        )
    return ClusterWorld("replay", truth, space, known, kinds)


def emulated(
    history: History,
    stock: Stock,
    *,
    models: Sequence[str] = EMULATED_MODELS,
    seed: int = 0,
    executed: int = EXECUTED,
    noise: float = NOISE,
) -> ClusterWorld:
    """What a model fitted to ``history`` says, taken for the truth; sources begin with ``executed``
    of its configurations, measured with that much noise.
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
    known = History(_measured(runs[int(row)], noise, random) for row in drawn)
    kinds = kinds_of(truth, space, stock)
    if not kinds:
        words = ", ".join(f"{each.most_nodes}x{each.gpus_per_node}" for each in stock.partitions)
        raise InvalidInput("nodes", words, f"GPUs that one of {', '.join(models)} fits on")
    return ClusterWorld("emulated", truth, space, known, kinds)


def _measured(run: Observation, noise: float, random: np.random.Generator) -> Observation:
    if run.tokens_per_s is None:
        return run
    pace = run.tokens_per_s * float(np.exp(noise * random.standard_normal()))
    return msgspec.structs.replace(run, tokens_per_s=pace)

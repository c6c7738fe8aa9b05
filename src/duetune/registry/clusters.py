"""Clusters and worlds to simulate, from files and names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.conversion import refusal
from duetune.core.planning import Partition, Stock, Tenure
from duetune.errors import InvalidInput
from duetune.registry.sources import shipped_history, source_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.market import MarketTrace
    from duetune.jobs.spec.yaml_document import Document
    from duetune.knowledge.history import History
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource
    from duetune.simulate.cluster.cluster_world import ClusterWorld

WORLDS = ("emulated", "physics", "replay")
_NODES = re.compile(r"(?:(?P<name>[^=:]+)=)?(?P<nodes>\d{1,6})x(?P<gpus>\d{1,4}):(?P<gpu>.+)")
_WEEKS = 2 * 336
_ALLOWED = {
    "partitions": "a list of partitions",
    "quotas": "a mapping of projects to whole numbers of GPUs",
    "gpu_model": "the name of a GPU",
    "tenure": f"one of {', '.join(Tenure)}",
}
"""What is allowed in a cluster file, where its type does not say it."""


class _Partition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``nodes`` of a market's are the most there can be. ``price`` is on demand, the usual one if
    not said; what spot costs of it is up to the ``market``, a synthetic kind, or the ``trace``.
    """

    gpu_model: str
    nodes: int
    gpus_per_node: int
    name: str = ""
    tenure: Tenure = Tenure.FIXED
    price: float | None = None
    market: str = ""
    trace: str = ""
    pool: str | None = None


class _Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    partitions: tuple[_Partition, ...]
    quotas: dict[str, int] = {}


def cluster_from_file(path: Path | str, *, seed: int = 0) -> tuple[Stock, dict[str, MarketTrace]]:
    """The stock, and by name of a partition the market that it comes from."""
    from duetune.jobs.spec.yaml_document import read_document

    document = read_document(Path(path), "cluster")
    said = _said(document)
    partitions = []
    markets: dict[str, MarketTrace] = {}
    for number, each in enumerate(said.partitions):
        try:
            partition = _partition(each)
            market = _market(each, partition, Path(path).parent, seed + number)
        except InvalidInput as error:
            field = error.field.rpartition(".")[2]
            where = _where(document, ("partitions", str(number), field))
            raise InvalidInput(f"{where}{field}", error.value, error.allowed) from None
        partitions.append(partition)
        if market is not None:
            markets[partition.name] = market
    try:
        return Stock(tuple(partitions), said.quotas), markets
    except InvalidInput as error:
        where = document.where(tuple(error.field.split(".")))
        raise InvalidInput(f"{where}{error.field}", error.value, error.allowed) from None


def cluster_files(path: Path | str) -> tuple[Path, ...]:
    """The file, and the traces of markets that it names."""
    from duetune.jobs.spec.yaml_document import read_document

    said = _said(read_document(Path(path), "cluster"))
    traces = (Path(path).parent / each.trace for each in said.partitions if each.trace)
    return (Path(path), *traces)


def cluster_of_nodes(texts: Sequence[str]) -> Stock:
    """From ``NODESxGPUS:GPU`` or ``NAME=NODESxGPUS:GPU``, a text for each partition."""
    partitions = []
    for text in texts:
        found = _NODES.fullmatch(text.strip())
        if found is None:
            raise InvalidInput("nodes", text, "[NAME=]NODESxGPUS:GPU, such as 4x8:A100-80GB")
        said = _Partition(
            name=found["name"] or "",
            gpu_model=found["gpu"],
            nodes=int(found["nodes"]),
            gpus_per_node=int(found["gpus"]),
        )
        partitions.append(_partition(said))
    return Stock(tuple(partitions))


def world_named(
    how: str, stock: Stock, history: History | None = None, *, seed: int = 0
) -> ClusterWorld:
    """``emulated`` and ``replay`` take the history that comes with duetune if none is given;
    ``physics`` is an emulation without any.
    """
    from duetune.knowledge.history import History
    from duetune.simulate.cluster.cluster_world import emulated, replayed

    if how not in WORLDS:
        raise InvalidInput("world", how, f"one of {', '.join(WORLDS)}")
    known = shipped_history() if history is None else history
    if how == "replay":
        return replayed(known, stock, seed=seed)
    if how == "physics":
        world = emulated(History.empty(), stock, seed=seed)
        return msgspec.structs.replace(world, how="emulated by physics alone")
    return emulated(known, stock, seed=seed)


def world_source(name: str, world: ClusterWorld, *, seed: int = 0) -> KnowledgeSource:
    """The source of that name as it is when a simulation begins: it knows what the world says was
    measured; the oracle knows the truth.
    """
    from duetune.knowledge.sources.past_runs import OracleSource

    history, truth = world.known, world.truth
    if name.strip().rpartition(":")[2] == "oracle" and isinstance(truth, OracleSource):
        history = truth.history
    return source_named(name, history, seed)


def _said(document: Document) -> _Cluster:
    try:
        return msgspec.convert(document.fields, _Cluster)
    except msgspec.ValidationError as error:
        found = refusal(error, document.fields, _Cluster, _ALLOWED)
        raise found.at(_where(document, found.path)) from None


def _where(document: Document, path: tuple[str, ...]) -> str:
    """Of the value, or of the partition that lacks it."""
    inside = [line for place, line in document.lines.items() if place[:2] == path[:2]]
    if path not in document.lines and len(path) > 1 and inside:
        return f"{document.source}:{min(inside)} "
    return document.where(path)


def _partition(said: _Partition) -> Partition:
    from duetune.knowledge.facts.gpus import GPUS, USUAL_PRICES, gpu_name

    gpu = gpu_name(said.gpu_model)
    if gpu is None:
        raise InvalidInput("gpu_model", said.gpu_model, f"a GPU that is known: {', '.join(GPUS)}")
    price = USUAL_PRICES.get(gpu) if said.price is None else said.price
    if price is None:
        raise InvalidInput("price", None, f"dollars per hour of {gpu}, of which none is known")
    return Partition(
        name=said.name or gpu.casefold(),
        gpu_model=gpu,
        nodes=said.nodes,
        gpus_per_node=said.gpus_per_node,
        tenure=said.tenure,
        price=price,
    )


def _market(said: _Partition, partition: Partition, folder: Path, seed: int) -> MarketTrace | None:
    from duetune.market.synthetic import MarketKind, synthetic_market
    from duetune.registry.markets import markets_from_file

    if partition.tenure is Tenure.FIXED:
        for field, given in (("market", said.market), ("trace", said.trace)):
            if given:
                raise InvalidInput(field, given, "none: the partition is fixed, not spot")
        return None
    if said.market and said.trace:
        raise InvalidInput("market", said.market, "none, where there is a trace")
    if said.trace:
        return markets_from_file(folder / said.trace, pool=said.pool)[0]
    if said.market and said.market not in set(MarketKind):
        raise InvalidInput("market", said.market, f"one of {', '.join(MarketKind)}")
    if not said.market and partition.tenure is Tenure.SPOT:
        raise InvalidInput("market", "", f"one of {', '.join(MarketKind)}, or a trace")
    if not said.market:
        return None
    return synthetic_market(
        said.market,
        seed=seed,
        slots=_WEEKS,
        on_demand_usd_gpu_h=partition.price,
        max_available=max(1, partition.nodes),
    )

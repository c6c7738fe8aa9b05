"""Clusters and worlds for the cluster simulator, from files and names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.conversion import refusal
from duetune.core.planning import DeclaredGpu, Partition, Stock, Tenure
from duetune.errors import InvalidInput
from duetune.registry.sources import shipped_history, source_named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    "gpus": "a mapping of names to memory_gb, price, like and speed",
    "gpu_model": "the name of a GPU",
    "tenure": f"one of {', '.join(Tenure)}",
}
"""What a message calls the allowed values of a cluster file, where the type does not say it."""


class _Partition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A partition as written in a cluster file.

    ``nodes``: for spot nodes the most that there can be.
    ``price``: on-demand dollars per GPU-hour; by default the usual price of the GPU.
    ``market``: a synthetic market for the spot price; ``trace`` is a file instead of it.
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
    """A cluster file. ``gpus`` are kinds of GPU that duetune does not know."""

    partitions: tuple[_Partition, ...]
    quotas: dict[str, int] = {}
    gpus: dict[str, DeclaredGpu] = {}


def cluster_from_file(path: Path | str, *, seed: int = 0) -> tuple[Stock, dict[str, MarketTrace]]:
    """Return the stock of a cluster file, and the market of each partition that has one."""
    from duetune.jobs.spec.yaml_document import read_document

    document = read_document(Path(path), "cluster")
    cluster = _cluster(document)
    partitions = []
    markets: dict[str, MarketTrace] = {}
    for number, given in enumerate(cluster.partitions):
        try:
            partition = _partition(given, cluster.gpus)
            market = _market(given, partition, Path(path).parent, seed + number)
        except InvalidInput as error:
            field = error.field.rpartition(".")[2]
            where = _where(document, ("partitions", str(number), field))
            raise InvalidInput(f"{where}{field}", error.value, error.allowed) from None
        partitions.append(partition)
        if market is not None:
            markets[partition.name] = market
    try:
        return Stock(tuple(partitions), cluster.quotas), markets
    except InvalidInput as error:
        where = document.where(tuple(error.field.split(".")))
        raise InvalidInput(f"{where}{error.field}", error.value, error.allowed) from None


def declared_gpus(path: Path | str) -> dict[str, DeclaredGpu]:
    """Return the kinds of GPU that a cluster file declares, by name."""
    from duetune.jobs.spec.yaml_document import read_document

    return _cluster(read_document(Path(path), "cluster")).gpus


def cluster_files(path: Path | str) -> tuple[Path, ...]:
    """Return the cluster file and the trace files that it names."""
    from duetune.jobs.spec.yaml_document import read_document

    cluster = _cluster(read_document(Path(path), "cluster"))
    traces = (Path(path).parent / given.trace for given in cluster.partitions if given.trace)
    return (Path(path), *traces)


def cluster_of_nodes(texts: Sequence[str]) -> Stock:
    """Return the stock of ``[NAME=]NODESxGPUS:GPU`` texts, one text per partition."""
    partitions = []
    for text in texts:
        found = _NODES.fullmatch(text.strip())
        if found is None:
            raise InvalidInput("nodes", text, "[NAME=]NODESxGPUS:GPU, such as 4x8:A100-80GB")
        given = _Partition(
            name=found["name"] or "",
            gpu_model=found["gpu"],
            nodes=int(found["nodes"]),
            gpus_per_node=int(found["gpus"]),
        )
        partitions.append(_partition(given, {}))
    return Stock(tuple(partitions))


def world_named(
    how: str, stock: Stock, history: History | None = None, *, seed: int = 0
) -> ClusterWorld:
    """Return the simulated world of the name ``how``.

    ``emulated`` and ``replay`` use the history that comes with duetune if none is given.
    ``physics`` is an emulation without history.
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
    """Return the source of that name as it is when a simulation begins.

    It knows the measurements of the world's past; an oracle knows the truth. Configurations of
    duetune's own trainer are answered as in ``fits`` and ``plan``.
    """
    from duetune.jobs.trainer_facts import trainer_software
    from duetune.jobs.trainer_knowledge import TrainerKnowledge
    from duetune.knowledge.sources.past_runs import OracleSource

    truth = world.truth
    if name.strip().rpartition(":")[2] == "oracle" and isinstance(truth, OracleSource):
        return source_named(name, truth.history, seed)
    source = source_named(name, world.known, seed)
    return TrainerKnowledge(source, trainer_software()) if source.capabilities else source


def _cluster(document: Document) -> _Cluster:
    from duetune.knowledge.facts.gpus import gpu_name

    try:
        found = msgspec.convert(document.fields, _Cluster)
    except msgspec.ValidationError as error:
        refused = refusal(error, document.fields, _Cluster, _ALLOWED)
        raise refused.at(_where(document, refused.path)) from None
    except InvalidInput as error:  # of a declared GPU
        lines = document.lines.items()
        ours = [line for path, line in lines if path[0] == "gpus" and path[-1] == error.field]
        where = f"{document.source}:{min(ours)} gpus: {error.field}"
        raise InvalidInput(where, error.value, error.allowed) from None
    for name in found.gpus:
        if gpu_name(name) is not None:
            where = f"{document.where(('gpus', name))}gpus"
            raise InvalidInput(where, name, f"no GPU that duetune knows, {gpu_name(name)}")
    return found


def _where(document: Document, path: tuple[str, ...]) -> str:
    """Return the file and line of the value, or of the partition in which it is missing."""
    inside = [line for place, line in document.lines.items() if place[:2] == path[:2]]
    if path not in document.lines and len(path) > 1 and inside:
        return f"{document.source}:{min(inside)} "
    return document.where(path)


def _partition(given: _Partition, declared: Mapping[str, DeclaredGpu]) -> Partition:
    from duetune.knowledge.facts.gpus import GPUS, USUAL_PRICES, gpu_name

    mine = declared.get(given.gpu_model)
    gpu = gpu_name(given.gpu_model) if mine is None else given.gpu_model
    if gpu is None:
        allowed = f"a known GPU: {', '.join(GPUS)}; or one that the file declares under gpus"
        raise InvalidInput("gpu_model", given.gpu_model, allowed)
    usual = USUAL_PRICES[gpu] if mine is None else mine.price
    price = usual if given.price is None else given.price
    return Partition(
        name=given.name or gpu.casefold(),
        gpu_model=gpu,
        nodes=given.nodes,
        gpus_per_node=given.gpus_per_node,
        tenure=given.tenure,
        price=price,
    )


def _market(given: _Partition, partition: Partition, folder: Path, seed: int) -> MarketTrace | None:
    from duetune.market.synthetic import MarketKind, synthetic_market
    from duetune.registry.markets import markets_from_file

    if partition.tenure is Tenure.FIXED:
        for field, text in (("market", given.market), ("trace", given.trace)):
            if text:
                raise InvalidInput(field, text, "none: the partition is fixed, not spot")
        return None
    if given.market and given.trace:
        raise InvalidInput("market", given.market, "none, where there is a trace")
    if given.trace:
        return markets_from_file(folder / given.trace, pool=given.pool)[0]
    if given.market and given.market not in set(MarketKind):
        raise InvalidInput("market", given.market, f"one of {', '.join(MarketKind)}")
    if not given.market and partition.tenure is Tenure.SPOT:
        raise InvalidInput("market", "", f"one of {', '.join(MarketKind)}, or a trace")
    if not given.market:
        return None
    return synthetic_market(
        given.market,
        seed=seed,
        slots=_WEEKS,
        on_demand_usd_gpu_h=partition.price,
        max_available=max(1, partition.nodes),
    )

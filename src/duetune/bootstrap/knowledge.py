"""Sources of configuration knowledge by name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from duetune.bootstrap.names import Listed
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import EntryPoint

    from duetune.knowledge.history import History
    from duetune.knowledge.source import KnowledgeSource

SOURCE_GROUP = "duetune.knowledge_sources"
"""The entry point group in which others register sources of knowledge: a name for a factory that
takes a history, and the texts that stand behind the name.
"""

SOURCES = (
    Listed("default", "site defaults: the first GPU of the space, four of them, batch 16"),
    Listed("random", "any configuration that breaks no rule; the seed says which"),
    Listed("history", "what was measured of this very configuration, nothing of any other"),
    Listed("nearest", "the mean of the nearest measured runs"),
    Listed("analytic", "physics alone, with the constants of experience"),
    Listed("regression", "physics fitted to history, and a learner of what is left"),
    Listed("hybrid", "the first to answer: history, its frontier, a neighbour, the model, physics"),
    Listed("oracle", "the truth, where history is what a simulation plays"),
    Listed("noisy:MAPE[:BIAS]:SOURCE", "any of them, with paces that are off by so much"),
    Listed("stale:LAG:SOURCE", "one that learns of runs LAG runs later; with an s: seconds"),
    Listed("partial:FIELD[+FIELD]:SOURCE", "one that does not know these fields"),
    Listed("cached:SOURCE", "one that answers the same question once"),
)


def source_named(name: str, history: History, seed: int = 0) -> KnowledgeSource:
    """The source of knowledge of that name; the seed is for those that draw."""
    head, *parts = name.strip().split(":")
    match head, parts:
        case "default", []:
            from duetune.knowledge.sources.blind import DefaultSource

            return DefaultSource()
        case "random", []:
            from duetune.knowledge.sources.blind import RandomSource

            return RandomSource(seed)
        case "history", []:
            from duetune.knowledge.sources.history import HistorySource

            return HistorySource(history)
        case "oracle", []:
            from duetune.knowledge.sources.history import OracleSource

            return OracleSource(history)
        case "nearest", []:
            from duetune.knowledge.sources.nearest import NearestSource

            return NearestSource(history)
        case "analytic", []:
            from duetune.knowledge.sources.analytic import AnalyticSource

            return AnalyticSource()
        case "regression", []:
            from duetune.knowledge.sources.learned import RegressionSource

            return RegressionSource(history, seed=seed)
        case "hybrid", []:
            from duetune.knowledge.sources.learned import HybridSource

            return HybridSource(history, seed=seed)
        case (("noisy" | "stale" | "partial" | "cached"), _):
            return _decorated(name, head, parts, history, seed)
        case _:
            return _registered_source(name, head, parts, history)


def sources_listed() -> tuple[Listed, ...]:
    """Every source that can be named, those registered by others included."""
    others = (
        Listed(point.name, f"registered by {point.value}")
        for point in sorted(_entry_points(), key=lambda point: point.name)
    )
    return (*SOURCES, *others)


def _decorated(
    name: str, head: str, parts: list[str], history: History, seed: int
) -> KnowledgeSource:
    from duetune.knowledge.history import History
    from duetune.knowledge.sources.decorators import Cached, Noisy, Partial, Stale

    match head, parts:
        case "noisy", [mape, bias, *inner] if inner and _is_number(mape) and _is_number(bias):
            source = source_named(":".join(inner), history, seed)
            return Noisy(source, float(mape), float(bias), seed)
        case "noisy", [mape, *inner] if inner and _is_number(mape):
            return Noisy(source_named(":".join(inner), history, seed), float(mape), seed=seed)
        case "stale", [lag, *inner] if inner and lag.isdecimal():
            runs = list(history)
            known = max(0, len(runs) - int(lag))
            source = source_named(":".join(inner), History(runs[:known]), seed)
            return Stale(source, lag=int(lag), pending=runs[known:])
        case "stale", [age, *inner] if inner and age.endswith("s") and _is_number(age[:-1]):
            source = source_named(":".join(inner), History.empty(), seed)
            stale = Stale(source, age_s=float(age[:-1]))
            for run in sorted(history, key=lambda each: each.measured_at):
                stale.observe(run)
            return stale
        case "partial", [fields, *inner] if inner and fields:
            return Partial(source_named(":".join(inner), history, seed), fields.split("+"))
        case "cached", inner if inner:
            return Cached(source_named(":".join(inner), history, seed))
        case _:
            form = next(listed.name for listed in SOURCES if listed.name.startswith(head))
            raise InvalidInput("source", name, form)


def _registered_source(name: str, head: str, parts: list[str], history: History) -> KnowledgeSource:
    """``head:a:b`` calls the factory registered as ``head`` with the history and the texts."""
    from duetune.knowledge.source import KnowledgeSource

    point = next((point for point in _entry_points() if point.name == head), None)
    if point is None:
        raise InvalidInput(
            "source", name, f"one of {', '.join(each.name for each in sources_listed())}"
        )
    try:
        found = point.load()(history, *parts)
    except InvalidInput:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise InvalidInput("source", name, f"{point.value} to make one ({problem})") from error
    if not isinstance(found, KnowledgeSource):
        raise InvalidInput("source", name, f"{point.value} to return a source of knowledge")
    return found


def _entry_points() -> Iterator[EntryPoint]:
    from importlib.metadata import entry_points

    return iter(entry_points(group=SOURCE_GROUP))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False

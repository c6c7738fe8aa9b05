"""Sources of configuration knowledge by name, and what the site knows."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.registry.plugins import Kind, Listed

if TYPE_CHECKING:
    from duetune.knowledge.history import History
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource
    from duetune.settings import Settings
    from duetune.store.store import Store

SOURCE_GROUP = "duetune.knowledge_sources"
"""The entry point group in which others register sources of knowledge: a name for a factory that
takes a history, and the texts that stand behind the name.
"""

SOURCES = (
    Listed("default", "site defaults: the first GPU of the space, four of them, batch 16"),
    Listed("random", "any configuration that breaks no rule; the seed says which"),
    Listed("history", "what was measured of this very configuration, nothing of any other"),
    Listed("nearest", "the mean of the nearest measured runs"),
    Listed("proportional", "runs on the fewest GPUs, more in proportion: what Sia measures"),
    Listed("analytic", "physics alone, with the constants of experience"),
    Listed("regression", "physics fitted to history, and a learner of what is left"),
    Listed("hybrid", "the first to answer: history, its frontier, a neighbour, the model, physics"),
    Listed("oracle", "the truth, where history is what a simulation plays"),
    Listed("noisy:MAPE[:BIAS]:SOURCE", "any of them, with paces that are off by so much"),
    Listed("stale:LAG:SOURCE", "one that learns of runs LAG runs later; with an s: seconds"),
    Listed("partial:FIELD[+FIELD]:SOURCE", "one that does not know these fields"),
    Listed("cached:SOURCE", "one that answers the same question once"),
)


FOLDER = "knowledge"
"""Where the home keeps fitted models."""


@functools.cache
def shipped_history() -> History:
    """What comes with duetune; empty where that was left out."""
    from importlib.resources import as_file, files

    from duetune.knowledge.history import History
    from duetune.knowledge.history_files import read_history

    found = History.empty()
    folder = files("duetune.knowledge").joinpath("data")
    if not folder.is_dir():
        return found
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.name.endswith(".csv"):
            with as_file(each) as path:
                found = found.plus(read_history(path))
    return found


def site_history(store: Store | None) -> History:
    """What comes with duetune, and what the store has: imported, and from jobs that ran here."""
    shipped = shipped_history()
    return shipped if store is None else shipped.plus(store.observations.history())


def site_source(settings: Settings, history: History, name: str = "hybrid") -> KnowledgeSource:
    """The source of that name, with the model of the home if it has one of this history; it is
    fitted, which takes seconds, and left there if not.
    """
    from duetune.knowledge.sources.estimating import history_by_known_names
    from duetune.knowledge.sources.learned import HybridSource, RegressionSource, kept_model

    kinds = {"hybrid": HybridSource, "regression": RegressionSource}
    if name not in kinds:
        return source_named(name, history)
    known = history_by_known_names(history)
    return kinds[name](known, model=kept_model(settings.home / FOLDER, known))


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
        case (("history" | "oracle"), []):
            from duetune.knowledge.sources.past_runs import HistorySource, OracleSource

            return (HistorySource if head == "history" else OracleSource)(history)
        case "nearest", []:
            from duetune.knowledge.sources.nearest import NearestSource

            return NearestSource(history)
        case "proportional", []:
            from duetune.knowledge.sources.proportional import ProportionalSource

            return ProportionalSource(history)
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
            return KIND.plugged(name, (history,))


def sources_listed() -> tuple[Listed, ...]:
    """Return every source that can be named, those registered by others included."""
    return KIND.listed()


def _checked(found: object) -> KnowledgeSource | None:
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource

    return found if isinstance(found, KnowledgeSource) else None


KIND: Kind[KnowledgeSource] = Kind(
    "source", SOURCE_GROUP, SOURCES, _checked, "a source of knowledge: query(), complete(), ..."
)


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


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False

"""Sources of configuration knowledge by name, and the knowledge of a home."""

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
"""The entry point group of knowledge sources. An entry names a factory that takes a history and the
texts behind the name.
"""

SOURCES = (
    Listed("default", "site defaults: the first GPU of the space, four of them, batch 16"),
    Listed("random", "a valid configuration chosen at random; the seed says which"),
    Listed("history", "measurements of exactly this configuration"),
    Listed("nearest", "the mean of the nearest measured runs"),
    Listed("proportional", "measured on the fewest GPUs and scaled in proportion, as Sia does"),
    Listed("analytic", "the physics model alone, with empirical constants"),
    Listed("regression", "the physics model fitted to history, and a learned correction"),
    Listed("hybrid", "the first answer of: history, its frontier, a neighbour, the model, physics"),
    Listed("oracle", "the truth, in a simulation that replays history"),
    Listed("noisy:MAPE[:BIAS]:SOURCE", "another source, with errors in its paces"),
    Listed(
        "stale:LAG:SOURCE",
        "another source, which learns of a run LAG runs (with an s: seconds) later",
    ),
    Listed("partial:FIELD[+FIELD]:SOURCE", "another source, which does not know these fields"),
    Listed("cached:SOURCE", "another source, with its answers cached"),
)

FOLDER = "knowledge"
"""The folder of a home for fitted models."""


@functools.cache
def shipped_history() -> History:
    """Return the history that comes with duetune; empty if it was not installed."""
    from importlib.resources import as_file, files

    from duetune.knowledge.history import History
    from duetune.knowledge.history_files import read_history

    found = History.empty()
    folder = files("duetune.knowledge").joinpath("data")
    if not folder.is_dir():
        return found
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".csv"):
            with as_file(file) as path:
                found = found.plus(read_history(path))
    return found


def site_history(store: Store | None) -> History:
    """Return the history that comes with duetune plus that of the store.

    The store has imported runs and jobs that ran here.
    """
    shipped = shipped_history()
    return shipped if store is None else shipped.plus(store.observations.history())


def site_source(settings: Settings, history: History, name: str = "hybrid") -> KnowledgeSource:
    """Return the source of that name, with the fitted model that the home keeps.

    If the home has no model for this history, one is fitted, which takes seconds, and kept.
    """
    from duetune.knowledge.sources.estimating import history_by_known_names
    from duetune.knowledge.sources.learned import HybridSource, RegressionSource, kept_model

    kinds = {"hybrid": HybridSource, "regression": RegressionSource}
    if name not in kinds:
        return source_named(name, history)
    known = history_by_known_names(history)
    return kinds[name](known, model=kept_model(settings.home / FOLDER, known))


def source_named(name: str, history: History, seed: int = 0) -> KnowledgeSource:
    """Return the knowledge source of that name; ``seed`` is for sources that use randomness."""
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
    """Return every source that can be named, plug-ins included."""
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
    """Return a source that wraps the source named at the end of ``parts``."""
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

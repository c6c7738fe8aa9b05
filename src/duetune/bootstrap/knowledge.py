"""Sources of configuration knowledge by name, and what the site knows."""

from __future__ import annotations

import functools
import math
import os
import secrets
import shutil
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING

from duetune.bootstrap.names import Listed
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import EntryPoint
    from pathlib import Path

    from duetune.knowledge.history import History
    from duetune.knowledge.model import KnowledgeModel
    from duetune.knowledge.source import KnowledgeSource
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
KEPT = 3
"""Fitted models that stay in the home, the last ones used."""


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


def existing_store(settings: Settings) -> Store | None:
    """The store of the home if it is there: to ask a question makes nothing."""
    from pathlib import Path

    from duetune.bootstrap.live import opened_store

    if "://" not in settings.database and not Path(settings.database).is_file():
        return None
    return opened_store(settings)


def site_source(settings: Settings, history: History, name: str = "hybrid") -> KnowledgeSource:
    """The source of that name, with the model of the home if it has one of this history; it is
    fitted, which takes seconds, and left there if not.
    """
    from duetune.knowledge.sources.known_names import history_by_known_names
    from duetune.knowledge.sources.learned import HybridSource, RegressionSource

    kinds = {"hybrid": HybridSource, "regression": RegressionSource}
    if name not in kinds:
        return source_named(name, history)
    known = history_by_known_names(history)
    return kinds[name](known, model=_site_model(settings.home / FOLDER, known))


def _site_model(folder: Path, history: History) -> KnowledgeModel:
    from duetune.knowledge.model import FORMAT, KnowledgeModel
    from duetune.knowledge.sources.learned import learnt_of

    path = folder / f"{history.plausible.snapshot}-{FORMAT}.npz"
    # The one of this very history, or one that has missed but a few runs of it.
    others = sorted(folder.glob(f"*-{FORMAT}.npz"), key=_age) if folder.is_dir() else []
    for each in (path, *others):
        # What is of another version or broken is fitted anew. Half a file is no archive.
        with suppress(InvalidInput):
            if zipfile.is_zipfile(each):
                found = KnowledgeModel.load(each)
                if learnt_of(history, found) is not None:
                    with suppress(OSError):
                        os.utime(each)
                    return found
    found = KnowledgeModel.fit(history)
    # Others may fit at the same time: each writes a folder of its own, and the last file stays.
    own = folder / f".{os.getpid()}-{secrets.token_hex(4)}"
    # A home that cannot be written to is no reason to give no answer: the next one fits again.
    with suppress(OSError):
        try:
            # One by one: parents that are made on the way would be open to others.
            for each in (folder.parent, folder, own):
                each.mkdir(parents=True, exist_ok=True, mode=0o700)
            found.save(own / path.name)
            (own / path.name).replace(path)
            _forget_old(folder)
        finally:
            shutil.rmtree(own, ignore_errors=True)
    return found


def _age(path: Path) -> float:
    """Newest first; one that has gone meanwhile is the oldest."""
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0


def _forget_old(folder: Path) -> None:
    for each in sorted(folder.glob("*.npz"), key=_age)[KEPT:]:
        each.unlink(missing_ok=True)


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
            from duetune.knowledge.sources.history import HistorySource, OracleSource

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

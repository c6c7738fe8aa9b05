"""Sources that learn a model from history, and the folder in which fitted models are kept.

``RegressionSource`` answers by the model alone. ``HybridSource`` asks measured runs first.
"""

from __future__ import annotations

import functools
import os
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.estimate import MEMORY, NONE, RULE, Estimate, Estimates, put, under_rules
from duetune.knowledge.history import History
from duetune.knowledge.model.frontier import INVALID, VALID, Frontier
from duetune.knowledge.model.learned_model import FORMAT, KnowledgeModel
from duetune.knowledge.sources.analytic import reckoned_terms
from duetune.knowledge.sources.estimating import by_known_names
from duetune.knowledge.sources.nearest import GROWTH, NearestSource, from_neighbours
from duetune.knowledge.sources.past_runs import SURE, remembered

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.sources.knowledge_source import Term


REFIT_EVERY = 25
"""New observations after which the model is fitted again; a fit takes seconds."""

TOLERANCE = 0.2
"""A measured run within this many doublings answers for the configuration in question."""


class RegressionSource(NearestSource):
    """Physics fitted to history with learned corrections.

    The model is fitted at the first question, and again after every ``refit_every`` observations.
    Its neighbours are evidence only; they do not change the estimate.
    """

    name = "regression"

    def __init__(
        self,
        history: History | None = None,
        *,
        model: KnowledgeModel | None = None,
        refit_every: int = REFIT_EVERY,
        seed: int = 0,
    ) -> None:
        """``model`` is taken if it was fitted to this history, or to all but a few of it."""
        super().__init__(history)
        self.refit_every = refit_every
        self._seed = seed
        self._lessons = self._begun
        self._taught = self._snapshot
        if model is not None and (lessons := learnt_of(self._begun, model, refit_every)):
            self._lessons = lessons
            self._taught = sum(int(key, 16) for key in lessons.keys)
            self.__dict__["model"] = model

    @functools.cached_property
    def model(self) -> KnowledgeModel:
        """Return the fitted model; fitting takes seconds."""
        return KnowledgeModel.fit(self._lessons, seed=self._seed)

    @property
    def version(self) -> str:
        """Return a version that also changes when the model is fitted again."""
        return f"{super().version}-{self._taught % 2**64:016x}-{self._seed}"

    def changed(self) -> None:
        """Fit the model again if enough was observed since."""
        super().changed()
        if len(self.history) - len(self._lessons) >= self.refit_every:
            self.refit()

    def refit(self) -> None:
        """Fit the model to everything observed, at the next question."""
        self._lessons = self.history
        self._taught = self._snapshot
        self.__dict__.pop("model", None)

    def estimate(self, configurations: Configurations) -> Estimates:
        """Return the estimates of the model."""
        return self.model.estimate(configurations)

    def terms(self, configuration: Configuration) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
        """Return the terms of memory and time with the fitted constants."""
        (one,) = self.model.alike(Configurations.of([configuration]))
        return reckoned_terms(one, self.model.physics)


def learnt_of(
    history: History, model: KnowledgeModel, refit_every: int = REFIT_EVERY
) -> History | None:
    """Return the part of history that the model has learned from.

    Returns None if the model knows runs that are not in it, or has missed so many that it should be
    fitted again.
    """
    believed = history.plausible
    if not model.learnt <= believed.keys:
        return None
    if len(believed.keys) - len(model.learnt) >= refit_every:
        return None
    return History(each for each in history if each.key in model.learnt)


RUNGS = ("rule", "analytic", "regression", "nearest", "frontier", "exact")
_RULE, _ANALYTIC, _REGRESSION, _NEAREST, _FRONTIER, _EXACT = range(len(RUNGS))


class LadderEstimates(Estimates):
    """Estimates that know which step of the ladder answered each row."""

    rung: NDArray[np.int8]

    def __getitem__(self, index: int) -> Estimate:
        found = super().__getitem__(index)
        return msgspec.structs.replace(found, source=f"{self.source}:{RUNGS[self.rung[index]]}")

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> LadderEstimates:
        """Return the rows of an index or a mask, with their steps."""
        return climbed(super().take(index), self.rung[index])


def climbed(estimates: Estimates, rung: NDArray[np.int8]) -> LadderEstimates:
    """Return the estimates with the step that answered each row."""
    columns = {name: value for name, value in vars(estimates).items() if name != "rung"}
    result = LadderEstimates(**columns)
    result.rung = rung
    return result


class HybridSource(RegressionSource):
    """A ladder: the first step that knows an answer gives it.

    - exact: measurements of the same configuration.
    - frontier: runs that needed more memory and fitted, or less and did not.
    - nearest: a run that is almost the same.
    - regression: the fitted model.
    - analytic: physics with default constants, if nothing was measured.

    The first three use an observation at once, the model when it is fitted again. A step that does
    not know a quantity, such as the throughput of a run without enough memory, leaves it to the
    step below.
    """

    name = "hybrid"

    @functools.cached_property
    def frontier(self) -> Frontier:
        """Return the frontier of all believable runs."""
        return Frontier(self.history.plausible)

    def changed(self) -> None:
        """Drop what was derived from the old history."""
        super().changed()
        self.__dict__.pop("frontier", None)

    def query(self, configurations: Configurations) -> Estimates:
        """Return the estimates with the step that gave each of them."""
        rungs: list[NDArray[np.int8]] = []

        def estimate(part: Configurations) -> Estimates:
            found = self.estimate(part)
            rungs.append(found.rung)
            return found

        result = under_rules(by_known_names(configurations), self.name, estimate)
        rung = np.full(len(result), _RULE, np.int8)
        for each in rungs:
            rung[result.cause != RULE] = each
        return climbed(result, rung)

    def estimate(self, configurations: Configurations) -> LadderEstimates:
        """Return the answers of the ladder for configurations that break no rule."""
        base = self.model.estimate(configurations)
        rung = np.full(len(base), _REGRESSION if len(self._lessons) else _ANALYTIC, np.int8)
        result = climbed(base, rung)
        result.source = self.name
        if not len(self.measured):
            return result
        self._nearest(configurations, result)
        self._frontier(configurations, result)
        found = self.measured.find(configurations)
        known = np.flatnonzero(found >= 0)
        part = remembered(self.measured, found[known], self.name)
        self.model.widen(configurations.take(known), part, np.zeros(len(known)))
        put(result, known, part, keep_known=True)
        rung[known] = _EXACT
        return result

    def _nearest(self, configurations: Configurations, result: LadderEstimates) -> None:
        """Overwrite rows that have an almost equal measured run."""
        near = self.metric.nearest(configurations, 1, TOLERANCE)
        known = np.flatnonzero(near.row[:, 0] >= 0)
        near = type(near)(near.row[known], near.distance[known])
        gpus = configurations.number("num_gpus")[known]
        part = from_neighbours(self.measured, near, gpus, self.name)
        part.support = np.maximum(part.support, result.support[known])
        self.model.widen(configurations.take(known), part, GROWTH * near.distance[:, 0])
        put(result, known, part, keep_known=True)
        result.rung[known] = _NEAREST

    def _frontier(self, configurations: Configurations, result: LadderEstimates) -> None:
        """Overwrite the validity of rows that the frontier decides."""
        answers = self.frontier.answers(configurations)
        fits, fails = answers == VALID, answers == INVALID
        result.p_valid[fits] = np.maximum(result.p_valid[fits], SURE)
        result.p_valid[fails] = np.minimum(result.p_valid[fails], 1.0 - SURE)
        result.cause[fits] = NONE
        result.cause[fails] = MEMORY
        result.rung[fits | fails] = _FRONTIER


KEPT = 3
"""Number of fitted models that stay in the folder: the last ones used."""


def kept_model(folder: Path, history: History) -> KnowledgeModel:
    """Return the model of this history from ``folder``; it is fitted and saved there if
    necessary.
    """
    path = folder / f"{history.plausible.snapshot}-{FORMAT}.npz"
    # The model of exactly this history, or one that has missed only a few of its runs.
    for each in (path, *_kept(folder, f"*-{FORMAT}.npz")):
        # A broken file, or one of another version, is ignored and the model is fitted again.
        with suppress(InvalidInput):
            if zipfile.is_zipfile(each):
                found = KnowledgeModel.load(each)
                if learnt_of(history, found) is not None:
                    with suppress(OSError):
                        os.utime(each)
                    return found
    found = KnowledgeModel.fit(history)
    # If the folder cannot be written, the answer is still given; the next process fits again.
    with suppress(OSError):
        # Created one by one, because mkdir gives parents the default mode, which is open to others.
        for each in (folder.parent, folder):
            each.mkdir(parents=True, exist_ok=True, mode=0o700)
        found.save(path)
        for each in _kept(folder, "*.npz")[KEPT:]:
            each.unlink(missing_ok=True)
    return found


def _kept(folder: Path, pattern: str) -> list[Path]:
    """Return the saved models, newest first; names that begin with a dot are being written by
    others.
    """
    if not folder.is_dir():
        return []
    found = (each for each in folder.glob(pattern) if not each.name.startswith("."))
    return sorted(found, key=_age)


def _age(path: Path) -> float:
    """Return a sort key with the newest first; a file that is gone counts as the oldest."""
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0

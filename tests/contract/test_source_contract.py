from __future__ import annotations

import functools

import msgspec
import numpy as np
import pytest

import duetune.knowledge.sources
from duetune.knowledge.model.learned_model import KnowledgeModel
from duetune.knowledge.sources.blind import Blind
from duetune.knowledge.sources.decorators import Cached, Decorator
from duetune.knowledge.sources.estimating import Source
from duetune.knowledge.sources.learned import HybridSource, RegressionSource
from duetune.knowledge.sources.past_runs import HistorySource, Remembering
from duetune.registry.sources import SOURCES, source_named
from duetune.testing.source_contract import SourceContract
from support.discovery import classes_with

ABSTRACT = {Source, Blind, Remembering, Decorator}
IMPLEMENTATIONS = [
    each
    for each in classes_with(duetune.knowledge.sources, "query", "complete", "observe")
    if each not in ABSTRACT
]
NAMES = (
    *("default", "random", "history", "oracle", "nearest", "analytic", "regression", "hybrid"),
    *("noisy:0.2:nearest", "noisy:0.1:-0.3:analytic", "stale:3:history", "stale:90s:nearest"),
    *(
        "proportional",
        "partial:validity+sharding:analytic",
        "partial:uncertainty:nearest",
        "cached:hybrid",
    ),
    *("cached:random", "noisy:0.5:default", "partial:memory:cached:history"),
)
BLIND = ("default", "random", "cached:random", "noisy:0.5:default")
UNLEARNING = (
    *BLIND,
    "stale:90s:nearest",
    "analytic",
    "noisy:0.1:-0.3:analytic",
    "partial:validity+sharding:analytic",
)
INEXACT = ("regression", "stale:3:history", "noisy:0.2:nearest")


def test_every_implementation_is_in_the_suite():
    made = {
        type(part)
        for name in NAMES
        for part in _layers(source_named(name, SourceContract().history()))
    }
    assert made == set(IMPLEMENTATIONS)


def test_every_listed_name_is_in_the_suite():
    heads = {name.split(":")[0] for name in NAMES}
    assert heads == {listed.name.split(":")[0] for listed in SOURCES}


@functools.cache
def _fitted(history):
    return KnowledgeModel.fit(history)


def make(name, history):
    """As by name, but for fitting the same model to the same history again and again."""
    if name in {"regression", "hybrid", "cached:hybrid"}:
        kind = RegressionSource if name == "regression" else HybridSource
        source = kind(history, model=_fitted(history))
        return Cached(source) if name.startswith("cached") else source
    return source_named(name, history)


def _layers(source):
    while source is not None:
        yield source
        source = getattr(source, "source", None)


for _name in NAMES:
    _title = "Test" + "".join(part.title() for part in _name.replace("+", ":").split(":"))
    globals()[_title] = type(
        _title,
        (SourceContract,),
        {
            "make": lambda _self, history, name=_name: make(name, history),
            "learns": _name not in UNLEARNING,
            "exact": _name not in INEXACT,
        },
    )


class Deaf(HistorySource):
    """Does not ask the rules."""

    def query(self, configurations):
        return self.estimate(configurations)


class Shuffled(HistorySource):
    """Answers in an order of its own."""

    def query(self, configurations):
        found = super().query(configurations)
        return found.take(np.argsort(found.p_valid, kind="stable"))


class Shared(HistorySource):
    """Gives away what it keeps."""

    def query(self, configurations):
        self.kept = getattr(self, "kept", None) or super().query(configurations)
        return self.kept


class Forgetful(HistorySource):
    """Proposes what ran out of memory, once more."""

    def complete(self, partial, space, objective, limits):
        limits = msgspec.structs.replace(limits, ran_out=(), inventory={})
        return super().complete(partial, space, objective, limits)


class Frozen(HistorySource):
    """Has one version for all it ever learns."""

    version = "1"


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (Deaf, "test_what_breaks_a_rule_does_not_work"),
        (Shuffled, "test_every_configuration_is_answered_in_its_place"),
        (Shared, "test_an_answer_belongs_to_whoever_asked"),
        (Forgetful, "test_what_ran_out_of_memory_is_not_proposed_again"),
        (Forgetful, "test_completion_keeps_to_the_space_and_the_limits"),
        (Frozen, "test_what_was_observed_is_known"),
    ],
)
def test_the_suite_finds_a_source_that_does_wrong(kind, test):
    made = {"make": lambda _self, history: kind(history)}
    suite = type("Suite", (SourceContract,), made)()
    with pytest.raises(AssertionError):
        getattr(suite, test)()

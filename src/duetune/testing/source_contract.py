"""The conformance suite of knowledge sources, built in or your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.configurations.configuration_rules import broken
from duetune.knowledge.estimate import CAUSES, Cause
from duetune.knowledge.history import History
from duetune.knowledge.observation import Observation, RunOutcome
from duetune.knowledge.ranking import exceeding
from duetune.knowledge.sources.knowledge_source import (
    Capability,
    KnowledgeSource,
    Limits,
    Objective,
)
from duetune.testing.sample_histories import small_space, synthetic_history, synthetic_run

if TYPE_CHECKING:
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.estimate import Estimates

_PARTIAL = {"model": "meta-llama/Llama-3.1-8B", "method": "lora", "tokens_per_sample": 2048}
_COLUMNS = ("p_valid", "cause", "tokens_per_s", "memory_gb", "support", "extrapolated", "measured")


class SourceContract:
    """Subclass it and implement ``make``.

    ``learns`` says that answers take observations into account. ``exact`` says that the source then
    knows the observed configuration itself.
    """

    learns: bool = True
    exact: bool = True

    def make(self, history: History) -> KnowledgeSource:
        """Return a fresh source that knows ``history``."""
        raise NotImplementedError

    def history(self) -> History:
        """Return the history that the source under test starts with."""
        return synthetic_history()

    def source(self) -> KnowledgeSource:
        """Return a fresh source that knows ``history()``."""
        return self.make(self.history())

    def points(self) -> Configurations:
        """Return measured configurations, others, and some that break a rule."""
        rows = [
            *list(small_space().given(_PARTIAL).points()),
            *[each.configuration for each in list(self.history())[:40]],
        ]
        odd = [row.replace(batch_size=3, num_gpus=2, sharding="fsdp") for row in rows[:5]]
        return Configurations.of([*rows, *odd])

    def test_it_is_a_source_with_a_name_and_a_version(self) -> None:
        """The object implements ``KnowledgeSource``; name and version are stable."""
        source = self.source()
        assert isinstance(source, KnowledgeSource)
        assert source.name
        assert "\n" not in source.name
        assert source.version
        assert source.version == self.source().version
        assert source.capabilities <= frozenset(Capability)

    def test_every_configuration_is_answered_in_its_place(self) -> None:
        """Answers are in the order of the question."""
        source, points = self.source(), self.points()
        forth = source.query(points)
        back = source.query(points.take(np.arange(len(points))[::-1]))
        assert len(forth) == len(points)
        for name in _COLUMNS:
            assert len(getattr(forth, name)) == len(points), name
        _assert_same(forth, back.take(np.arange(len(points))[::-1]))

    def test_nothing_asked_is_nothing_answered(self) -> None:
        """An empty question has an empty answer."""
        source = self.source()
        assert len(source.query(self.points().take(np.zeros(0, np.int64)))) == 0
        assert len(source.query(Configurations.of([]))) == 0

    def test_values_are_in_range(self) -> None:
        """Probabilities are in [0, 1]; intervals are positive and ordered, or all NaN."""
        found = self.source().query(self.points())
        assert ((found.p_valid >= 0) & (found.p_valid <= 1)).all()
        assert ((found.cause >= 0) & (found.cause < len(CAUSES))).all()
        assert (found.support >= 0).all()
        for intervals in (found.tokens_per_s, found.memory_gb):
            assert intervals.shape == (len(found), 3)
            unknown = np.isnan(intervals).any(axis=1)
            assert np.isnan(intervals[unknown]).all(), "an interval is known, or not at all"
            known = intervals[~unknown]
            assert (known > 0).all()
            assert np.isfinite(known).all()
            assert (known[:, 0] <= known[:, 1]).all()
            assert (known[:, 1] <= known[:, 2]).all()

    def test_what_it_can_do_it_does(self) -> None:
        """The declared capabilities match the answers."""
        source = self.source()
        found = source.query(self.points())
        able = source.capabilities
        assert (Capability.THROUGHPUT in able) == bool((found.tokens_per_s[:, 1] > 0).any())
        assert (Capability.MEMORY in able) == bool((found.memory_gb[:, 1] > 0).any())
        if Capability.UNCERTAINTY not in able:
            known = found.tokens_per_s[found.tokens_per_s[:, 1] > 0]
            assert (known[:, 0] == known[:, 2]).all()

    def test_the_same_question_has_the_same_answer_bit_by_bit(self) -> None:
        """Answers are deterministic."""
        source, points = self.source(), self.points()
        first = source.query(points)
        _assert_same(first, source.query(points))
        _assert_same(first, self.source().query(points))

    def test_an_answer_belongs_to_whoever_asked(self) -> None:
        """Writing to an answer does not change the source."""
        source, points = self.source(), self.points()
        first = source.query(points)
        kept = first.take(np.arange(len(first)))
        first.p_valid[:] = 7.0
        first.tokens_per_s[:] = -1.0
        _assert_same(kept, source.query(points))

    def test_many_at_once_are_answered_as_one_by_one(self) -> None:
        """An answer does not depend on the other questions."""
        source, points = self.source(), self.points()
        together = source.query(points)
        for row in range(0, len(points), 7):
            alone = source.query(Configurations.of([points[row]]))
            part = together.take(np.array([row]))
            for name in _COLUMNS:
                one, other = getattr(alone, name), getattr(part, name)
                assert np.allclose(one, other, rtol=1e-9, atol=0, equal_nan=True), name

    def test_what_breaks_a_rule_does_not_work(self) -> None:
        """A configuration that breaks a rule has probability 0 and that cause."""
        points = self.points()
        found = self.source().query(points)
        against = broken(points) >= 0
        assert against.any()
        assert (found.p_valid[against] == 0).all()
        assert ((found.cause == CAUSES.index(Cause.RULE)) == against).all()

    def test_completion_keeps_to_the_space_and_the_limits(self) -> None:
        """Candidates are in the space, within the limits, and sorted by score."""
        source, space = self.source(), small_space().given(_PARTIAL)
        limits = Limits(tokens=1e9, deadline_s=1e6, inventory={"L40S": 2}, top=5)
        for objective in Objective:
            ranking = source.complete(_PARTIAL, small_space(), objective, limits)
            assert len(ranking.candidates) <= limits.top
            assert ranking.considered == space.cardinality
            scores = [each.score for each in ranking.candidates]
            assert scores == sorted(scores, reverse=True)
            for candidate in ranking.candidates:
                configuration = candidate.configuration
                assert space.contains(configuration)
                assert space.allowed(Configurations.of([configuration]))[0]
                assert configuration.gpu_model == "L40S"
                assert configuration.num_gpus <= 2
                assert all(getattr(configuration, key) == _PARTIAL[key] for key in _PARTIAL)

    def test_what_ran_out_of_memory_is_not_proposed_again(self) -> None:
        """No candidate needs as much memory as one that ran out of it."""
        source, space = self.source(), small_space()
        ran_out: tuple[Configuration, ...] = ()
        for _ in range(3):
            limits = Limits(tokens=1e9, ran_out=ran_out, top=1)
            ranking = source.complete(_PARTIAL, space, Objective.FASTEST, limits)
            if not ranking.candidates:
                return
            chosen = ranking.candidates[0].configuration
            assert not exceeding(Configurations.of([chosen]), ran_out)[0]
            ran_out = (*ran_out, chosen)

    def test_completion_is_the_same_every_time(self) -> None:
        """Rankings are deterministic."""
        limits = Limits(tokens=1e9, deadline_s=1e5)
        rankings = [
            self.source().complete(_PARTIAL, small_space(), objective, limits)
            for objective in (Objective.DEADLINE, Objective.DEADLINE)
        ]
        assert _text(rankings[0]) == _text(rankings[1])

    def test_nothing_to_choose_from_is_told_in_words(self) -> None:
        """An empty ranking says why, in words and on one line."""
        limits = Limits(inventory={"T4": 1})
        ranking = self.source().complete(_PARTIAL, small_space(), Objective.FASTEST, limits)
        assert ranking.candidates == ()
        assert sum(ranking.left_out.values()) == ranking.considered
        assert any(letter.isalpha() for letter in ranking.note)
        assert "\n" not in ranking.note

    def test_a_field_that_does_not_exist_is_refused(self) -> None:
        """An unknown field raises ``InvalidInput``."""
        try:
            self.source().complete({"modell": "x"}, small_space(), Objective.FASTEST, Limits())
        except InvalidInput:
            return
        raise AssertionError("modell was accepted")

    def test_the_curve_has_what_was_asked_for_and_nothing_else(self) -> None:
        """The curve has only the requested GPUs and counts, within the space."""
        source, space = self.source(), small_space()
        curve = source.curve(_PARTIAL, space, ["L40S", "A100-80GB"], [1, 4])
        assert set(curve) <= {(gpu, count) for gpu in ("L40S", "A100-80GB") for count in (1, 4)}
        for (gpu, count), candidate in curve.items():
            assert candidate.configuration.gpu_model == gpu
            assert candidate.configuration.num_gpus == count
            assert space.allowed(Configurations.of([candidate.configuration]))[0]
        given = source.curve({**_PARTIAL, "gpu_model": "L40S"}, space, ["A100-80GB"], [1])
        assert given == {}
        assert source.curve(_PARTIAL, space, [], []) == {}

    def test_an_explanation_is_of_the_answer(self) -> None:
        """``explain`` and ``query`` give the same estimate."""
        source, points = self.source(), self.points()
        for row in (0, len(points) // 2, len(points) - 1):
            explained = source.explain(points[row]).estimate
            asked = source.query(Configurations.of([points[row]]))[0]
            assert _text(explained) == _text(asked)

    def test_what_was_observed_is_known(self) -> None:
        """An observation changes version and answers if and only if the source learns."""
        source, points = self.source(), self.points()
        new = next(
            each
            for each in small_space().given({**_PARTIAL, "method": "full"}).points()
            if all(each != known.configuration for known in self.history())
            and broken(Configurations.of([each]))[0] < 0
        )
        before, version = source.query(points), source.version
        run = Observation(
            configuration=new, outcome=RunOutcome.VALID, tokens_per_s=1234.0, peak_memory_gb=20.0
        )
        source.observe(run)
        if not self.learns:
            assert source.version == version
            _assert_same(before, source.query(points))
            return
        assert source.version != version
        if self.exact:
            estimate = source.query(Configurations.of([new]))[0]
            assert estimate.p_valid > 0.8
            assert abs(estimate.tokens_per_s.middle / 1234.0 - 1.0) < 0.5
            assert estimate.support >= 1

    def test_what_was_observed_twice_is_one_observation(self) -> None:
        """Observing the same run again changes nothing."""
        source = self.source()
        run = synthetic_run(self.points()[0], noise=0.1)
        source.observe(run)
        version = source.version
        source.observe(run)
        assert source.version == version

    def test_a_run_that_failed_for_another_reason_changes_no_answer(self) -> None:
        """Runs that failed for other reasons than memory are ignored."""
        source, points = self.source(), self.points()
        before = source.query(points)
        source.observe(Observation(configuration=points[0], outcome=RunOutcome.FAILED))
        _assert_same(before, source.query(points))

    def test_an_empty_history_is_answered_all_the_same(self) -> None:
        """A source without history still answers."""
        source = self.make(History.empty())
        assert len(source.query(self.points())) == len(self.points())
        ranking = source.complete(_PARTIAL, small_space(), Objective.FASTEST, Limits())
        assert ranking.candidates or ranking.note


def _assert_same(one: Estimates, other: Estimates) -> None:
    for name in _COLUMNS:
        first, second = getattr(one, name), getattr(other, name)
        assert np.array_equal(first, second, equal_nan=first.dtype.kind == "f"), name


def _text(value: object) -> bytes:
    """Return the value as JSON: NaN is not equal to itself, but its text is."""
    return msgspec.json.encode(value)

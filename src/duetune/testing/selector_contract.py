"""The conformance suite of selectors, built in or your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.ports import Selector
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SelectorContract:
    """Subclass it and implement ``make``. Utilities in these tests are in [0, 1]."""

    def make(self, arms: int) -> Selector:
        """Return a fresh selector among ``arms`` policies that has learned nothing yet."""
        raise NotImplementedError

    def test_it_is_a_selector(self) -> None:
        """The object implements the ``Selector`` port."""
        assert isinstance(self.make(3), Selector)

    def test_it_chooses_one_of_the_policies(self) -> None:
        """``choose`` returns an index below the number of policies."""
        for arms in (1, 2, 7, 112):
            selector, random = self.make(arms), np.random.default_rng(arms)
            for utilities in _jobs(arms, 30):
                assert 0 <= selector.choose(random) < arms
                selector.learn(utilities)

    def test_the_same_seed_gives_the_same_choices(self) -> None:
        """Choices depend only on the utilities and the generator."""
        assert self._choices(5, 60, seed=4) == self._choices(5, 60, seed=4)

    def test_choosing_teaches_nothing(self) -> None:
        """``choose`` does not change the selector."""
        asked, silent = self.make(4), self.make(4)
        for utilities in _jobs(4, 20):
            asked.choose(np.random.default_rng(0))
            asked.learn(utilities)
            silent.learn(utilities)
        draws = [np.random.default_rng(seed) for seed in range(50)]
        again = [np.random.default_rng(seed) for seed in range(50)]
        assert [asked.choose(draw) for draw in draws] == [silent.choose(draw) for draw in again]

    def test_it_comes_to_choose_a_policy_that_is_always_best(self) -> None:
        """After 500 jobs the best policy is chosen in at least 80% of cases."""
        selector, random = self.make(6), np.random.default_rng(1)
        chosen = []
        for utilities in _jobs(6, 600):
            utilities[:] *= 0.3
            utilities[4] = 0.9
            chosen.append(selector.choose(random))
            selector.learn(utilities)
        assert chosen[-100:].count(4) >= 80

    def test_learning_leaves_the_utilities_alone(self) -> None:
        """``learn`` does not write to its argument."""
        selector = self.make(4)
        for utilities in _jobs(4, 5):
            before = utilities.copy()
            selector.learn(utilities)
            assert np.array_equal(utilities, before)
            utilities.setflags(write=False)
            selector.learn(utilities)

    def test_policies_that_do_alike_stay_possible(self) -> None:
        """Equal utilities do not break the weights."""
        selector = self.make(3)
        for _ in range(50):
            selector.learn(np.full(3, 0.5))
        random = np.random.default_rng(0)
        assert 0 <= selector.choose(random) < 3

    def test_utilities_of_other_policies_or_none_are_refused(self) -> None:
        """Utilities of the wrong shape, or NaN, raise ``InvalidInput``."""
        for wrong in (np.zeros(2), np.zeros(4), np.zeros((1, 3)), np.array([0.1, np.nan, 0.2])):
            try:
                self.make(3).learn(wrong)
            except InvalidInput:
                continue
            raise AssertionError(f"{wrong} was accepted for 3 policies")

    def _choices(self, arms: int, jobs: int, *, seed: int) -> list[int]:
        selector, random = self.make(arms), np.random.default_rng(seed)
        chosen = []
        for utilities in _jobs(arms, jobs):
            chosen.append(selector.choose(random))
            selector.learn(utilities)
        return chosen


def _jobs(arms: int, jobs: int) -> list[NDArray[np.float64]]:
    """Return random utilities in [0, 1], one array per job, the same in every call."""
    random = np.random.default_rng(99)
    return [random.uniform(0, 1, arms) for _ in range(jobs)]

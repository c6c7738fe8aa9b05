"""The elastic training loop: the same step on however many members there are.

Every round forms the group, computes this member's share of the step, adds up and updates. What
fails is tried again with whoever is left; nothing changes before the sum is complete, so a lost
member costs at most one step.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from typing import TYPE_CHECKING

from duetune.core.progress import Phase, Progress
from duetune.training.group import GroupBroken, Left

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.training.group import Group
    from duetune.training.membership import Arrangement
    from duetune.training.saver import Saver
    from duetune.training.shared_state import SharedState
    from duetune.training.worker_contract import Notice, ProgressReporter

_log = logging.getLogger(__name__)

_MOST_PAUSE_S = 2.0


class ElasticTraining:
    """``run`` until all steps are done or this node will be taken.

    ``over``: whether the result is there already.
    """

    def __init__(
        self,
        learner: SharedState,
        group: Group,
        saver: Saver,
        reporter: ProgressReporter,
        notice: Notice,
        *,
        over: Callable[[], bool],
        logging_steps: int,
    ) -> None:
        self._learner = learner
        self._group = group
        self._saver = saver
        self._reporter = reporter
        self._notice = notice
        self._over = over
        self._logging_steps = logging_steps
        self._pace = StepPace()

    def run(self) -> bool:
        """Whether all steps are done; if not, this member was told to leave and has saved."""
        learner, failures = self._learner, 0
        while learner.step < learner.total_steps:
            if self._over():
                # Others were faster while this member stood still.
                return True
            if self._notice.given:
                self._leave()
                return False
            try:
                self._round()
                failures = 0
            except GroupBroken as broken:
                self._pace.disturb()
                failures += 1
                _log.info("step %d again: %s", learner.step + 1, broken)
                # A loss costs one try or two. What fails on and on (a network that lets nobody
                # through) must not fill the log.
                time.sleep(min(0.01 * 2**failures, _MOST_PAUSE_S) if failures > 3 else 0.0)
            except Left:
                self._leave()
                return False
        self._saver.save_now(learner)
        return True

    def _round(self) -> None:
        learner, group = self._learner, self._group
        arrangement = group.form()
        self._pace.formed(arrangement)
        self._saver.lead(leads=arrangement.leads)
        if learner.step >= learner.total_steps or self._over():
            return
        part = learner.contribution(arrangement.rank, arrangement.world, self._touch)
        total = learner.combined(group.gather(part)) if learner.exact else group.add_up(part)[0]
        learner.update(total)
        change = self._pace.stepped()
        if change is not None:
            _log.info("step %d: %s", learner.step, change)
        if arrangement.leads and not self._over():
            self._tell(arrangement)
            self._saver.save_if_due(learner)

    def _touch(self) -> None:
        self._group.touch()
        if self._notice.given:
            self._group.hush()

    def _tell(self, arrangement: Arrangement) -> None:
        known, step_s = self._learner.known, self._pace.step_s
        if known.step % self._logging_steps == 0 or known.step == self._learner.total_steps:
            pace = "" if step_s is None else f", {step_s:.3g} s/step"
            _log.info(
                "step %d/%d: loss %.4f, %s%s",
                known.step,
                self._learner.total_steps,
                known.losses[-1],
                members(arrangement.world),
                pace,
            )
        self._reporter.report(
            Progress(
                step=known.step,
                total_steps=self._learner.total_steps,
                world=arrangement.world,
                step_s=step_s,
                tokens=known.tokens,
                loss=known.losses[-1],
                checkpoint_step=self._saver.saved_step,
                phase=Phase.TRAINING,
                message=self._saver.warning,
            )
        )

    def _leave(self) -> None:
        self._group.hush()
        _log.info("this node will be taken: leaving after step %d", self._learner.step)
        self._saver.save_now(self._learner)


STEADY = 4
"""So many undisturbed steps tell a pace."""


class StepPace:
    """How long a step takes, and how long a change of members took."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._recent: deque[float] = deque(maxlen=20)
        self._arrangement: Arrangement | None = None
        self._before = 0
        self._disturbed = True

    @property
    def step_s(self) -> float | None:
        """The usual length of a step with the present members; None until it is known: the first
        ones after a change are slower.
        """
        return statistics.median(self._recent) if len(self._recent) >= STEADY else None

    def disturb(self) -> None:
        self._disturbed = True

    def formed(self, arrangement: Arrangement) -> None:
        if arrangement.connect:
            self._disturbed = True
            self._recent.clear()
        self._arrangement = arrangement

    def stepped(self) -> str | None:
        """Called after every step; in words, the change of members that it was the first after."""
        now, world = time.monotonic(), self._arrangement.world if self._arrangement else 0
        taken, self._last = now - self._last, now
        disturbed, self._disturbed = self._disturbed, False
        if not disturbed:
            self._recent.append(taken)
            return None
        before, self._before = self._before, world
        if before:
            return f"{members(before)} -> {members(world)}, {taken:.2f} s until this step was done"
        return f"joined, {members(world)}"


def members(count: int) -> str:
    return "1 member" if count == 1 else f"{count} members"

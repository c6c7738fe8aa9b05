"""The elastic training loop: the same steps with any number of members.

Every round forms the group, computes this member's share of the step, sums the gradients of all
members, and updates the model. After a failure the round is repeated with the remaining members.
The state changes only after the sum is complete, so a lost member costs at most one step.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from typing import TYPE_CHECKING

from duetune.core.progress import Phase, Progress
from duetune.training.evaluation import stopped_words
from duetune.training.group import GroupBroken, Left
from duetune.training.metrics import MetricRow
from duetune.wall_clock import wall_now

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.training.evaluation import Evaluation, EvaluationHistory
    from duetune.training.group import Group
    from duetune.training.membership import Arrangement
    from duetune.training.saver import Saver
    from duetune.training.shared_state import SharedState
    from duetune.training.task import TrainingTask
    from duetune.training.tracking import Tracking
    from duetune.training.worker_contract import Notice, ProgressReporter

_log = logging.getLogger(__name__)

_MOST_PAUSE_S = 2.0


class ElasticTraining:
    """The training loop of one member. ``over`` returns whether the result is already published."""

    def __init__(
        self,
        task: TrainingTask,
        learner: SharedState,
        evaluation: Evaluation,
        group: Group,
        saver: Saver,
        reporter: ProgressReporter,
        notice: Notice,
        tracking: Tracking,
        *,
        over: Callable[[], bool],
    ) -> None:
        self._task = task
        self._learner = learner
        self._evaluation = evaluation
        self._group = group
        self._saver = saver
        self._reporter = reporter
        self._notice = notice
        self._tracking = tracking
        self._over = over
        self._pace = StepPace()

    def run(self) -> bool:
        """Train; return True if all steps are done, False if this member has saved and left."""
        learner, failures = self._learner, 0
        while learner.step < learner.total_steps:
            if self._over():
                # The other members have finished while this one was suspended.
                return True
            if self._saver.superseded:
                # Its reports and saves would mix with those of the later launch.
                _log.warning("leaving after step %d: a later launch has taken over", learner.step)
                return False
            if self._notice.given:
                self._leave()
                return False
            try:
                self._round()
                failures = 0
            except GroupBroken as broken:
                self._pace.disturb()
                failures += 1
                _log.info("repeating step %d: %s", learner.step + 1, broken)
                # A lost member causes one or two failures. Repeated ones (such as a blocked
                # network) must not fill the log.
                time.sleep(min(0.01 * 2**failures, _MOST_PAUSE_S) if failures > 3 else 0.0)
            except Left:
                self._leave()
                return False
        self._saver.save_now(learner)
        return True

    def _round(self) -> None:
        """Form the group and do one step with it."""
        learner, group = self._learner, self._group
        arrangement = group.form()
        self._pace.formed(arrangement)
        self._saver.lead(leads=arrangement.leads)
        self._tracking.lead(learner.step, leads=arrangement.leads)
        if self._task.load_best_model_at_end:
            self._saver.pin(learner.known.evaluated.best_step)
        if learner.step >= learner.total_steps or self._over():
            return
        evaluated = self._evaluated(arrangement)
        if learner.total_steps == learner.step:
            return
        paces = arrangement.paces
        part = learner.contribution(arrangement.rank, paces, self._touch)
        if evaluated.best_step == learner.step:
            # The step makes these parameters the best for all members: they must be on disk first.
            # A large state takes long: the others must not take this member for dead.
            self._saver.wait(self._touch)
        before = learner.known.tokens
        if learner.reproducible:
            learner.update(learner.combined(group.gather(part), paces), evaluated)
        else:
            learner.update(group.add_up(part)[0], evaluated)
        change = self._pace.stepped()
        if change is not None:
            _log.info("step %d: %s", learner.step, change)
        self._tracking.add(self._row(arrangement, learner.known.tokens - before))
        if arrangement.leads and not self._over():
            self._report(arrangement)
            self._saver.save_if_due(learner)

    def _evaluated(self, arrangement: Arrangement) -> EvaluationHistory:
        """Return the evaluations up to this state; measure the loss first if that is due.

        The state stays as it is, unless the result ends training: then every member stops here.
        """
        learner, task, before = self._learner, self._task, self._learner.known.evaluated
        if before.step == learner.step or not self._evaluation.due(learner.step):
            return before
        began = time.monotonic()
        part = learner.evaluated_share(
            self._evaluation, arrangement.rank, arrangement.paces, self._touch
        )
        loss = self._evaluation.mean(self._group.gather(part), arrangement.paces)
        found = before.after(learner.step, loss, task.early_stopping_threshold)
        self._pace.evaluated(time.monotonic() - began, self._evaluation.every)
        self._tracking.add(MetricRow(step=learner.step, eval_loss=loss))
        if arrangement.leads:
            _log.info("step %d: evaluation loss %.4f", learner.step, loss)
        if task.load_best_model_at_end and found.best_step == learner.step and arrangement.leads:
            # Until the next step is done, a restart may still need the best one before.
            self._saver.pin(before.best_step, learner.step)
            self._saver.save_best(learner, self._touch)
        patience = task.early_stopping_patience
        if patience is not None and found.waited >= patience:
            learner.stop(found)
            words = stopped_words(learner.step, learner.planned_steps, found.waited)
            _log.info("%s", words)
        return found

    def _row(self, arrangement: Arrangement, tokens: int) -> MetricRow:
        """Return the metrics of the step that was just done."""
        known, last_s = self._learner.known, self._pace.last_s
        return MetricRow(
            step=known.step,
            at=wall_now(),
            tokens=known.tokens,
            loss=known.losses[-1],
            learning_rate=self._task.learning_rate_at(known.step - 1, self._learner.planned_steps),
            grad_norm=known.grad_norm,
            tokens_per_s=tokens / last_s if last_s else None,
            members=arrangement.world,
        )

    def _touch(self) -> None:
        self._group.touch()
        if self._notice.given:
            self._group.hush()

    def _report(self, arrangement: Arrangement) -> None:
        """Log and report the step that was just done. Only the leader calls this."""
        known, total, step_s = self._learner.known, self._learner.total_steps, self._pace.step_s
        loss, world = known.losses[-1], arrangement.world
        if known.step % self._task.logging_steps == 0 or known.step == total:
            pace = "" if step_s is None else f", {step_s:.3g} s/step"
            text = "step %d/%d: loss %.4f, %s%s"
            _log.info(text, known.step, total, loss, members(world), pace)
        self._reporter.report(
            Progress(
                step=known.step,
                total_steps=total,
                world=world,
                step_s=step_s,
                tokens=known.tokens,
                loss=loss,
                eval_loss=known.evaluated.loss,
                best_eval_loss=known.evaluated.best_loss,
                best_step=known.evaluated.best_step,
                checkpoint_step=self._saver.saved_step,
                phase=Phase.TRAINING,
                message=self._saver.warning or self._tracking.warning,
                trainer=self._learner.way,
            )
        )

    def _leave(self) -> None:
        self._group.hush()
        _log.info("this node will be taken; leaving after step %d", self._learner.step)
        self._saver.save_now(self._learner)


STEADY = 4
"""Number of steps without a change of members before a step time is reported."""


class StepPace:
    """Measures the time of a step and of a change of members."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._recent: deque[float] = deque(maxlen=20)
        self._arrangement: Arrangement | None = None
        self._before = 0
        self._disturbed = True
        self._evaluation_s = 0.0
        self.last_s: float | None = None

    @property
    def step_s(self) -> float | None:
        """Return the median step time with the current members, in seconds.

        A step's share of the last evaluation is part of it, because deadlines include it. None
        until ``STEADY`` steps were measured; the first steps after a change are slower.
        """
        if len(self._recent) < STEADY:
            return None
        return statistics.median(self._recent) + self._evaluation_s

    def evaluated(self, taken_s: float, every: float) -> None:
        """Record an evaluation; ``every`` steps there is one. It is no part of the next step."""
        self._evaluation_s = taken_s / every
        self._last += taken_s

    def disturb(self) -> None:
        """Leave the current step out of the measurement. Called when a round has failed."""
        self._disturbed = True

    def formed(self, arrangement: Arrangement) -> None:
        """Start measuring again if the members have changed. Called when the group has formed."""
        if arrangement.connect:
            self._disturbed = True
            self._recent.clear()
        self._arrangement = arrangement

    def stepped(self) -> str | None:
        """Record the end of a step.

        Return a description of the change of members if this is the first step after one.
        """
        now, world = time.monotonic(), self._arrangement.world if self._arrangement else 0
        taken, self._last = now - self._last, now
        self.last_s = None if self._disturbed else taken
        disturbed, self._disturbed = self._disturbed, False
        if not disturbed:
            self._recent.append(taken)
            return None
        before, self._before = self._before, world
        if before:
            return f"{members(before)} -> {members(world)}, {taken:.2f} s since the last step"
        return f"joined the group, {members(world)}"


def members(count: int) -> str:
    """Return a number of members in words."""
    return "1 member" if count == 1 else f"{count} members"

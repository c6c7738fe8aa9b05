"""Decides which members train the next step together: all that are alive and have asked.

The coordinator's process calls this (``coordinator``); members ask over its door
(``coordinator_client``). What a quorum means for each member is decided in ``membership``.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.training.group_times import QuorumTimes
    from duetune.training.membership import Member

_TICK_S = 0.02


class _Question:
    """One member's wait for a quorum; ``answer`` is empty if a later question replaced it."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.answer: tuple[Member, ...] | None = None


class Quorum:
    """The living members of one job and their questions. Any thread may call.

    - ``vouch``: is given every member of a quorum and returns it as the others may believe it.
    - ``settle_s``: no question is answered for this long, because members of a former coordinator
      must find this one first.
    """

    def __init__(
        self, times: QuorumTimes, vouch: Callable[[Member], Member], settle_s: float = 0.0
    ) -> None:
        self._times = times
        self._vouch = vouch
        self._changed = threading.Condition()
        self._living: dict[str, float] = {}
        self._asked: dict[str, _Question] = {}
        self._first_at = 0.0
        self._opens_at = time.monotonic() + settle_s
        self._open = True

    def close(self) -> None:
        """Answer all questions, also later ones, with nothing."""
        with self._changed:
            self._open = False
            for question in self._asked.values():
                question.answer = ()
            self._changed.notify_all()

    def beat(self, member: str) -> None:
        """Record a heartbeat."""
        with self._changed:
            self._living[member] = time.monotonic()

    def gone(self, member: str) -> None:
        """Forget a member at once. Called when its heartbeat connection has ended."""
        with self._changed:
            self._living.pop(member, None)
            self._changed.notify_all()

    def ask(self, member: Member) -> tuple[Member, ...]:
        """Wait for the next quorum with this member and return its members.

        It returns nothing if the same member has asked again meanwhile, or after ``close``.
        """
        question = _Question(member)
        with self._changed:
            now = time.monotonic()
            self._living[member.id] = now
            if not self._asked:
                self._first_at = now
            replaced = self._asked.get(member.id)
            if replaced is not None:
                replaced.answer = ()
            self._asked[member.id] = question
            self._changed.notify_all()
            while self._open and question.answer is None:
                self._answer_if_ready()
                if question.answer is None:
                    self._changed.wait(_TICK_S)
            return question.answer or ()

    def _answer_if_ready(self) -> None:
        now = time.monotonic()
        living = {name for name, at in self._living.items() if now - at < self._times.heartbeat_s}
        present = living & self._asked.keys()
        waited = now - self._first_at >= self._times.join_s and 2 * len(present) > len(living)
        if not present or now < self._opens_at or (present != living and not waited):
            return
        self._living = {name: at for name, at in self._living.items() if name in living}
        questions, self._asked = self._asked, {}
        members = tuple(self._vouch(questions[name].member) for name in sorted(present))
        for question in questions.values():
            question.answer = members if question.member.id in present else ()
        self._changed.notify_all()

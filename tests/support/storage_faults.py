"""A storage that stops at one of its calls: killed, failing, or paused."""

from __future__ import annotations

import itertools
import threading

from duetune.errors import StorageError


class Killed(BaseException):
    """The process is gone: nothing of it may run any more, so nothing catches this."""


class FaultyStorage:
    """Calls ``fault`` at call ``at``, before or after it has its effect.

    Deleting several files is several calls, as it is in a store. With ``fault=None`` it counts.
    """

    def __init__(self, inner, at=0, fault=None, *, after=False):
        self.inner, self.at, self.fault, self.after = inner, at, fault, after
        self.calls = 0

    @property
    def url(self):
        return self.inner.url

    def _call(self, method, *arguments):
        self.calls += 1
        here = self.fault is not None and self.calls == self.at
        if here and not self.after:
            self.fault()
        answer = method(*arguments)
        if here and self.after:
            self.fault()
        return answer

    def delete(self, names):
        for name in list(names):
            self._call(self.inner.delete, [name])

    def __getattr__(self, name):
        return lambda *arguments: self._call(getattr(self.inner, name), *arguments)


class Unsteady(FaultyStorage):
    """A storage that fails while ``away`` is set; its retries are over at once."""

    retry = True

    def __init__(self, inner):
        super().__init__(inner)
        self.away = threading.Event()

    def _call(self, method, *arguments):
        if self.away.is_set():
            raise StorageError(self.url, "no network", retry=self.retry)
        return super()._call(method, *arguments)


def every_call(storage_of, scenario):
    """Yields (call, after) for every call that ``scenario`` makes on a fresh storage."""
    counting = FaultyStorage(storage_of())
    scenario(counting)
    return itertools.product(range(1, counting.calls + 1), (False, True))

"""A line on the terminal while code is compiled, so that a first use does not look hung.

Numba compiles a function when it is first called, and keeps the result on disk. The first
``simulate`` of an installation takes about half a minute for this.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self, TextIO

ENOUGH_S = 1.0
"""The line is shown after code was compiled for this long."""

LOOK_S = 0.25
_ERASE = "\r\033[K"
_WORDS = "Compiling for the first use, which takes about half a minute"


class CompileNotice:
    """Watches Numba while a command runs and shows one line with the seconds so far.

    Nothing is shown if the stream is not a terminal. ``main`` uses it as a context manager.
    """

    def __init__(self, stream: TextIO, enough_s: float = ENOUGH_S) -> None:
        self._stream = stream
        self._enough_s = enough_s
        self._over = threading.Event()
        self._compiling = 0
        self._thread: threading.Thread | None = None
        self.held = False

    def __enter__(self) -> Self:
        if self._stream.isatty():
            # A daemon: an interrupted command must not wait for it.
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def notify(self, event: object) -> None:
        """Count the functions that are being compiled; Numba calls this at begin and end."""
        started, ended = getattr(event, "is_start", False), getattr(event, "is_end", False)
        self._compiling = max(0, self._compiling + int(started) - int(ended))

    def _watch(self) -> None:
        seconds, shown, events = 0.0, False, None
        while not self._over.wait(LOOK_S):
            # Numba is slow to import, so a command that does not need it must not pay for it.
            if events is None and "numba.core.dispatcher" in sys.modules:
                events = importlib.import_module("numba.core.event")
                events.Listener.register(type(self))
                events.register("numba:compile", self)
            if self._compiling > 0 and not self.held:
                seconds += LOOK_S
                if seconds > self._enough_s:
                    self._stream.write(f"{_ERASE}{_WORDS}: {seconds:.0f} s")
                    self._stream.flush()
                    shown = True
            elif shown:
                self._erase()
                shown = False
        if events is not None:
            events.unregister("numba:compile", self)
        if shown:
            self._erase()

    def _erase(self) -> None:
        self._stream.write(_ERASE)
        self._stream.flush()

"""``python -m duetune.training.profiler.measuring_worker [BATCH RESULTS]``: measures a batch.

The worker reads a header and trials, and writes one line for each trial. A line is on disk once it
is written, so nothing measured is lost. The worker ends after the current trial when it gets
SIGTERM, or when its parent is gone. Without arguments it imports everything and waits for a line
with a JSON list of the two paths, so that the next worker is ready when one ends. It needs
torch, transformers, PEFT, numpy and msgspec.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.knowledge.measure.worker_messages import (
    DONE,
    POISONED,
    Header,
    Trial,
    ordered,
    started_line,
)
from duetune.training.torch_environment import set_environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import TextIO

USAGE = 2


class _Stop:
    """Set by SIGTERM and SIGINT, or by the end of the parent; checked between trials."""

    def __init__(self) -> None:
        self._signalled = False
        self._parent = os.getppid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def asked(self) -> bool:
        """Return whether the worker should end."""
        return self._signalled or os.getppid() != self._parent

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled = True


def main(arguments: Sequence[str]) -> int:
    """Measure a batch and return the exit status."""
    if len(arguments) not in {0, 2}:
        sys.stderr.write(__doc__ or "")
        return USAGE
    stop = _Stop()
    set_environment()
    from duetune.training.profiler.bench import Bench  # noqa: PLC0415 - imports torch

    places = arguments or _awaited()
    if not places or stop.asked():
        return DONE
    batch, results = (Path(each) for each in places)
    lines = batch.read_text(encoding="utf-8").splitlines()
    header = Header.read(lines[0])
    trials = ordered([Trial.read(line) for line in lines[1:] if line.strip()])
    with results.open("a", encoding="utf-8") as file:
        bench = Bench(header)
        _write(file, bench.build(trials[0]).line())
        for trial in trials:
            if stop.asked():
                break
            _write(file, started_line(trial))
            result = bench.run(trial)
            _write(file, result.line())
            if "poisoned" in result.flags:
                return POISONED
    return DONE


def _awaited() -> list[str]:
    """Return the two paths from standard input, or nothing if it is closed first."""
    with contextlib.suppress(ImportError):
        import peft  # noqa: F401, PLC0415 - imported ahead of the first trial
    line = sys.stdin.readline()
    return [str(each) for each in json.loads(line)] if line.strip() else []


def _write(file: TextIO, line: str) -> None:
    """Write one line to disk before returning."""
    file.write(line + "\n")
    file.flush()
    os.fsync(file.fileno())


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit, because destroying a large CUDA context can take seconds or hang.
    os._exit(status)

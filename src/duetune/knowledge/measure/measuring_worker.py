"""``python -m duetune.knowledge.measure.measuring_worker [BATCH RESULTS]``: measures one batch.

Reads a header and trials, and writes a line for each, which lasts once it is written: whatever
ends this process, nothing that was measured is lost. Ends after the current trial when told to
terminate, or when whoever started it is gone. Without arguments it imports all it needs, and waits
for a line with a JSON list of the two: so the next worker is ready when one ends. Needs torch,
transformers and PEFT, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.knowledge.measure.worker_messages import DONE, POISONED, Header, Trial, started_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import TextIO

USAGE = 2


class _Stop:
    """Set by SIGTERM and SIGINT, or by the end of the parent; looked at between trials."""

    def __init__(self) -> None:
        self._signalled = False
        self._parent = os.getppid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def asked(self) -> bool:
        return self._signalled or os.getppid() != self._parent

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled = True


def main(arguments: Sequence[str]) -> int:
    if len(arguments) not in {0, 2}:
        sys.stderr.write(__doc__ or "")
        return USAGE
    stop = _Stop()
    from duetune.knowledge.measure.bench import Bench  # noqa: PLC0415 - imports torch

    places = arguments or _awaited()
    if not places or stop.asked():
        return DONE
    batch, results = (Path(each) for each in places)
    lines = batch.read_text(encoding="utf-8").splitlines()
    header = Header.read(lines[0])
    trials = ordered([Trial.read(line) for line in lines[1:] if line.strip()])
    with results.open("a", encoding="utf-8") as file:
        bench = Bench(header)
        _write(file, bench.build().line())
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
    """What comes in by standard input; nothing if that is closed first."""
    with contextlib.suppress(ImportError):
        import peft  # noqa: F401, PLC0415 - so that it need not be imported later
    line = sys.stdin.readline()
    return [str(each) for each in json.loads(line)] if line.strip() else []


def ordered(trials: list[Trial]) -> list[Trial]:
    """Those without a cap first; then so that the adapter seldom changes, small ones first."""
    return sorted(
        trials,
        key=lambda trial: (
            trial.cap_bytes > 0,
            trial.adapter,
            trial.batch_size * trial.tokens_per_sample,
            trial.id,
        ),
    )


def _write(file: TextIO, line: str) -> None:
    file.write(line + "\n")
    file.flush()
    os.fsync(file.fileno())


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: taking a CUDA context with gigabytes in it apart can take seconds, or hang.
    os._exit(status)

"""A worker that measures nothing: what a configuration does is told by its tokens per sample.

As the real one it waits for a batch, and writes a line before and after each trial. 13 tokens kill
it, 17 run out of memory, 19 hang, 23 lose the GPU, 29 take a second; all else is valid at once.
With the argument "dead" it ends before the model is there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from duetune.knowledge.measure.worker_messages import (
    DONE,
    POISONED,
    Header,
    Ready,
    Trial,
    TrialResult,
    ordered,
    started_line,
)

DIES, RUNS_OUT, HANGS, POISONS, SLOW = 13, 17, 19, 23, 29


def main() -> int:
    if sys.argv[1:] == ["dead"]:
        sys.stderr.write("no module named torch\n")
        return 1
    stop, parent = [], os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    line = sys.stdin.readline()
    if not line.strip():
        return DONE
    batch, results = (Path(each) for each in json.loads(line))
    lines = batch.read_text().splitlines()
    Header.read(lines[0])
    with results.open("a") as file:

        def write(text: str) -> None:
            file.write(text + "\n")
            file.flush()

        write(
            Ready(
                device="pretend",
                software="pretend 1",
                parameters=1,
                build_s=0.0,
                memory_gb=None,
                context_gb=None,
            ).line()
        )
        for trial in ordered([Trial.read(each) for each in lines[1:]]):
            if stop or os.getppid() != parent:
                break
            write(started_line(trial))
            kind = trial.tokens_per_sample
            if kind == DIES:
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == HANGS:
                time.sleep(600)
            if kind == SLOW:
                time.sleep(1)
            valid = kind not in {RUNS_OUT, POISONS}
            write(
                TrialResult(
                    id=trial.id,
                    outcome="valid" if valid else "oom" if kind == RUNS_OUT else "failed",
                    measured_at=time.time(),
                    runtime_s=0.01,
                    tokens_per_s=float(trial.tokens_per_microbatch) if valid else None,
                    step_s=0.01 if valid else None,
                    steps=3 if valid else 0,
                    peak_memory_gb=1.0 if valid else None,
                    flags=("poisoned",) if kind == POISONS else (),
                ).line()
            )
            if kind == POISONS:
                return POISONED
    return DONE


if __name__ == "__main__":
    sys.exit(main())

"""An own command that pretends to train: python pretend_trainer.py STEPS SECONDS_PER_STEP [FILE].

It keeps the contract (progress, checkpoint, notice) with the standard library alone. It has
finished after all steps, or as soon as FILE exists.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

LEFT = 75


def main() -> int:
    total, step_s = int(sys.argv[1]), float(sys.argv[2])
    saved = Path(os.environ["DUETUNE_CHECKPOINT_DIR"]) / "step"
    saved.parent.mkdir(parents=True, exist_ok=True)
    notices = []
    signal.signal(signal.SIGTERM, lambda *_: notices.append(1))
    step = int(saved.read_text()) if saved.exists() else 0
    print("begins at step", step, flush=True)  # noqa: T201 - the log is what is tested
    while step < total and not any(map(os.path.exists, sys.argv[3:])):
        if notices:
            return LEFT
        time.sleep(step_s)
        step += 1
        write(saved, str(step))
        report(step, total, step_s, "training")
    report(step, total, step_s, "finished", output=os.environ["DUETUNE_OUTPUT_DIR"])
    return 0


def report(step, total, step_s, phase, **more):
    progress = {
        "step": step,
        "total_steps": total,
        "world": 1,
        "step_s": step_s,
        "phase": phase,
        "checkpoint_step": step,
        "at": time.time(),
        **more,
    }
    write(Path(os.environ["DUETUNE_PROGRESS_FILE"]), json.dumps(progress))


def write(path, text):
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())

"""A real fine-tune of a tiny model on a live home, and what it reported."""

from __future__ import annotations

import fcntl
import json
from contextlib import contextmanager

from duetune.core.events import Reported
from support.live_home import DISTANT

ROWS = [{"prompt": f"Say {n}.", "completion": f" {n}, as you wish."} for n in range(48)]
TRAINING = {
    "max_steps": 30,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "reproducible": True,
    "learning_rate": 0.01,
    "max_length": 64,
    "eval_fraction": 0.2,
}


def spec(home, model, *, rows=ROWS, **fields):
    dataset = home.folder / "rows.jsonl"
    dataset.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    path = home.folder / "job.yaml"
    lines = {
        "name": "tune",
        "model": model,
        "dataset": dataset,
        "deadline": DISTANT,
        "policy": "maximal_spot",
        "training": json.dumps(TRAINING),
        **fields,
    }
    path.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
    return path


@contextmanager
def unpublished(folder):
    """Meanwhile no member can publish the result, so the job cannot end."""
    with (folder / ".output.lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def progress(home, job):
    return [
        each.event.progress
        for each in home.story(job)
        if isinstance(each.event, Reported) and each.event.progress is not None
    ]

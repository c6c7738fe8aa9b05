"""Builds the model of the demo, a small Llama over bytes with random weights, and says how fast to
emulate GPUs here.

    python model.py FOLDER    prints the wall seconds that an emulated GPU should take for a
                              microbatch: so many that four of them fit on this machine now
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from duetune.training.tiny import build_tiny_model

GPUS = 4
SHAPE = (2, 192)
"""The sequences of a microbatch and their longest length, as in job.yaml."""
FASTEST_S = 0.05
MARGIN = 1.5
"""The demo has other processes too, and a machine may become busier while it runs."""


def microbatch_s(folder: Path) -> float:
    """Return the median wall seconds of a microbatch while as many processes train as in the demo.

    Each process measures itself; the slowest counts.
    """
    model = AutoModelForCausalLM.from_pretrained(folder)
    ends = []
    for _ in range(GPUS):
        listener, speaker = os.pipe()
        if os.fork() == 0:
            os.write(speaker, str(_timed(model)).encode())
            os._exit(0)
        os.close(speaker)
        ends.append(listener)
    times = [float(os.read(end, 100)) for end in ends]
    for _ in ends:
        os.wait()
    return max(times)


def _timed(model: torch.nn.Module) -> float:
    tokens = torch.randint(0, 200, SHAPE)
    times = []
    for _ in range(30):
        begin = time.perf_counter()
        model(input_ids=tokens, labels=tokens).loss.backward()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


if __name__ == "__main__":
    disable_progress_bar()
    torch.set_num_threads(1)
    made = build_tiny_model(Path(sys.argv[1]), hidden=96, layers=2, heads=4, seed=7)
    print(f"{max(FASTEST_S, MARGIN * microbatch_s(made)):.3f}")

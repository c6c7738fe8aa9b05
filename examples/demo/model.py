"""Builds the model of the demo: a small Llama over bytes, with random weights."""

from __future__ import annotations

import sys
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from duetune.training.tiny import build_tiny_model

if __name__ == "__main__":
    disable_progress_bar()
    folder = build_tiny_model(Path(sys.argv[1]), hidden=96, layers=2, heads=4, seed=7)
    print(f"A small transformer, built here: {folder}")

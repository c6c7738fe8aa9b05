"""The environment variables that the trainer and the profiler's worker run with."""

from __future__ import annotations

import os

ALLOCATOR = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
"""The names under which torch reads the settings of its allocator."""


def set_environment() -> None:
    """Set what the user has not set. Torch and its libraries read these variables once, on import
    or on first use, so this is called before.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("RUST_LOG", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    if not any(name in os.environ for name in ALLOCATOR):
        # Packed microbatches differ in size. Without this, the allocator keeps blocks that the
        # next one cannot use, up to a fifth of the memory.
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"

"""Runs of Weights & Biases as they lie on disk, or as they are downloaded: ``config.yaml``,
``wandb-summary.json``, and ``wandb-metadata.json`` if it is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.interop.import_runs.run_documents import moment_of, read_document
from duetune.interop.import_runs.tracked_run import Run, flattened
from duetune.knowledge.observation import RunOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SUMMARY = "wandb-summary.json"
_CONFIG = "config.yaml"
_TAIL = 65_536


def wandb_folders(place: Path) -> list[Path]:
    """Those with a summary: a run, its ``files``, or all runs of a ``wandb`` folder."""
    patterns = (SUMMARY, f"files/{SUMMARY}", f"*/{SUMMARY}", f"*/files/{SUMMARY}")
    return sorted({path.parent.resolve() for each in patterns for path in place.glob(each)})


def wandb_run(folder: Path) -> Run:
    config, metadata = folder / _CONFIG, folder / "wandb-metadata.json"
    settings: dict[str, str] = {}
    about = read_document(metadata) if metadata.is_file() else {}
    settings |= flattened({name: about.get(name) for name in ("gpu", "gpu_count")})
    if config.is_file():
        settings |= flattened(_values(read_document(config)))
    summary = read_document(folder / SUMMARY)
    numbers = {
        name.rsplit("/", 1)[-1]: float(value)
        for name, value in summary.items()
        if isinstance(value, int | float)
    }
    ran_out = _ran_out(folder / "output.log")
    name = folder.parent.name if folder.name == "files" else folder.name
    return Run(
        settings=settings,
        numbers=numbers,
        provenance=f"wandb {name}",
        outcome=RunOutcome.OOM if ran_out and "train_runtime" not in numbers else None,
        measured_at=moment_of(about.get("startedAt")),
        error="CUDA out of memory" if ran_out else "",
    )


def _values(config: Mapping[str, object]) -> dict[str, object]:
    """Each setting is ``{value: ..., desc: ...}``; what is of the tracker itself is left out."""
    return {
        name: each.get("value") if isinstance(each, dict) else each
        for name, each in config.items()
        if name not in {"_wandb", "wandb_version"}
    }


def _ran_out(log: Path) -> bool:
    if not log.is_file():
        return False
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        tail = file.read()
    return b"OutOfMemoryError" in tail or b"CUDA out of memory" in tail

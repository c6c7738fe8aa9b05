"""Runs in MLflow's file store (``mlruns``): folders with ``meta.yaml``, ``params``, ``metrics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.interop.import_runs.run_documents import read_document
from duetune.interop.import_runs.tracked_run import Run
from duetune.knowledge.observation import RunOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

META = "meta.yaml"
# FAILED and KILLED; the others are RUNNING, SCHEDULED and FINISHED.
_OUTCOMES = {"4": RunOutcome.FAILED, "FAILED": RunOutcome.FAILED}
_OUTCOMES |= {"5": RunOutcome.STOPPED, "KILLED": RunOutcome.STOPPED}
_MEMORY = "memory_usage_megabytes"
_OUT_OF_MEMORY = ("outofmemory", "out of memory")


def mlflow_folders(place: Path) -> list[Path]:
    """The runs in a run folder, in that of an experiment, or in all of ``mlruns``."""
    return sorted(
        path.parent
        for pattern in (META, f"*/{META}", f"*/*/{META}")
        for path in place.glob(pattern)
        if (path.parent / "params").is_dir() or (path.parent / "metrics").is_dir()
    )


def mlflow_run(folder: Path) -> Run:
    meta = read_document(folder / META)
    tags = dict(_texts(folder / "tags"))
    settings = {name.rsplit("/", 1)[-1]: text for name, text in _texts(folder / "params")}
    metrics = dict(_metrics(folder / "metrics"))
    numbers = {name.rsplit("/", 1)[-1]: values[-1] for name, values in metrics.items()}
    numbers |= {"global_step": numbers["step"]} if "step" in numbers else {}
    peaks = [max(values) for name, values in metrics.items() if name.endswith(_MEMORY)]
    outcome = _OUTCOMES.get(str(meta.get("status", "")))
    told = " ".join(tags.values()).casefold()
    if outcome is RunOutcome.FAILED and any(words in told for words in _OUT_OF_MEMORY):
        outcome = RunOutcome.OOM
    started = meta.get("start_time")
    return Run(
        settings=settings,
        numbers=numbers,
        provenance=f"mlflow {meta.get('run_id') or folder.name}",
        outcome=outcome,
        measured_at=started / 1000 if isinstance(started, int | float) else 0.0,
        peak_memory_gb=max(peaks) / 1000 if peaks else None,
        gpu_utilisation=_mean(metrics, "utilization_percentage"),
        power_w=_mean(metrics, "power_usage_watts"),
    )


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file():
            try:
                yield path.relative_to(folder).as_posix(), path.read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError):
                raise InvalidInput("history", str(path), "a readable file") from None


def _metrics(folder: Path) -> Iterator[tuple[str, list[float]]]:
    """The values of each, in the order they were logged: a line is moment, value, step."""
    for name, text in _texts(folder):
        try:
            values = [float(line.split()[1]) for line in text.splitlines() if line.strip()]
        except (IndexError, ValueError):
            raise InvalidInput(
                f"metric {name}", text[:80], "lines of moment, value, step"
            ) from None
        if values:
            yield name, values


def _mean(metrics: dict[str, list[float]], ending: str) -> float | None:
    """Over all GPUs and moments."""
    values = [
        value
        for name, found in metrics.items()
        if "gpu_" in name and name.endswith(f"_{ending}") and "memory" not in name
        for value in found
    ]
    return sum(values) / len(values) if values else None

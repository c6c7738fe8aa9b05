"""Run folders of the transformers Trainer, MLflow and Weights & Biases, each read as a ``Run``.

- Trainer: ``trainer_state.json``. Settings come from ``training_args.json`` (or ``.yaml``,
  ``args.json``) if there is one, ``adapter_config.json`` and ``config.json``. ``training_args.bin``
  is never opened: it is a pickle, which could run any code.
- MLflow's file store (``mlruns``): ``meta.yaml``, ``params`` and ``metrics``.
- Weights & Biases: ``config.yaml``, ``wandb-summary.json``, and ``wandb-metadata.json`` if it is
  there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.interop.import_runs.tracked_run import Run, flattened, moment_of, read_document
from duetune.knowledge.observation import RunOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


STATE = "trainer_state.json"
_ARGUMENTS = ("training_args.json", "training_args.yaml", "training_args.yml", "args.json")
_OF_THE_MODEL = (
    *("_name_or_path", "name_or_path", "torch_dtype", "dtype", "quantization_config"),
    "_attn_implementation",
)


class _State(msgspec.Struct, frozen=True):
    """The fields of ``trainer_state.json`` that are used."""

    global_step: int = 0
    max_steps: int = 0
    num_input_tokens_seen: float | None = None
    train_batch_size: int | None = None
    log_history: tuple[dict[str, object], ...] = ()


def trainer_run(place: Path) -> Run:
    """Return the run of a ``trainer_state.json``, or of the folder it is in."""
    path = place / STATE if place.is_dir() else place
    try:
        state = msgspec.convert(read_document(path), _State, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput("history", path.name, f"the state of a Trainer ({error})") from None
    folder = path.parent
    settings: dict[str, str] = {}
    model = folder / "config.json"
    if model.is_file():
        config = read_document(model)
        settings |= flattened({name: config[name] for name in _OF_THE_MODEL if name in config})
    for name in ("adapter_config.json", *_ARGUMENTS):
        if (folder / name).is_file():
            settings |= flattened(read_document(folder / name))
    if state.train_batch_size:
        settings.setdefault("per_device_train_batch_size", str(state.train_batch_size))
    numbers = {"global_step": float(state.global_step), "max_steps": float(state.max_steps)}
    for entry in state.log_history:
        numbers |= {
            name: float(value)
            for name, value in entry.items()
            if isinstance(value, int | float) and name != "step"
        }
    if state.num_input_tokens_seen:
        numbers["num_input_tokens_seen"] = state.num_input_tokens_seen
    return Run(settings=settings, numbers=numbers, provenance=f"{folder.name}/{path.name}")


META = "meta.yaml"
# FAILED and KILLED; the others are RUNNING, SCHEDULED and FINISHED.
_OUTCOMES = {"4": RunOutcome.FAILED, "FAILED": RunOutcome.FAILED}
_OUTCOMES |= {"5": RunOutcome.STOPPED, "KILLED": RunOutcome.STOPPED}
_MEMORY = "memory_usage_megabytes"
_OUT_OF_MEMORY = ("outofmemory", "out of memory")


def mlflow_folders(place: Path) -> list[Path]:
    """Return the run folders in a run, an experiment or all of ``mlruns``."""
    return sorted(
        path.parent
        for pattern in (META, f"*/{META}", f"*/*/{META}")
        for path in place.glob(pattern)
        if (path.parent / "params").is_dir() or (path.parent / "metrics").is_dir()
    )


def mlflow_run(folder: Path) -> Run:
    """Return the run of one MLflow run folder."""
    meta = read_document(folder / META)
    tags = dict(_texts(folder / "tags"))
    settings = {name.rsplit("/", 1)[-1]: text for name, text in _texts(folder / "params")}
    metrics = dict(_metrics(folder / "metrics"))
    numbers = {name.rsplit("/", 1)[-1]: values[-1] for name, values in metrics.items()}
    numbers |= {"global_step": numbers["step"]} if "step" in numbers else {}
    peaks = [max(values) for name, values in metrics.items() if name.endswith(_MEMORY)]
    outcome = _OUTCOMES.get(str(meta.get("status", "")))
    texts = " ".join(tags.values()).casefold()
    if outcome is RunOutcome.FAILED and any(words in texts for words in _OUT_OF_MEMORY):
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
    """Yield the name and text of each file below a folder."""
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file():
            try:
                yield path.relative_to(folder).as_posix(), path.read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError):
                raise InvalidInput("history", str(path), "a readable file") from None


def _metrics(folder: Path) -> Iterator[tuple[str, list[float]]]:
    """Yield the values of each metric in the order they were logged."""
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
    """Return the mean of a GPU metric over all GPUs and moments; None if there is none."""
    values = [
        value
        for name, found in metrics.items()
        if "gpu_" in name and name.endswith(f"_{ending}") and "memory" not in name
        for value in found
    ]
    return sum(values) / len(values) if values else None


SUMMARY = "wandb-summary.json"
_CONFIG = "config.yaml"
_TAIL = 65_536


def wandb_folders(place: Path) -> list[Path]:
    """Return the folders with a summary: of one run, or of all runs in ``wandb``."""
    patterns = (SUMMARY, f"files/{SUMMARY}", f"*/{SUMMARY}", f"*/files/{SUMMARY}")
    return sorted({path.parent.resolve() for each in patterns for path in place.glob(each)})


def wandb_run(folder: Path) -> Run:
    """Return the run of one Weights & Biases folder."""
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
    """Return the settings, without those of the tracker; each is ``{value: ..., desc: ...}``."""
    return {
        name: each.get("value") if isinstance(each, dict) else each
        for name, each in config.items()
        if name not in {"_wandb", "wandb_version"}
    }


def _ran_out(log: Path) -> bool:
    """Return whether the end of a log says that memory ran out."""
    if not log.is_file():
        return False
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        tail = file.read()
    return b"OutOfMemoryError" in tail or b"CUDA out of memory" in tail

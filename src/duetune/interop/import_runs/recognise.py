"""Import measurements from any file or folder: its files and columns tell which kind it is.

Each kind has its own module; this one chooses the module.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.interop.import_runs import fms_acceleration, llm_foundry, sft_trainer
from duetune.interop.import_runs.fms_acceleration import fms_acceleration_history
from duetune.interop.import_runs.llm_foundry import llm_foundry_history
from duetune.interop.import_runs.run_folders import (
    STATE,
    mlflow_folders,
    mlflow_run,
    trainer_run,
    wandb_folders,
    wandb_run,
)
from duetune.interop.import_runs.sft_trainer import sft_trainer_history
from duetune.interop.import_runs.tracked_run import observed_run
from duetune.knowledge import history_files
from duetune.knowledge.history import History
from duetune.knowledge.model.quality import noted
from duetune.knowledge.text_tables import (
    ImportedRuns,
    Rejected,
    check_memory,
    check_row,
    given_fields,
    read_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from duetune.interop.import_runs.tracked_run import Run
    from duetune.knowledge.observation import Observation
    from duetune.knowledge.text_tables import Table

KINDS = (
    "a CSV file of duetune, of LLMFineTuningBench, of fms-acceleration or of llm-foundry; a folder "
    "with trainer_state.json, an MLflow run (meta.yaml) or a W&B run (wandb-summary.json)"
)
_MISSING = f"a path that exists: {KINDS}"

_TABLES: tuple[tuple[frozenset[str], Callable[[Table], ImportedRuns]], ...] = (
    (frozenset(history_files.NEEDED), history_files.history_of),
    (sft_trainer.COLUMNS, sft_trainer_history),
    (fms_acceleration.COLUMNS, fms_acceleration_history),
    (llm_foundry.COLUMNS, llm_foundry_history),
)


def import_history(place: Path | str, given: Mapping[str, str] | None = None) -> ImportedRuns:
    """Return the measurements in a file or folder, and the rows or runs that were left out.

    ``given`` are configuration fields that a run does not record, such as ``gpu_model``. Tables
    have their own values, so ``given`` is refused for them.
    """
    path = Path(place)
    given_fields(given or {})  # Refused before anything is read.
    if path.is_dir():
        return _folder(path, given or {})
    if path.name == STATE:
        return _runs([path], trainer_run, given or {})
    if not path.is_file() or path.suffix.casefold() not in {".csv", ""}:
        raise InvalidInput("history", str(place), KINDS if path.exists() else _MISSING)
    no_given(path, given)
    return imported_table(read_table(path))


def no_given(path: Path, given: Mapping[str, str] | None) -> None:
    """Refuse ``given`` for a table: it has a value for every row, and one value for all would be
    wrong.
    """
    if given:
        field, value = next(iter(given.items()))
        raise InvalidInput(
            "given",
            f"{field}={value}",
            f"no value: it is only for runs, and {path.name} is a table",
        )


def imported_table(table: Table) -> ImportedRuns:
    """Return the measurements of a table, recognised by its columns."""
    for columns, importer in _TABLES:
        if columns <= set(table.header):
            return importer(table)
    found = f"{table.file} with columns {', '.join(table.header[:6])}"
    raise InvalidInput("history", found, KINDS)


def _folder(path: Path, given: Mapping[str, str]) -> ImportedRuns:
    """Return the measurements of a folder of runs."""
    if (path / STATE).is_file():
        return _runs([path], trainer_run, given)
    folders = mlflow_folders(path)
    if folders:
        return _runs(folders, mlflow_run, given)
    folders = wandb_folders(path)
    if folders:
        return _runs(folders, wandb_run, given)
    raise InvalidInput("history", str(path), KINDS)


def _runs(
    places: Sequence[Path], read: Callable[[Path], Run], given: Mapping[str, str]
) -> ImportedRuns:
    """Return one observation per run; runs that cannot be used are left out with the reason."""
    found: list[Observation] = []
    left_out: list[Rejected] = []
    for number, place in enumerate(places, start=1):
        try:
            one = observed_run(read(place), given)
            check_memory(one)
            check_row(one, own=True)
            found.append(one)
        except InvalidInput as error:
            left_out.append(Rejected(number, f"{place.name}: {error}"))
    return ImportedRuns(History(noted(found)), tuple(left_out))

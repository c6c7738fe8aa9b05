"""Reads the raw records of a dataset, each with its location for error messages.

Formats: JSON Lines, JSON, CSV or Parquet files, a folder of them, a folder written by
``save_to_disk`` of Hugging Face's ``datasets``, or, if that library is installed, a dataset on the
hub. What a record must contain is checked in ``dataset_rows``.
"""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from duetune.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOWED = (
    "a .jsonl, .json, .csv or .parquet file, a folder of them, or a folder written by save_to_disk"
)
_T = TypeVar("_T")

# The csv module's own limit of 128 KiB per field is too small for training texts.
_MOST_FIELD = 2**31 - 1


class Record(msgspec.Struct, frozen=True):
    """One record; ``where`` is its file and line, or its row number."""

    where: str
    content: object


class _SavedState(msgspec.Struct, frozen=True):
    data_files: list[_DataFile] = msgspec.field(name="_data_files")


class _DataFile(msgspec.Struct, frozen=True):
    filename: str


class _SavedSplits(msgspec.Struct, frozen=True):
    splits: list[str]


def read_records(place: str | Path) -> Iterator[Record]:
    """Yield the records of a file, a folder or a dataset on the hub; ``InvalidInput`` if none."""
    path = Path(place)
    if path.is_dir():
        files = dataset_files(path)
        if not files:
            raise InvalidInput("dataset", str(path), ALLOWED)
        for file in files:
            yield from _of_file(file)
    elif path.exists() or path.is_absolute() or path.suffix.lower() in _READERS:
        yield from _of_file(path)
    else:
        yield from _of_hub(str(place))


def dataset_files(path: Path) -> list[Path]:
    """Return the files of a dataset on disk; a cache of it is valid until one changes."""
    if not path.is_dir():
        return [path] if path.exists() else []
    splits = path / "dataset_dict.json"
    if splits.exists():
        return dataset_files(path / _train_split(splits))
    state = path / "state.json"
    if state.exists():
        names = _decoded(state, _SavedState).data_files
        return [path / file.filename for file in names]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in _READERS)
    # If a folder has train-*.jsonl and test-*.jsonl, only the former are used.
    return [file for file in files if file.name.lower().startswith("train")] or files


def _train_split(path: Path) -> str:
    splits = _decoded(path, _SavedSplits).splits
    if "train" in splits:
        return "train"
    if len(splits) == 1:
        return splits[0]
    allowed = f"a dataset with a split 'train'; this one has {splits}"
    raise InvalidInput("dataset", str(path.parent), allowed)


def _of_file(path: Path) -> Iterator[Record]:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidInput("dataset", str(path), ALLOWED)
    try:
        yield from reader(path)
    except OSError as error:
        allowed = f"a readable file ({error.strerror or error})"
        raise InvalidInput("dataset", str(path), allowed) from None


def _json_lines(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            text = line.strip().removeprefix(b"\xef\xbb\xbf")
            if not text:
                continue
            where = f"{path}:{number}"
            try:
                yield Record(where, msgspec.json.decode(text))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                shown = text[:200].decode("utf-8", errors="replace")
                raise InvalidInput(where, shown, f"one JSON object per line ({error})") from None


def _json(path: Path) -> Iterator[Record]:
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        records = msgspec.json.decode(content, type=list[object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput("dataset", str(path), f"a JSON list of objects ({error})") from None
    for number, record in enumerate(records, start=1):
        yield Record(f"{path}, row {number}", record)


def _csv(path: Path) -> Iterator[Record]:
    csv.field_size_limit(_MOST_FIELD)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                where = f"{path}:{reader.line_num}"
                if None in row or None in row.values():
                    raise InvalidInput(where, row, f"{len(reader.fieldnames or ())} columns")
                yield Record(where, row)
        except (csv.Error, UnicodeDecodeError) as error:
            where = f"{path}:{reader.line_num + 1}"
            raise InvalidInput(where, str(error), "CSV in UTF-8 with a header") from None


def _frame(path: Path) -> Iterator[Record]:
    try:
        import polars as pl  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise MissingExtra(f"reading {path.name}", "parquet") from None
    try:
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_ipc_stream(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        allowed = f"a readable {path.suffix} file ({_short(error)})"
        raise InvalidInput("dataset", str(path), allowed) from None
    for number, row in enumerate(frame.iter_rows(named=True), start=1):
        yield Record(f"{path}, row {number}", row)


def _of_hub(name: str) -> Iterator[Record]:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        allowed = f"{ALLOWED}; datasets on the hub need the library 'datasets'"
        raise InvalidInput("dataset", name, allowed) from None
    try:
        rows = datasets.load_dataset(name, split="train")
    except Exception as error:  # noqa: BLE001 - the hub and its loader raise many kinds
        allowed = f"{ALLOWED}, or a name on the hub ({_short(error)})"
        raise InvalidInput("dataset", name, allowed) from None
    for number, row in enumerate(rows, start=1):
        yield Record(f"{name}, row {number}", row)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


def _decoded(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidInput("dataset", str(path), f"a file of save_to_disk ({error})") from None


_READERS = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _frame,
    ".arrow": _frame,
}

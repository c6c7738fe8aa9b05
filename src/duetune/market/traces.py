"""Market traces from files and to files. The formats are in ``tabular`` and ``json_formats``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core.market import MarketTrace, Pool
from duetune.errors import InvalidInput
from duetune.files import whole_file
from duetune.market import json_formats, tabular
from duetune.market.resample import Availability, availability_named, resample, with_availability
from duetune.market.slot_grid import Gaps, Grid, gaps_named, one_trace, pieces, place

if TYPE_CHECKING:
    from datetime import datetime


class TraceFormat(StrEnum):
    """The file formats that can be read."""

    CSV = "csv"
    PARQUET = "parquet"
    SPOT_TRACES = "spot-traces"
    AWS_PRICE_HISTORY = "aws-price-history"


def load_trace(
    path: Path | str,
    *,
    format: TraceFormat | str | None = None,  # noqa: A002  the word users know
    pool: str | None = None,
    slot_hours: float | None = None,
    availability: Availability | str = Availability.MIN,
    gaps: Gaps | str = Gaps.ERROR,
    max_hold_hours: float = 2.0,
    spot_usd_gpu_h: float | None = None,
    on_demand_usd_gpu_h: float | None = None,
    available: int | MarketTrace | None = None,
    gpus_per_instance: int | None = None,
    ones_mean_preempted: bool = False,
    start: datetime | None = None,
    name: str | None = None,
) -> MarketTrace:
    """Return a market from a CSV, Parquet or JSON file; the format follows from suffix and content.

    ``slot_hours`` resamples the trace; for a file of one row it is the slot length. Given prices
    and ``available`` replace those of the file, or stand for missing ones. They are per GPU.
    ``gpus_per_instance`` is for JSON files, which count and price instances.
    """
    file, kind = _recognised(path, format)
    title = name or file.stem
    gaps_named(gaps)
    availability_named(availability)
    if kind in {TraceFormat.CSV, TraceFormat.PARQUET}:
        if gpus_per_instance is not None:
            allowed = f"left out: the columns of {kind} files are per GPU"
            raise InvalidInput("gpus_per_instance", gpus_per_instance, allowed)
        grid = _table(file, kind, slot_hours, spot_usd_gpu_h, on_demand_usd_gpu_h, available)
        trace = one_trace(grid, gaps=gaps, max_hold_hours=max_hold_hours, name=title)
        if start is not None:
            trace = msgspec.structs.replace(trace, start=start)
    elif on_demand_usd_gpu_h is None:
        raise InvalidInput(
            "on_demand_usd_gpu_h", None, f"a price per GPU-hour: {kind} files have none"
        )
    elif kind is TraceFormat.SPOT_TRACES:
        trace = json_formats.load_spot_traces_json(
            file,
            on_demand_usd_gpu_h=on_demand_usd_gpu_h,
            spot_usd_gpu_h=spot_usd_gpu_h,
            gpus_per_instance=gpus_per_instance,
            ones_mean_preempted=ones_mean_preempted,
            pool=None if pool is None else Pool(pool),
            start=start,
            name=title,
        )
    elif available is None:
        raise InvalidInput(
            "available", None, f"a number of GPUs or a trace: {kind} files have prices only"
        )
    else:
        return json_formats.load_aws_price_history(
            file,
            on_demand_usd_gpu_h=on_demand_usd_gpu_h,
            available=available,
            gpus_per_instance=gpus_per_instance,
            zones=None if pool is None else [pool],
            start=start,
            slot_hours=0.5 if slot_hours is None else slot_hours,
            gaps=gaps,
            name=title,
        )
    if pool is not None:
        trace = trace.pool(pool)
    trace = resample(trace, slot_hours, availability=availability)
    return trace if available is None else with_availability(trace, available)


def load_pieces(
    path: Path | str,
    *,
    format: TraceFormat | str | None = None,  # noqa: A002  the word users know
    name: str | None = None,
) -> tuple[MarketTrace, ...]:
    """Return a CSV or Parquet trace cut at its gaps: every unbroken stretch, in order of time."""
    file, kind = _recognised(path, format)
    if kind not in {TraceFormat.CSV, TraceFormat.PARQUET}:
        raise InvalidInput("format", str(kind), "csv or parquet; the others have no gaps")
    return pieces(_table(file, kind, None, None, None, None), name=name or file.stem)


def load_grid(path: Path | str) -> Grid:
    """Return the slots of a CSV or Parquet trace as they were recorded, with gaps and unknowns.

    A file with a single row must state its ``slot_hours``.
    """
    file, kind = _recognised(path, None)
    if kind not in {TraceFormat.CSV, TraceFormat.PARQUET}:
        raise InvalidInput("format", str(kind), "csv or parquet, as `duetune market import` writes")
    return _table(file, kind, None, None, None, None)


def save_trace(trace: MarketTrace, path: Path | str) -> None:
    """Write duetune's CSV or Parquet, by the suffix of ``path``."""
    file = Path(path)
    writers = {".csv": tabular.write_csv, ".parquet": tabular.write_parquet}
    if file.suffix.lower() not in writers:
        raise InvalidInput("path", str(file), "a name that ends in .csv or .parquet")
    with whole_file(file, "path") as draft:
        writers[file.suffix.lower()](trace, draft)


def _table(
    file: Path,
    kind: TraceFormat,
    slot_hours: float | None,
    spot_usd_gpu_h: float | None,
    on_demand_usd_gpu_h: float | None,
    available: int | MarketTrace | None,
) -> Grid:
    """Return the grid of a CSV or Parquet file."""
    count = 0 if isinstance(available, MarketTrace) else available
    constants = tabular.Constants(spot_usd_gpu_h, on_demand_usd_gpu_h, count)
    read = tabular.read_csv if kind is TraceFormat.CSV else tabular.read_parquet
    observations, stated = read(file, constants)
    if stated is None and len(set(observations.times.tolist())) == 1:
        stated = slot_hours
    return place(observations, stated)


def _recognised(path: Path | str, given: TraceFormat | str | None) -> tuple[Path, TraceFormat]:
    """Return the file and its format: the given one, or the one that suffix and content show."""
    file = Path(path)
    if not file.is_file():
        raise InvalidInput("trace file", str(file), "an existing file")
    if given is not None:
        try:
            return file, TraceFormat(given)
        except ValueError:
            allowed = "one of " + ", ".join(TraceFormat)
            raise InvalidInput("format", given, allowed) from None
    try:
        with file.open("rb") as opened:
            head = opened.read(4096)
    except OSError as error:
        raise InvalidInput("trace file", str(file), f"a readable file ({error})") from None
    if not head.strip():
        raise InvalidInput("trace file", str(file), "a file with content; this one is empty")
    suffix = file.suffix.lower()
    if head.startswith(b"PAR1") or suffix in {".parquet", ".pq"}:
        return file, TraceFormat.PARQUET
    if suffix == ".csv":
        return file, TraceFormat.CSV
    if suffix == ".json" or head.lstrip().startswith(b"{"):
        keys = json_formats.document_keys(file)
        if "SpotPriceHistory" in keys:
            return file, TraceFormat.AWS_PRICE_HISTORY
        if {"metadata", "data"} <= keys:
            return file, TraceFormat.SPOT_TRACES
        allowed = "a JSON object with metadata and data, or with SpotPriceHistory"
        raise InvalidInput("trace file", str(file), allowed)
    first_line = head.splitlines()[0].decode("utf-8", errors="replace")
    if "time" in [cell.strip() for cell in first_line.split(",")]:
        return file, TraceFormat.CSV
    allowed = "a known format: " + ", ".join(TraceFormat) + " (option format)"
    raise InvalidInput("trace file", str(file), allowed)

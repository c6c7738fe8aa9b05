"""Public JSON formats: the spot-traces availability files and the AWS spot price history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from duetune.core.market import MarketTrace, Pool
from duetune.errors import InvalidInput
from duetune.market.instance_types import aws_instance
from duetune.market.price_steps import Steps, step_grid, time_range
from duetune.market.resample import with_availability
from duetune.market.slot_grid import Gaps, moment_at, one_trace, parse_moment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from numpy.typing import NDArray


Document = TypeVar("Document")


class _Metadata(msgspec.Struct):
    gap_seconds: float


class _SpotTraces(msgspec.Struct):
    metadata: _Metadata
    data: list[float]
    prices: list[float] | None = None


class _PriceChange(msgspec.Struct):
    AvailabilityZone: str
    InstanceType: str
    SpotPrice: str | float
    Timestamp: str
    ProductDescription: str = "Linux/UNIX"


class _PriceHistory(msgspec.Struct):
    SpotPriceHistory: list[_PriceChange]


def document_keys(path: Path) -> frozenset[str]:
    """Return the keys of a JSON object; the formats are recognised by them."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise InvalidInput("trace file", str(path), f"readable JSON ({error})") from None
    return frozenset(document) if isinstance(document, dict) else frozenset()


def load_spot_traces_json(
    file: Path | str,
    *,
    on_demand_usd_gpu_h: float,
    spot_usd_gpu_h: float | None = None,
    gpus_per_instance: int | None = None,
    ones_mean_preempted: bool = False,
    instances: int | None = None,
    pool: Pool | None = None,
    start: datetime | None = None,
    name: str | None = None,
) -> MarketTrace:
    """Return the trace of a spot-traces file.

    Its form is ``{"metadata": {"gap_seconds": s}, "data": [...], "prices": [...]}``.

    ``data`` counts the instances available at each tick; by default an instance has one GPU.
    ``prices``, if present, are per instance and hour; a given ``spot_usd_gpu_h`` replaces them.
    ``ones_mean_preempted`` is for simulators that write the number of preempted instances instead,
    out of ``instances`` (by default 1).
    """
    path = Path(file)
    document = _decode(path, _SpotTraces)
    gpus = _positive("gpus_per_instance", gpus_per_instance) or 1
    counts = _counts(document.data, path)
    if ones_mean_preempted:
        counts = _turned(counts, 1 if instances is None else instances)
    if document.metadata.gap_seconds <= 0:
        raise InvalidInput("gap_seconds", document.metadata.gap_seconds, "a positive number")
    slot_hours = document.metadata.gap_seconds / 3600
    if spot_usd_gpu_h is not None:
        spot = np.full(counts.size, spot_usd_gpu_h, dtype=np.float64)
    elif document.prices is None:
        raise InvalidInput("spot_usd_gpu_h", None, f"a price: {path.name} has none")
    elif len(document.prices) != counts.size:
        allowed = f"{counts.size}, one for each value of data"
        raise InvalidInput(f"prices of {path.name}", len(document.prices), allowed)
    else:
        spot = np.array(document.prices, dtype=np.float64) / gpus
    return MarketTrace.single(
        spot * slot_hours,
        counts * gpus,
        on_demand_usd_gpu_h * slot_hours,
        slot_hours=slot_hours,
        pool=pool,
        start=start,
        name=name or path.stem,
    )


def load_aws_price_history(
    file: Path | str,
    *,
    on_demand_usd_gpu_h: float,
    available: int | MarketTrace,
    gpus_per_instance: int | None = None,
    instance_type: str | None = None,
    product: str | None = None,
    zones: Sequence[str] | None = None,
    start: datetime | None = None,
    stop: datetime | None = None,
    slot_hours: float = 0.5,
    max_hold_hours: float | None = None,
    gaps: Gaps | str = Gaps.ERROR,
    name: str | None = None,
) -> MarketTrace:
    """Return the trace of ``aws ec2 describe-spot-price-history``: changes, newest first.

    A slot has the price in force when it begins. By default the trace spans the time in which every
    zone has a price, up to the last change. With ``max_hold_hours``, a price that was not confirmed
    for longer is a gap. A price is not capacity: the caller says how many GPUs are ``available``.

    The file's prices are per instance and become prices per GPU. ``gpus_per_instance`` is needed
    only for types that ``instance_types`` does not know. The on-demand price is per GPU already.
    """
    path = Path(file)
    _positive("gpus_per_instance", gpus_per_instance)
    changes = _decode(path, _PriceHistory).SpotPriceHistory
    if not changes:
        raise InvalidInput("trace file", str(path), "at least one price; this file has none")
    kind = _chosen("instance_type", instance_type, [change.InstanceType for change in changes])
    product = _chosen("product", product, [change.ProductDescription for change in changes])
    has = aws_instance(kind, gpus_per_instance)
    wanted = None if zones is None else set(zones)
    series: dict[str, dict[int, float]] = {}
    for number, change in enumerate(changes, start=1):
        zone = change.AvailabilityZone
        if change.InstanceType != kind or change.ProductDescription != product:
            continue
        if wanted is not None and zone not in wanted:
            continue
        time = parse_moment(change.Timestamp, f"Timestamp of price {number}")
        price = _price(change.SpotPrice, number, change.Timestamp) / has.gpus
        known = series.setdefault(zone, {}).setdefault(time, price)
        if known != price:
            where = f"price {number} ({zone}, {change.Timestamp})"
            raise InvalidInput(where, change.SpotPrice, "one price for a zone and time")
    missing = sorted((wanted or set()) - set(series))
    if missing or not series:
        raise InvalidInput("zones", missing or list(zones or ()), f"zones that {path.name} has")
    pools = tuple(Pool(zone, has.accelerator, zone) for zone in sorted(series))
    steps = [_steps(series[pool.name], on_demand_usd_gpu_h) for pool in pools]
    first = max(int(step.times[0]) for step in steps)
    last = max(int(step.times[-1]) for step in steps)
    begin, end = time_range(first, last, slot_hours, start, stop)
    if begin < first:
        raise InvalidInput("start", str(start), f"not before {moment_at(first).isoformat()}")
    grid = step_grid(pools, steps, begin, end, slot_hours, max_hold_hours)
    held = 0.0 if max_hold_hours is None else max_hold_hours
    prices = one_trace(grid, gaps=gaps, max_hold_hours=held, name=name or path.stem)
    return with_availability(prices, available)


def _decode(path: Path, shape: type[Document]) -> Document:
    """Return a JSON file as this shape, or refuse it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise InvalidInput("trace file", str(path), f"JSON of this format ({error})") from None


def _counts(data: list[float], path: Path) -> NDArray[np.int64]:
    """Return the counts of a file, or refuse one that is not a whole number."""
    if not data:
        raise InvalidInput("trace file", str(path), "at least one value in data")
    values = np.array(data, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0) | (values != np.rint(values)))
    if bad.size:
        index = int(bad[0])
        raise InvalidInput(f"data at {index}", data[index], "a whole number, zero or more")
    return values.astype(np.int64)


def _turned(counts: NDArray[np.int64], instances: int) -> NDArray[np.int64]:
    """Return available instances from preempted ones."""
    above = np.flatnonzero(counts > instances)
    if above.size:
        index = int(above[0])
        allowed = f"at most the {instances} instances there are (option instances)"
        raise InvalidInput(f"data at {index}", int(counts[index]), allowed)
    return instances - counts


def _positive(field: str, value: int | None) -> int | None:
    """Return a number that the caller may have given, or refuse one below 1."""
    if value is not None and value < 1:
        raise InvalidInput(field, value, "one or more")
    return value


def _chosen(field: str, given: str | None, found: list[str]) -> str:
    """Return the value that was asked for, or the only one that the file has."""
    known = sorted(set(found))
    if given is None and len(known) == 1:
        return known[0]
    if given is None or given not in known:
        raise InvalidInput(field, given, f"one of {', '.join(known)}")
    return given


def _price(value: str | float, number: int, time: str) -> float:
    try:
        price = float(value)
    except ValueError:
        price = float("nan")
    if not (np.isfinite(price) and price >= 0):
        raise InvalidInput(f"SpotPrice of price {number} ({time})", value, "zero or more")
    return price


def _steps(prices: dict[int, float], on_demand_usd_gpu_h: float) -> Steps:
    """Return the price changes of one zone as events."""
    times = np.array(sorted(prices), dtype=np.int64)
    spot = np.array([prices[int(time)] for time in times])
    on_demand = np.full(times.size, on_demand_usd_gpu_h, dtype=np.float64)
    return Steps.of_prices(times, spot, on_demand, times)

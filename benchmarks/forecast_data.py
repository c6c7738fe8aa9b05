"""The series on which forecasts are measured, in families; see the data folder's README."""

from __future__ import annotations

import csv

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.errors import DuetuneError
from duetune.market.catalog import aws_spot_prices, verda_listings
from duetune.market.datasets import data_file, h100_counts, spot_traces_slots, v100_paired
from duetune.market.tabular import numbers_of, read_frame, times_of

HALF_HOURS = (2, 6, 12, 24)
SIX_HOURS = (1, 2, 4)
WARM_UP = {0.5: 144, 6.0: 120}
"""Slots that are seen but not scored: three days, or thirty where a slot is six hours."""
AWS_GPUS = ("H200", "H100", "A100", "L40S", "L4", "V100")
AWS_SLOTS = 1500
FEWEST_EVENTS = 400
VERDA_GPUS = ("H100", "H200", "A100", "L40S", "V100")
SHADEFORM_GPUS = ("H100", "H200", "A100", "A100-80GB", "B200", "L40S")
SHADEFORM_FROM = 1_762_000_000_000_000  # dense from November 2025


class Family(msgspec.Struct, frozen=True, eq=False):
    """Series of one kind; those of a group cover the same time."""

    name: str
    counts: bool
    slot_hours: float
    horizons: tuple[int, ...]
    groups: tuple[NDArray[np.float64], ...]

    @property
    def warm_up(self) -> int:
        return WARM_UP[self.slot_hours]

    @property
    def series(self) -> int:
        return sum(len(group) for group in self.groups)


def families(seed: int, *, quick: bool) -> list[Family]:
    """Return all families, or for a first look fewer series of each."""

    def traces(trace_set: str) -> NDArray[np.float64]:
        trace = spot_traces_slots(on_demand_usd_gpu_h=3.0, spot_usd_gpu_h=1.0, trace_set=trace_set)
        return trace.available.astype(np.float64)

    def half_hours(name: str, *groups: NDArray[np.float64]) -> Family:
        return Family(name, counts=True, slot_hours=0.5, horizons=HALF_HOURS, groups=groups)

    def six_hours(name: str, *groups: NDArray[np.float64], counts: bool) -> Family:
        return Family(name, counts=counts, slot_hours=6.0, horizons=SIX_HOURS, groups=groups)

    found = [
        half_hours("V100, 45 days", v100_paired().available.astype(np.float64)),
        half_hours("V100 and K80, 2022", traces("availability/1-node/aws-10-26-2022")),
        half_hours(
            "4 and 16 nodes",
            traces("preemption/4-node/aws-08-03-2023"),
            traces("availability/16-node/aws-08-27-2023"),
        ),
        half_hours("H100 counts", h100_counts(slot_hours=0.5).available.astype(np.float64)),
        six_hours(
            "Verda spot",
            *(verda_listings(accelerator=gpu).available.astype(np.float64) for gpu in VERDA_GPUS),
            counts=True,
        ),
        six_hours("Shadeform listings", _shadeform(), counts=True),
        six_hours("AWS prices", *_aws(seed, 1 if quick else 3), counts=False),
    ]
    return [_smaller(family) for family in found] if quick else found


def _smaller(family: Family) -> Family:
    limit = family.warm_up + 250
    groups = tuple(group[:2, :limit] for group in family.groups[:3])
    return msgspec.structs.replace(family, groups=groups)


def _shadeform() -> NDArray[np.float64]:
    """Return listings of each GPU type, from the last snapshot before each slot."""
    columns = ("cloud", "accelerator", "ts", "n_listings")
    frame = read_frame(data_file("gpu_market_by_type.parquet"), columns)
    frame = frame.filter(frame.get_column("cloud") == "shadeform").sort("ts")
    rows = []
    slot = 6 * 3600 * 1_000_000
    last = int(times_of(frame, "ts").max())
    slots = np.arange(SHADEFORM_FROM, last, slot)
    for gpu in SHADEFORM_GPUS:
        part = frame.filter(frame.get_column("accelerator") == gpu)
        event = np.searchsorted(times_of(part, "ts"), slots, side="right") - 1
        rows.append(numbers_of(part, "n_listings")[np.maximum(event, 0)])
    return np.array(rows)


def _aws(seed: int, each: int) -> list[NDArray[np.float64]]:
    """Return spot over on-demand prices of random zones, the same number for every GPU."""
    with data_file("aws_gpu_series.csv").open(encoding="utf-8", newline="") as file:
        listed = [row for row in csv.DictReader(file) if int(row["n_spot_events"]) > FEWEST_EVENTS]
    random = np.random.default_rng(seed)
    found = []
    for gpu in AWS_GPUS:
        rows = [row for row in listed if row["accelerator"] == gpu]
        taken = 0
        for place in random.permutation(len(rows)):
            row = rows[place]
            try:
                trace = aws_spot_prices(
                    available=1,
                    instance_type=row["instance_type"],
                    zones=[row["az"]],
                    slot_hours=6.0,
                )
            except DuetuneError:
                continue  # sold as capacity blocks only: no on-demand price to compare with
            ratio = trace.spot_price[:1, :AWS_SLOTS] / trace.on_demand_price[:1, :AWS_SLOTS]
            found.append(ratio)
            taken += 1
            if taken == each:
                break
    return found

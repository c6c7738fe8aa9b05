"""The JSON documents that the provider and its clients exchange over HTTP, and their checks."""

from __future__ import annotations

import re
from datetime import datetime

import msgspec
import numpy as np

from duetune.core.fleet import Command, Launch, MarketReport
from duetune.core.market import MarketTrace, Pool
from duetune.errors import InvalidInput
from duetune.fleets.embedded.cloud_settings import FleetSettings

# Names become parts of file paths and URLs, so "/" and similar characters are not allowed.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class FleetStatus(msgspec.Struct, frozen=True):
    """The status of the whole provider.

    - ``spent``: the bill of all jobs so far, in dollars.
    - ``warm``: whether preloaded libraries are available: "ready", "starting" or "none".
    """

    pid: int
    url: str
    folder: str
    market: str
    report: MarketReport
    spot_held: int
    on_demand_held: int
    jobs: tuple[str, ...]
    spent: float
    warm: str
    settings: FleetSettings


class NoticeDocument(msgspec.Struct, frozen=True):
    """The time at which a node will be taken, in wall seconds since the epoch."""

    taken_at: float


class Problem(msgspec.Struct, frozen=True):
    """The body of every answer that reports an error."""

    error: str


class TraceDocument(msgspec.Struct, frozen=True):
    """A market trace of one pool as JSON."""

    spot_price: list[float]
    available: list[int]
    on_demand_price: list[float]
    slot_hours: float
    pool: Pool
    start: datetime | None
    name: str

    @classmethod
    def of(cls, trace: MarketTrace) -> TraceDocument:
        """Return the document of a trace's first pool."""
        return cls(
            spot_price=trace.spot_price[0].tolist(),
            available=trace.available[0].tolist(),
            on_demand_price=trace.on_demand_price[0].tolist(),
            slot_hours=trace.slot_hours,
            pool=trace.pools[0],
            start=trace.start,
            name=trace.name,
        )

    def trace(self) -> MarketTrace:
        """Return the trace that the document describes."""
        return MarketTrace.single(
            np.array(self.spot_price),
            np.array(self.available, dtype=np.int64),
            np.array(self.on_demand_price),
            slot_hours=self.slot_hours,
            pool=self.pool,
            start=self.start,
            name=self.name,
        )


class HistoryDocument(msgspec.Struct, frozen=True):
    """The answer to a request for past slots; None if there are none."""

    trace: TraceDocument | None


def decode_commands(body: bytes) -> list[Command]:
    """Decode and check the commands of an ``apply`` call; ``InvalidInput`` if one is wrong."""
    try:
        commands = msgspec.json.decode(body, type=list[Command])
    except msgspec.DecodeError as error:
        raise InvalidInput("commands", body.decode(errors="replace"), str(error)) from None
    for command in commands:
        check_name("job", command.job)
        if isinstance(command, Launch):
            check_name("node", command.node)
            _check_task(command)
    return commands


def check_name(field: str, name: str) -> None:
    """Raise ``InvalidInput`` unless ``name`` may name a job or a node."""
    if NAME.fullmatch(name) is None:
        raise InvalidInput(field, name, "letters, digits, '.', '_' and '-', at most 128")


def _check_task(launch: Launch) -> None:
    task = launch.task
    if not task.folder.startswith("/"):
        raise InvalidInput("task.folder", task.folder, "an absolute path")
    if bool(task.module) == bool(task.command):
        given = f"module {task.module!r}, command {task.command!r}"
        raise InvalidInput("task", given, "either a module or a command")
    for name, value in task.environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise InvalidInput("task.environment", name, "a name without '=', and no null bytes")

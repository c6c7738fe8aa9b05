"""Planners by name: the values of ``--planner`` and of ``[queue] planner`` in ``config.toml``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.ports import Planner
from duetune.errors import InvalidInput
from duetune.registry.plugins import Kind, Listed

if TYPE_CHECKING:
    from collections.abc import Callable

PLANNER_GROUP = "duetune.planners"
"""The entry point group of planners. An entry names a planner or a factory of one."""

PLANNERS = (
    Listed("fifo", "first come, first served; no job overtakes another, no job is moved"),
    Listed("fifo:backfill", "fifo, but a job that does not delay the first may start before it"),
    Listed("srt", "shortest remaining time first; takes GPUs from longer jobs"),
    Listed("edf", "earliest deadline first; takes GPUs from less urgent jobs"),
    Listed("sia[:POWER]", "Sia (SOSP'23): most normalised goodput, by integer program; POWER is p"),
    Listed(
        "tutti[:WORTH[:GPU_HOUR]]",
        "duetune's own: completion time, deadline, dollars, GPU-hours; fixed GPUs first, then spot",
    ),
)


def planner_named(name: str) -> Planner:
    """Return the planner of that name; ``planner_named(planner.name) == planner`` for built-ins."""
    match name.strip().split(":"):
        case [("fifo" | "srt" | "edf") as order]:
            from duetune.planners.queues import QueueOrder, QueuePlanner

            return QueuePlanner(QueueOrder(order))
        case ["fifo", "backfill"]:
            from duetune.planners.queues import QueuePlanner

            return QueuePlanner(backfill=True)
        case ["sia", *power] if len(power) <= 1:
            from duetune.planners.sia import Sia

            form = "sia[:POWER], POWER a number other than 0"
            return _made(name, form, lambda: Sia(*map(float, power)))
        case ["tutti", *dollars] if len(dollars) <= 2:
            from duetune.planners.tutti import Tutti

            form = (
                "tutti[:WORTH[:GPU_HOUR]], WORTH the dollars that an hour sooner is worth, "
                "GPU_HOUR those that an hour of a GPU counts beyond its price"
            )
            return _made(name, form, lambda: Tutti(*map(float, dollars)))
        case _:
            return KIND.plugged(name)


def planners_listed() -> tuple[Listed, ...]:
    """Return every planner that can be named, plug-ins included."""
    return KIND.listed()


KIND: Kind[Planner] = Kind(
    "planner",
    PLANNER_GROUP,
    PLANNERS,
    lambda found: found if isinstance(found, Planner) else None,
    "a planner: name and plan()",
)


def _made(name: str, form: str, make: Callable[[], Planner]) -> Planner:
    """Return the planner that ``make`` makes; ``form`` describes the allowed names."""
    try:
        return make()
    except (ValueError, InvalidInput):
        raise InvalidInput("planner", name, form) from None

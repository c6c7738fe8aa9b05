"""Planners by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.registry.plugins import Kind, Listed

if TYPE_CHECKING:
    from duetune.core.ports import Planner

PLANNER_GROUP = "duetune.planners"
"""The entry point group in which others register planners: a name for a planner or its factory."""

PLANNERS = (
    Listed("fifo", "first come, first served; nobody overtakes, nobody is moved"),
    Listed("fifo:backfill", "the same, but whoever does not hold up the first may start before it"),
    Listed("srt", "the shortest remaining time first; takes GPUs from longer jobs"),
    Listed("edf", "the earliest deadline first; takes GPUs from less urgent jobs"),
    Listed("sia[:POWER]", "Sia (SOSP'23): normalised goodput by integer program; POWER is p"),
    Listed(
        "tutti[:WORTH]",
        "ours: by completion time, deadline and dollars; fixed GPUs first, then spot",
    ),
)


def planner_named(name: str) -> Planner:
    """The planner of that name; ``planner_named(planner.name) == planner`` for ours."""
    match name.strip().split(":"):
        case [("fifo" | "srt" | "edf") as order]:
            from duetune.planners.queues import QueueOrder, QueuePlanner

            return QueuePlanner(QueueOrder(order))
        case ["fifo", "backfill"]:
            from duetune.planners.queues import QueuePlanner

            return QueuePlanner(backfill=True)
        case ["sia"]:
            from duetune.planners.sia import Sia

            return Sia()
        case ["sia", power]:
            return _sia(name, power)
        case ["tutti", worth]:
            return _tutti(name, worth)
        case ["tutti"]:
            from duetune.planners.tutti import Tutti

            return Tutti()
        case _:
            return KIND.plugged(name)


def planners_listed() -> tuple[Listed, ...]:
    """Return every planner that can be named, those registered by others included."""
    return KIND.listed()


def _checked(found: object) -> Planner | None:
    from duetune.core.ports import Planner

    return found if isinstance(found, Planner) else None


KIND: Kind[Planner] = Kind(
    "planner", PLANNER_GROUP, PLANNERS, _checked, "a planner: name and plan()"
)


def _sia(name: str, power: str) -> Planner:
    from duetune.planners.sia import Sia

    try:
        return Sia(power=float(power))
    except (ValueError, InvalidInput):
        raise InvalidInput("planner", name, "sia[:POWER], POWER a number other than 0") from None


def _tutti(name: str, worth: str) -> Planner:
    from duetune.planners.tutti import Tutti

    try:
        return Tutti(worth=float(worth))
    except (ValueError, InvalidInput):
        raise InvalidInput("planner", name, "tutti[:WORTH], dollars for an hour sooner") from None

"""Planners by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.bootstrap.names import Listed
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import EntryPoint

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
            from duetune.cluster.queues import Order, Queue

            return Queue(Order(order))
        case ["fifo", "backfill"]:
            from duetune.cluster.queues import Queue

            return Queue(backfill=True)
        case ["sia"]:
            from duetune.cluster.sia import Sia

            return Sia()
        case ["sia", power]:
            return _sia(name, power)
        case ["tutti", worth]:
            return _tutti(name, worth)
        case ["tutti"]:
            from duetune.cluster.tutti import Tutti

            return Tutti()
        case [head, *parts]:
            return _registered(name, head, parts)
        case _:
            raise _unknown(name)


def planners_listed() -> tuple[Listed, ...]:
    """Every planner that can be named, those registered by others included."""
    others = (
        Listed(point.name, f"registered by {point.value}")
        for point in sorted(_entry_points(), key=lambda point: point.name)
    )
    return (*PLANNERS, *others)


def _sia(name: str, power: str) -> Planner:
    from duetune.cluster.sia import Sia

    try:
        return Sia(power=float(power))
    except (ValueError, InvalidInput):
        raise InvalidInput("planner", name, "sia[:POWER], POWER a number other than 0") from None


def _tutti(name: str, worth: str) -> Planner:
    from duetune.cluster.tutti import Tutti

    try:
        return Tutti(worth=float(worth))
    except (ValueError, InvalidInput):
        raise InvalidInput("planner", name, "tutti[:WORTH], dollars for an hour sooner") from None


def _registered(name: str, head: str, parts: list[str]) -> Planner:
    """``head:a:b`` calls the factory registered as ``head`` with the texts a and b."""
    from duetune.core.ports import Planner

    point = next((point for point in _entry_points() if point.name == head), None)
    if point is None:
        raise _unknown(name)
    try:
        found = point.load()
        # A class has the attributes of its instances, so it would pass for a planner itself.
        if isinstance(found, type) or not isinstance(found, Planner):
            found = found(*parts)
    except InvalidInput:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise InvalidInput("planner", name, f"{point.value} to make one ({problem})") from error
    if not isinstance(found, Planner):
        raise InvalidInput("planner", name, f"{point.value} to return a planner: name and plan()")
    return found


def _unknown(name: str) -> InvalidInput:
    return InvalidInput("planner", name, f"one of {', '.join(e.name for e in planners_listed())}")


def _entry_points() -> Iterator[EntryPoint]:
    from importlib.metadata import entry_points

    return iter(entry_points(group=PLANNER_GROUP))

"""What ``ray_driver`` asks of its session process, and what that answers: one JSON line each."""

from __future__ import annotations

import msgspec

from duetune.fleets.driver import Capacity, EngineNode, Finding, NodeOrder


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Start a node."""

    order: NodeOrder


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Stop a node."""

    name: str


class List(msgspec.Struct, frozen=True, tag="list"):
    """List the nodes."""


class Measure(msgspec.Struct, frozen=True, tag="measure"):
    """Count the GPUs that are free."""


class Check(msgspec.Struct, frozen=True, tag="check"):
    """Check the cluster."""


Request = Start | Stop | List | Measure | Check


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one request; ``error`` is empty if the request was carried out."""

    error: str = ""
    retry: bool = True
    nodes: tuple[EngineNode, ...] = ()
    capacity: Capacity = Capacity()
    findings: tuple[Finding, ...] = ()

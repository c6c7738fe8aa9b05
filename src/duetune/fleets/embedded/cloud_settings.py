"""How the emulated cloud behaves: chosen when it starts, the same until it is stopped."""

from __future__ import annotations

import math

import msgspec

from duetune.errors import InvalidInput

DEFAULT_PRELOAD = "duetune.training.worker"


class FleetFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What goes wrong on purpose, for tests.

    ``lost_replies``: which calls of ``apply`` (the first is 1) are carried out and then not
    answered. ``reply_delay_s``: wall seconds before any answer.
    """

    lost_replies: tuple[int, ...] = ()
    never_grant: bool = False
    no_notice: bool = False
    reply_delay_s: float = 0.0


class FleetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``speed`` is market seconds per wall second. Other times here are wall seconds.

    ``first_slot``: the replay begins there; the slots of the trace before it are the history.
    After its end the last slot repeats, or with ``wrap`` the trace begins anew.
    ``notice_s``: between notice and taking; 0 is none. ``silent_share``: how likely a node is
    one that is taken without. ``max_price``: for spot nodes that state none, dollars per GPU
    and hour. ``release_grace_s``: how long a worker whose node was given back may take to leave.
    ``preload``: a module with ``preload()``, loaded once so that workers start warm; "" is none.
    """

    first_slot: int = 0
    wrap: bool = False
    speed: float = 1.0
    grant_delay_s: float = 1.0
    notice_s: float = 5.0
    silent_share: float = 0.0
    on_demand_capacity: int = 64
    max_price: float | None = None
    seed: int = 0
    release_grace_s: float = 10.0
    heartbeat_timeout_s: float = 60.0
    coordinator_linger_s: float = 30.0
    preload: str = DEFAULT_PRELOAD
    faults: FleetFaults = FleetFaults()

    def __post_init__(self) -> None:
        _require("first_slot", self.first_slot, self.first_slot >= 0, "0 or more")
        positive = math.isfinite(self.speed) and self.speed > 0
        _require("speed", self.speed, positive, "a positive number of market seconds per second")
        for field in ("grant_delay_s", "notice_s", "release_grace_s", "coordinator_linger_s"):
            seconds = getattr(self, field)
            allowed = "a number of seconds, 0 or more"
            _require(field, seconds, math.isfinite(seconds) and seconds >= 0, allowed)
        timeout = self.heartbeat_timeout_s
        _require("heartbeat_timeout_s", timeout, timeout > 0, "a positive number of seconds")
        share = self.silent_share
        _require("silent_share", share, 0 <= share <= 1, "a probability from 0 to 1")
        capacity = self.on_demand_capacity
        _require("on_demand_capacity", capacity, capacity >= 0, "0 or more")
        price = self.max_price
        _require("max_price", price, price is None or price >= 0, "0 or more, or none")
        _require("seed", self.seed, self.seed >= 0, "0 or more")


class Order(msgspec.Struct, frozen=True):
    """Which fleet is wanted. ``digest`` tells the market's file, ``market`` is its name."""

    settings: FleetSettings
    market: str
    digest: str

    def difference(self, settings: FleetSettings, digest: str) -> str:
        """In which fields another fleet is not the wanted one."""
        fields = [
            name
            for name in FleetSettings.__struct_fields__
            if getattr(self.settings, name) != getattr(settings, name)
        ]
        return ", ".join(fields + ["market"] * (self.digest != digest))


def _require(field: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise InvalidInput(field, value, allowed)

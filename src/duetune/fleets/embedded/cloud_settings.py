"""The settings of the emulated cloud. They are chosen at its start and fixed until it stops."""

from __future__ import annotations

import math

import msgspec

from duetune.errors import InvalidInput

DEFAULT_PRELOAD = "duetune.training.worker"


class FleetFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Faults that tests inject.

    - ``lost_replies``: the numbers of the ``apply`` calls (the first is 1) that are carried out but
      not answered.
    - ``never_grant``: requests stay open forever.
    - ``no_notice``: every node is taken without notice.
    - ``reply_delay_s``: wall seconds before each answer.
    """

    lost_replies: tuple[int, ...] = ()
    never_grant: bool = False
    no_notice: bool = False
    reply_delay_s: float = 0.0


class FleetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one provider. Fields that end in ``_s`` are wall seconds.

    - ``first_slot``: the slot of the trace at which the replay begins; earlier ones are history.
    - ``wrap``: start the trace again after its end; otherwise its last slot repeats.
    - ``speed``: market seconds per wall second.
    - ``grant_delay_s``: mean time from a request to its grant.
    - ``notice_s``: time between a notice and the loss of the node; 0 for no notice.
    - ``silent_share``: probability that a node is taken without notice.
    - ``on_demand_capacity``: number of on-demand GPUs.
    - ``max_price``: highest price of spot nodes that name none, in dollars per GPU-hour.
    - ``release_grace_s``: time that a worker has to leave after its node was released.
    - ``heartbeat_timeout_s``: a worker without a heartbeat for this long is killed.
    - ``coordinator_linger_s``: how long a coordinator stays after its job's last node.
    - ``preload``: a module whose ``preload()`` loads the libraries for workers once; "" for none.
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
        times = ("grant_delay_s", "notice_s", "release_grace_s", "coordinator_linger_s")
        price_holds = self.max_price is None or self.max_price >= 0
        for field, holds, allowed in (
            ("first_slot", self.first_slot >= 0, "0 or more"),
            ("speed", 0 < self.speed < math.inf, "a positive number of market seconds per second"),
            *((name, 0 <= getattr(self, name) < math.inf, "0 seconds or more") for name in times),
            ("heartbeat_timeout_s", self.heartbeat_timeout_s > 0, "a positive number of seconds"),
            ("silent_share", 0 <= self.silent_share <= 1, "a probability from 0 to 1"),
            ("on_demand_capacity", self.on_demand_capacity >= 0, "0 or more"),
            ("max_price", price_holds, "0 or more, or none"),
            ("seed", self.seed >= 0, "0 or more"),
        ):
            if not holds:
                raise InvalidInput(field, getattr(self, field), allowed)


class Order(msgspec.Struct, frozen=True):
    """A request to start a fleet: its settings, its market's name and that file's digest."""

    settings: FleetSettings
    market: str
    digest: str

    def difference(self, settings: FleetSettings, digest: str) -> str:
        """Return the names of the fields in which another fleet differs; "" if it is the same."""
        fields = [
            name
            for name in FleetSettings.__struct_fields__
            if getattr(self.settings, name) != getattr(settings, name)
        ]
        return ", ".join(fields + ["market"] * (self.digest != digest))

"""The times of a group: one set for processes of one machine, one for a network.

Which set is used depends on the interface: loopback or not. Each time can be changed by an
environment variable of its own; ``docs/reference/network.md`` lists them. Torch is not imported.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import msgspec

from duetune.core.node_contract import GROUP_TIMES, QUORUM_TIMES, SEAT_TIMES
from duetune.errors import InvalidInput
from duetune.training.network_address import Interface

if TYPE_CHECKING:
    from collections.abc import Mapping

_T = TypeVar("_T", bound=msgspec.Struct)


class GroupSettings(msgspec.Struct, frozen=True):
    """The network interface of a member and its times in seconds.

    - ``heartbeat_s``: time between two heartbeats to the coordinator.
    - ``connect_s``: limit for connecting to all members.
    - ``operation_s``: limit for a sum or gather; dead peers are noticed much earlier, by pings.
    - ``hang_s``: a member whose main thread is inactive for this long counts as dead.
    - ``patience_s``: how long an operation runs before the other members are pinged.
    - ``ping_s``, ``ping_pause_s``, ``missed_pings``: timeout of a ping, time between pings, and the
      number of unanswered pings after which a member counts as dead.
    """

    interface: Interface = Interface()
    heartbeat_s: float = 0.1
    connect_s: float = 15.0
    operation_s: float = 600.0
    hang_s: float = 300.0
    patience_s: float = 1.0
    ping_s: float = 0.5
    ping_pause_s: float = 0.25
    missed_pings: int = 3

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> GroupSettings:
        """Return the times that fit the interface, with those that variables change."""
        interface = Interface.from_environment(environ)
        usual = cls() if interface.is_local else _MEMBER_ON_NETWORK
        return _changed(msgspec.structs.replace(usual, interface=interface), GROUP_TIMES, environ)


class QuorumTimes(msgspec.Struct, frozen=True):
    """The limits of a quorum in seconds.

    - ``heartbeat_s``: a member without a heartbeat for this long counts as gone.
    - ``join_s``: a member that sends heartbeats but does not ask is waited for up to this long, if
      more than half of the living have asked.
    - ``settle_s``: a coordinator that replaces another answers nobody for this long, so that all
      members find it.
    """

    heartbeat_s: float = 0.6
    join_s: float = 10.0
    settle_s: float = 1.0

    @classmethod
    def from_environment(cls, interface: Interface, environ: Mapping[str, str]) -> QuorumTimes:
        """Return the limits that fit the interface, with those that variables change."""
        usual = cls() if interface.is_local else _QUORUM_ON_NETWORK
        return _changed(usual, QUORUM_TIMES, environ)


class SeatTimes(msgspec.Struct, frozen=True):
    """The times of a candidate for the coordinator's seat, in seconds.

    - ``look_s``: time between two looks at the list and at the coordinator.
    - ``dial_s``: limit for one attempt to reach the coordinator.
    - ``failures``, ``over_s``: a coordinator that was not reached so often, over so long, is
      replaced.
    """

    look_s: float = 0.2
    dial_s: float = 1.0
    failures: int = 3
    over_s: float = 0.6

    @classmethod
    def from_environment(cls, interface: Interface, environ: Mapping[str, str]) -> SeatTimes:
        """Return the times that fit the interface, with those that variables change."""
        usual = cls() if interface.is_local else _SEAT_ON_NETWORK
        return _changed(usual, SEAT_TIMES, environ)


# A lost packet is sent again after 0.2 s to 1 s, and a busy switch may take longer.
_MEMBER_ON_NETWORK = GroupSettings(
    heartbeat_s=1.0, connect_s=30.0, patience_s=2.0, ping_s=3.0, ping_pause_s=1.0
)
_QUORUM_ON_NETWORK = QuorumTimes(heartbeat_s=5.0, join_s=20.0, settle_s=3.0)
_SEAT_ON_NETWORK = SeatTimes(look_s=1.0, dial_s=3.0, over_s=5.0)


def variables(settings: type[msgspec.Struct], first: str) -> dict[str, str]:
    """Return the variable of every time in ``settings`` by the name of the time."""
    fields = msgspec.structs.fields(settings)
    return {field.name: first + field.name.upper() for field in fields if field.name != "interface"}


def _changed(settings: _T, first: str, environ: Mapping[str, str]) -> _T:
    found: dict[str, float] = {}
    for name, variable in variables(type(settings), first).items():
        if text := environ.get(variable):
            found[name] = _positive(variable, text, whole=isinstance(getattr(settings, name), int))
    return msgspec.structs.replace(settings, **found)


def _positive(variable: str, text: str, *, whole: bool) -> float:
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        number = 0
    if not 0 < number < math.inf:
        allowed = "a whole number above 0" if whole else "a number of seconds above 0"
        raise InvalidInput(variable, text, allowed)
    return number

"""Addresses of the doors of a job: where a process listens, and what others dial.

An address is ``tcp://HOST:PORT``, or ``tls://HOST:PORT`` where the door encrypts; an IPv6 host
stands in brackets. Torch is not imported. Who may come in is decided in ``authentication``.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duetune.core.node_contract import ADVERTISE, BIND, TLS
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

AUTO = "auto"
"""The value of ``DUETUNE_BIND`` for the interface of the default route."""
_LOOPBACK = "127.0.0.1"
_ON, _OFF = frozenset({"1", "true", "yes", "on"}), frozenset({"", "0", "false", "no", "off"})
# Addresses for documentation (RFC 5737, RFC 3849). Nothing is sent to them: only the route counts.
_FAR_AWAY = ("192.0.2.1", "2001:db8::1")
_ANY_PORT = 9
_NOT_OURS = frozenset({errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EACCES})


class Endpoint(NamedTuple):
    """One address in its parts; ``tls`` says whether the connection is encrypted."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'tcp'}://{host}:{self.port}"

    @classmethod
    def of(cls, address: str) -> Endpoint:
        """Return the parts of an address; ``ValueError`` if it is none."""
        scheme, found, rest = address.partition("://")
        host, _, port = rest.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not found or scheme not in {"tcp", "tls"} or not host or not port.isdigit():
            raise ValueError(f"{address!r} is not an address of a door")
        return cls(host, int(port), scheme == "tls")


class Interface(msgspec.Struct, frozen=True):
    """Where a process listens.

    - ``bind``: the address of a network interface; ``0.0.0.0`` or ``::`` for all of them.
    - ``advertise``: the host that others dial, if it is not ``bind``.
    - ``tls``: encrypt every connection.
    """

    bind: str = _LOOPBACK
    advertise: str = ""
    tls: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Interface:
        """Return the interface of ``DUETUNE_BIND``, ``DUETUNE_ADVERTISE`` and ``DUETUNE_TLS``."""
        wish = environ.get(TLS, "").lower()
        if wish not in _ON | _OFF:
            raise InvalidInput(TLS, wish, "1 or 0")
        bind = environ.get(BIND) or _LOOPBACK
        bind = own_address() if bind == AUTO else bind
        return cls(bind, environ.get(ADVERTISE, ""), wish in _ON)

    @property
    def host(self) -> str:
        """Return the host that others dial."""
        if self.advertise:
            return self.advertise
        return own_address(v6=":" in self.bind) if _unspecified(self.bind) else self.bind

    @property
    def is_local(self) -> bool:
        """Return whether only processes of this machine can reach it."""
        if _unspecified(self.bind):
            return False
        host = self.advertise or self.bind
        with contextlib.suppress(ValueError):
            return _parsed(host).is_loopback
        return host == "localhost"

    def listener(self, port: int) -> socket.socket:
        """Return a listening socket; ``InvalidInput`` if this machine has no such address."""
        try:
            family, _, _, _, place = socket.getaddrinfo(
                self.bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            dual = self.bind == "::" and socket.has_dualstack_ipv6()
            return socket.create_server(
                place[:2] if family == socket.AF_INET else place,
                family=family,
                backlog=256,
                dualstack_ipv6=dual,
            )
        except OSError as error:
            if not isinstance(error, socket.gaierror) and error.errno not in _NOT_OURS:
                raise
            allowed = f"an address of this machine with a free port ({error.strerror or error})"
            raise InvalidInput(BIND, f"{self.bind}:{port}", allowed) from None


def own_address(towards: str | None = None, *, v6: bool = False) -> str:
    """Return this machine's address on the way to ``towards``.

    ``towards`` is a host or the address of a door. Without it the default route decides, of IPv6 if
    ``v6``, and without a route the name of the machine. Nothing is sent.
    """
    for host in (towards,) if towards else reversed(_FAR_AWAY) if v6 else _FAR_AWAY:
        with contextlib.suppress(OSError, ValueError):
            if found := _routed(Endpoint.of(host).host if "://" in host else host):
                return found
    family = socket.AF_INET6 if v6 else socket.AF_UNSPEC
    with contextlib.suppress(OSError):
        return str(socket.getaddrinfo(socket.gethostname(), None, family)[0][4][0])
    return "::1" if v6 else _LOOPBACK


def plain_host(host: str) -> str:
    """Return one spelling of a numeric host, the same on both ends of a connection."""
    # A socket for both families shows IPv4 peers as ::ffff:a.b.c.d; only one end sees a scope.
    with contextlib.suppress(ValueError):
        return str(_parsed(host))
    return host


def _routed(host: str) -> str:
    """Return the address from which the kernel would send to ``host``; "" if it has none."""
    family, _, _, _, place = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        found = str(probe.getsockname()[0])
    return "" if _unspecified(found) else found


def _unspecified(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return _parsed(host).is_unspecified
    return False


def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found

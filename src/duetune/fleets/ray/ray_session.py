"""The process that speaks to Ray for a driver: ``python -m duetune.fleets.ray.ray_session FD``.

``FD`` is a socket to the driver. The driver's own process never imports Ray; ``ray_driver`` says
why. The process ends when the socket does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import sys
import threading
from typing import TYPE_CHECKING, assert_never

import msgspec
import ray

from duetune.core.fleet import NodeKind
from duetune.errors import FleetError
from duetune.fleets.driver import Capacity, EngineState
from duetune.fleets.ray.cluster_check import findings
from duetune.fleets.ray.cluster_tables import ClusterTables
from duetune.fleets.ray.node_actor import NodeActor
from duetune.fleets.ray.ray_settings import RaySettings
from duetune.fleets.ray.session_messages import (
    Check,
    List,
    Measure,
    Reply,
    Request,
    Start,
    Stop,
)

if TYPE_CHECKING:
    from duetune.fleets.driver import EngineNode, NodeOrder

_HEARD_S = 2.0
"""An actor that does not take a stop within this many seconds is killed by Ray."""


class RaySession:
    """Carries out the requests of one fleet. Reading needs only the head's tables; starting and
    stopping join the cluster, which needs a raylet on this machine.
    """

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        self._tables = ClusterTables(settings.address)
        self._joined = False

    def carry_out(self, request: Request) -> Reply:
        """Return the answer to a request; an error is an answer too."""
        try:
            match request:
                case Start():
                    self._start(request.order)
                    return Reply()
                case Stop():
                    self._stop(request.name)
                    return Reply()
                case List():
                    return Reply(nodes=tuple(self._tables.nodes(self._settings.namespace)))
                case Measure():
                    return Reply(capacity=self._capacity())
                case Check():
                    return Reply(findings=findings(self._settings, self._tables, self._join))
                case _:
                    assert_never(request)
        except FleetError as error:
            return Reply(error=str(error), retry=error.retry)
        except Exception as error:  # noqa: BLE001 - Ray raises whatever its parts raise
            return Reply(error=_line(error))

    def _start(self, order: NodeOrder) -> None:
        """Make the actor of a node, unless the head knows one of this name, dead or alive."""
        if self._known(order.name) is not None:
            return
        self._join()
        settings = self._settings
        needs = settings.needs(order.gpus)
        try:
            actor = ray.remote(NodeActor).options(
                name=order.name,
                namespace=settings.namespace,
                lifetime="detached",
                get_if_exists=True,
                max_restarts=0,
                num_cpus=needs.pop("CPU", 0),
                num_gpus=needs.pop("GPU", 0),
                resources=needs or None,
                label_selector=settings.selector(order.kind) or None,
                runtime_env=settings.runtime_environment(),
            )
        except (ValueError, TypeError) as error:
            raise FleetError(f"Ray refuses the order: {_line(error)}", retry=False) from None
        actor.remote(list(order.command), order.environment, order.log, settings.grace_s)

    def _stop(self, name: str) -> None:
        """Let the actor end its command; withdraw one that waits, kill one that does not answer.

        The guard ends the command of a killed actor in the same way, but Ray would lend its GPU to
        another node before the command has left.
        """
        node = self._known(name)
        if node is None or node.state is EngineState.ENDED:
            return
        self._join()
        try:
            actor = ray.get_actor(name, namespace=self._settings.namespace)
        except ValueError:
            return  # it has ended since
        if node.state is EngineState.RUNNING:
            heard, _ = ray.wait([actor.stop.remote()], timeout=_HEARD_S)
            if heard:
                return
        ray.kill(actor)

    def _known(self, name: str) -> EngineNode | None:
        nodes = self._tables.nodes(self._settings.namespace)
        return next((node for node in nodes if node.name == name), None)

    def _join(self) -> None:
        if self._joined:
            return
        machines = self._tables.machines().values()
        if not any(machine.alive and _is_here(machine.address) for machine in machines):
            raise ConnectionError(
                "this machine is not a node of the Ray cluster; "
                f"run: ray start --address={self._settings.address} --num-cpus=0 --num-gpus=0"
            )
        ray.init(
            self._settings.address,
            namespace=self._settings.namespace,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        self._joined = True

    def _capacity(self) -> Capacity:
        """Return how many nodes of one GPU have room on each machine that is not drained."""
        machines, free = self._tables.machines(), self._tables.free()
        draining = self._tables.draining()
        needs = self._settings.needs(1)

        def room(kind: NodeKind) -> tuple[int, ...]:
            wanted = self._settings.selector(kind).items()
            return tuple(
                int(min(free[name].get(need, 0.0) / amount for need, amount in needs.items()))
                for name, machine in machines.items()
                if machine.alive and name in free and name not in draining
                if wanted <= machine.labels.items()
            )

        return Capacity.of_machines(room(NodeKind.SPOT), room(NodeKind.ON_DEMAND))


def _is_here(address: str) -> bool:
    """Return whether an address is one of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family) as probe:
        probe.bind((address, 0))
        return True
    return False


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def main(descriptor: int) -> None:
    """Answer requests until the driver closes its socket."""
    connection = socket.socket(fileno=descriptor)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    received = connection.makefile("rb")

    def receive() -> None:
        for line in received:
            lines.put(line)
        # The driver is gone, and Ray may be waiting for a head that is gone too.
        os._exit(0)

    settings = msgspec.json.decode(received.readline(), type=RaySettings)
    threading.Thread(target=receive, daemon=True).start()
    try:
        session = RaySession(settings)
    except Exception as error:  # noqa: BLE001 - Ray raises whatever its parts raise
        connection.sendall(_encoded(Reply(error=_line(error))))
        return
    connection.sendall(_encoded(Reply()))
    while True:
        request = msgspec.json.decode(lines.get(), type=Request)
        connection.sendall(_encoded(session.carry_out(request)))


def _encoded(reply: Reply) -> bytes:
    return msgspec.json.encode(reply) + b"\n"


if __name__ == "__main__":
    main(int(sys.argv[1]))

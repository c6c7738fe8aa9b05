"""A process that has loaded the heavy libraries once and forks agents from itself on request.

Started by the provider with one end of a socket. It says "ready" when it has loaded, then forks an
agent for every descriptor it is sent and answers with the agent's process id. It ends when the
provider does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import threading

from duetune.fleets.embedded import agent

NOTHING_TO_LOAD = 3
READY = b"ready\n"


def loaded(module: str) -> bool:
    """Whether there was such a module, with a ``preload`` of its own."""
    try:
        preload = importlib.import_module(module).preload
    except (ImportError, AttributeError) as error:
        sys.stderr.write(f"workers start cold: {error}\n")
        return False
    preload()
    return True


def serve(control: socket.socket) -> None:
    """Forks until the provider is gone."""
    # Nobody asks how an agent ended: the provider sees the end of its channel.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control.sendall(READY)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data or not descriptors:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            code = 1
            try:
                code = agent.serve(socket.socket(fileno=descriptors[0]))
            finally:
                os._exit(code)
        os.close(descriptors[0])
        control.sendall(b"%d\n" % pid)


def main() -> int:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    if not loaded(sys.argv[2]):
        return NOTHING_TO_LOAD
    if threading.active_count() > 1:
        # Locks that another thread holds stay locked in the fork.
        sys.stderr.write("workers start cold: preloading left threads running\n")
        return NOTHING_TO_LOAD
    # What is loaded stays shared between all forks, untouched by their collectors.
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError):  # the provider is gone, and nobody else needs this process
        serve(control)
    return 0


if __name__ == "__main__":
    sys.exit(main())

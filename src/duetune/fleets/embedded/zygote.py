"""The zygote: a process that loads the training libraries once and forks agents on request.

The provider starts it with one end of a socket pair. It sends "ready" after loading. Then it forks
an agent for every descriptor it receives, and answers with the agent's process id. It ends when
the provider ends.
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
    """Call ``preload`` of a module; return False if there is no such module or function."""
    try:
        preload = importlib.import_module(module).preload
    except (ImportError, AttributeError) as error:
        sys.stderr.write(f"workers start without preloaded libraries: {error}\n")
        return False
    preload()
    return True


def serve(control: socket.socket) -> None:
    """Fork agents until the provider is gone."""
    # Exit statuses are not needed: the provider notices the end of an agent by its channel.
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
    """Load the module and serve the socket given on the command line."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    if not loaded(sys.argv[2]):
        return NOTHING_TO_LOAD
    if threading.active_count() > 1:
        # A lock held by another thread would stay locked forever in the fork.
        sys.stderr.write("workers start without preloaded libraries: loading started threads\n")
        return NOTHING_TO_LOAD
    # Keep the loaded objects out of garbage collection, so that all forks share their memory.
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError):  # The provider is gone, so this process ends.
        serve(control)
    return 0


if __name__ == "__main__":
    sys.exit(main())

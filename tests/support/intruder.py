"""A stranger on the machine: tries every door and file of a job and prints what it got.

It is started with the right to become another user, becomes that user, attacks, prints one JSON
list of what it achieved, and keeps its connections until its standard input ends.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - another user cannot load it later
import importlib.util
import json
import os
import socket
import sys
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import msgspec

from duetune.fleets.embedded import processes
from duetune.training import authentication
from duetune.training.coordinator_client import Ask, Beat
from duetune.training.membership import Member

NOBODY = 65534
LIMIT_S = 2.0


def http(door, method, path, body=None, **headers):
    connection = HTTPConnection(*door, timeout=LIMIT_S)
    try:
        connection.request(method, path, body, headers)
        found = connection.getresponse().status == 200
    except (OSError, HTTPException, ValueError):
        found = False
    finally:
        connection.close()
    return found and f"{method} {path} at {door}"


def calls(door, job, nodes):
    """Reading, reporting and stopping over HTTP."""
    finished = json.dumps({"step": 9, "total_steps": 9, "phase": "finished"})
    wrong = {"Authorization": "Bearer " + "x" * 32}
    yield from (http(door, "GET", f"/state/{step}") for step in range(40))
    for path in ("/status", "/alive", "/market", f"/jobs/{job}/nodes"):
        yield http(door, "GET", path)
        yield http(door, "GET", path, **wrong)
    for node in nodes:
        yield http(door, "GET", f"/nodes/{node}/notice")
        yield http(door, "GET", f"/jobs/{job}/notice/{node}/{'0' * 64}")
    yield http(door, "POST", f"/jobs/{job}/progress/{'0' * 64}", finished)
    yield http(door, "POST", "/apply", "[]", **wrong)
    yield http(door, "POST", "/stop", "", **wrong)


def torchft_native():
    """torchft's compiled part; to import all of it would load torch."""
    (folder,) = importlib.util.find_spec("torchft").submodule_search_locations
    (file,) = Path(folder).glob("_torchft*.so")
    spec = importlib.util.spec_from_file_location("torchft._torchft", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lighthouse(door, native):
    """Joining as a member of torchft's lighthouse, with a made-up state."""
    try:
        limit = timedelta(seconds=0.3)
        client = native.LighthouseClient("http://{}:{}".format(*door), limit)
        client.heartbeat("00000000.stranger", limit)
    except (RuntimeError, TimeoutError, OSError):
        return None
    return f"a heartbeat at {door}"


def messages(door):
    """The group's own messages, with a wrong secret and with none, encrypted and not."""
    stranger = Member(id="00000000.stranger", address="tcp://127.0.0.1:9", step=30, fresh=False)
    contents = [msgspec.json.encode(one) for one in (Ask(stranger), Beat(stranger.id))]
    # As in ``transfer``, whose import would load torch.
    contents += [b'{"type":"fetch","step":1}', b'{"type":"ping"}']
    for scheme in ("tcp", "tls"):
        with (
            contextlib.suppress(OSError),
            authentication.dial("{}://{}:{}".format(scheme, *door), b"x" * 64, LIMIT_S),
        ):
            yield f"a door without its secret at {door}"
    for content in contents:
        with contextlib.suppress(OSError), socket.create_connection(door) as raw:
            raw.settimeout(LIMIT_S)
            raw.sendall(len(content).to_bytes(8, "big") + content + bytes(64))
            heard = b"".join(iter(lambda: raw.recv(4096), b""))
            yield len(heard) > 40 and not heard.startswith(b"HTTP") and f"no secret at {door}"


def files(folder):
    """Reading or changing anything of the home, and its processes' memory and environment."""
    for path in map(Path, folder):
        with contextlib.suppress(OSError):
            yield path.is_dir() and list(path.iterdir()) and f"a look into {path}"
            yield path.is_file() and path.read_bytes()[:0] == b"" and f"the content of {path}"
        with contextlib.suppress(OSError):
            (path / "progress.json").write_text("{}")
            yield f"a file in {path}"


def signals(pids):
    for pid in pids:
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/environ").read_bytes()
            yield f"the environment of {pid}"
        with contextlib.suppress(OSError):
            yield processes.send(pid, 18) and f"a signal to {pid}"


def main():
    target = json.loads(sys.stdin.readline())
    native = None
    with contextlib.suppress(ImportError):
        native = torchft_native()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    got = []
    doors = [tuple(door) for door in target["doors"]]
    for door in doors:
        got += calls(door, target["job"], target["nodes"])
        if door[1] != target["web"]:  # which speaks HTTP and would wait for the end of a line
            got += messages(door)
            got.append(native and lighthouse(door, native))
    if os.geteuid() == NOBODY:
        got += files(target["files"])
        got += signals(target["pids"])
    held = []
    for door in doors:
        with contextlib.suppress(OSError):
            held += [socket.create_connection(door) for _ in range(64)]
    sys.stdout.write(json.dumps([one for one in got if one]) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()

"""Copies the state of one member to another, and checks whether a member is alive.

Every member serves its state over HTTP on the group's network: a length, a JSON header and the
bytes of the arrays. Nothing is unpickled, so a wrong peer can send a wrong state but cannot run
code.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from duetune.training.checkpoint import Json

# A transfer fails if the peer sends or reads nothing for this long.
_STALL_S = 10.0
_HEADER_BYTES = 8
_MOST_HEADER = 16 << 20
_DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64)}


class TransferFailed(Exception):
    """The state of another member could not be copied."""


class State(Protocol):
    """The state of a member, as it is copied and saved."""

    @property
    def lock(self) -> threading.Lock:
        """Return the lock to hold while the state is read or changed."""

    @property
    def step(self) -> int:
        """Return the number of steps done."""

    def arrays(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the state, by name; not copies."""

    def document(self) -> dict[str, Json]:
        """Return the rest of the state as JSON."""

    def load(self, arrays: dict[str, torch.Tensor], document: dict[str, Json]) -> None:
        """Replace the state."""


class StateServer:
    """Serves ``/state/<step>`` and ``/alive``; the latter answers 503 if ``alive`` is false."""

    def __init__(self, bind: str, state: State, alive: Callable[[], bool]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = _STALL_S

            def do_GET(self) -> None:
                with contextlib.suppress(OSError):
                    if self.path == "/alive":
                        self._answer(200 if alive() else 503)
                    elif self.path.startswith("/state/"):
                        self._send_state(self.path.removeprefix("/state/"))
                    else:
                        self._answer(404)

            def _answer(self, status: int, length: int = 0) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(length))
                self.end_headers()

            def _send_state(self, step: str) -> None:
                # The state must not change while it is sent, so the lock is held until the last
                # byte. A reader that stops reading is disconnected after ``timeout``.
                with state.lock:
                    if str(state.step) != step:
                        self._answer(409)
                        return
                    arrays = state.arrays()
                    header = _header(arrays, state.document())
                    size = sum(array.nbytes for array in arrays.values())
                    self._answer(200, _HEADER_BYTES + len(header) + size)
                    self.wfile.write(len(header).to_bytes(_HEADER_BYTES, "big") + header)
                    for array in arrays.values():
                        self.wfile.write(_bytes_of(array.detach().to("cpu").contiguous()))

            def log_message(self, *_arguments: object) -> None:
                """Log nothing."""

        self._server = _Server((bind, 0), Handler)
        threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="state-server", daemon=True
        ).start()

    @property
    def address(self) -> str:
        """Return the address at which other members reach this server."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of connections: a peer that leaves is normal."""


def fetch_state(address: str, step: int) -> tuple[dict[str, torch.Tensor], dict[str, Json]]:
    """Return arrays and document of the member at ``address``, which must be at ``step``."""
    try:
        with _get(address, f"/state/{step}", _STALL_S) as answer:
            if answer.status != http.client.OK:
                raise TransferFailed(f"{address} has no state of step {step} ({answer.status})")
            length = int.from_bytes(_exactly(answer, _HEADER_BYTES), "big")
            if length > _MOST_HEADER:
                raise TransferFailed(f"{address} sent a header of {length} bytes")
            header = json.loads(_exactly(answer, length))
            arrays = {}
            for name, dtype, shape in header["arrays"]:
                arrays[name] = torch.empty(shape, dtype=_DTYPES[dtype])
                _fill(answer, _bytes_of(arrays[name]))
            return arrays, header["document"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise TransferFailed(f"{address}: {error or type(error).__name__}") from error


def alive(address: str, timeout_s: float) -> bool | None:
    """Return whether a member is alive; False if it is not or says so, None on a timeout."""
    try:
        with _get(address, "/alive", timeout_s) as answer:
            return answer.status == http.client.OK
    except TimeoutError:
        return None
    except (OSError, http.client.HTTPException):
        return False


@contextlib.contextmanager
def _get(address: str, path: str, timeout_s: float) -> Iterator[http.client.HTTPResponse]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        yield connection.getresponse()
    finally:
        connection.close()


def _header(arrays: dict[str, torch.Tensor], document: dict[str, Json]) -> bytes:
    described = [(name, str(array.dtype), list(array.shape)) for name, array in arrays.items()]
    return json.dumps({"arrays": described, "document": document}).encode()


def _bytes_of(array: torch.Tensor) -> memoryview:
    return array.flatten().view(torch.uint8).numpy().data


def _exactly(answer: http.client.HTTPResponse, length: int) -> bytes:
    content = bytearray(length)
    _fill(answer, memoryview(content))
    return bytes(content)


def _fill(answer: http.client.HTTPResponse, place: memoryview) -> None:
    done = 0
    while done < len(place):
        count = answer.readinto(place[done:])
        if not count:
            raise TransferFailed("the connection ended early")
        done += count

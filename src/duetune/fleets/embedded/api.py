"""The provider's HTTP interface, on loopback only.

    GET  /status                        status of the whole provider
    GET  /market                        the current slot
    GET  /market/history/<slots>        the slots before the current one
    POST /apply                         a list of commands
    GET  /jobs/<job>/nodes              all nodes the job ever had
    POST /stop                          take all nodes and stop the provider
    GET  /jobs/<job>/notice/<node>/<secret>  when the node will be taken; 404 if not known
    POST /jobs/<job>/progress/<secret>  a progress report of a worker that cannot write the file

The last two are for workers and contain a secret of the job. All others need the token of
``provider.json``. The calls themselves are carried out in ``desk``; the Python client is in
``client``.
"""

from __future__ import annotations

import hmac
import itertools
import socketserver
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from duetune.core.node_contract import PROGRESS
from duetune.core.progress import Progress
from duetune.errors import DuetuneError, FleetError, InvalidInput, NotFound
from duetune.files import write_whole
from duetune.fleets.embedded.provider_messages import (
    HistoryDocument,
    Problem,
    TraceDocument,
    decode_commands,
)

if TYPE_CHECKING:
    from duetune.fleets.embedded.cloud_settings import FleetFaults
    from duetune.fleets.embedded.provider import Provider

LONGEST_BODY = 16 * 2**20
IDLE_S = 10.0
Document = msgspec.Struct | dict[str, str]

_STATUSES: dict[type[Exception], HTTPStatus] = {
    NotFound: HTTPStatus.NOT_FOUND,
    FleetError: HTTPStatus.SERVICE_UNAVAILABLE,
    PermissionError: HTTPStatus.UNAUTHORIZED,
}


class Server(ThreadingHTTPServer):
    """The HTTP server of one provider. It listens on a free port as soon as it is created."""

    daemon_threads = True

    def __init__(self, provider: Provider, faults: FleetFaults) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.provider = provider
        self.faults = faults
        self.applied = itertools.count(1)

    @property
    def url(self) -> str:
        """Return the address that clients call."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def server_bind(self) -> None:
        """Bind without looking up this machine's name, which ``HTTPServer`` would do."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])


class Handler(BaseHTTPRequestHandler):
    """Answers one HTTP connection with JSON documents."""

    server: Server
    timeout = IDLE_S

    def do_GET(self) -> None:
        """Answer a GET request."""
        self._serve("GET")

    def do_POST(self) -> None:
        """Answer a POST request."""
        self._serve("POST")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """Log nothing: calls are frequent, and errors are part of the answer."""

    def _serve(self, method: str) -> None:
        path = [unquote(part) for part in self.path.split("?")[0].strip("/").split("/")]
        try:
            status, answer = HTTPStatus.OK, self._answer(method, path)
        except (DuetuneError, PermissionError) as error:
            status = _STATUSES.get(type(error), HTTPStatus.UNPROCESSABLE_ENTITY)
            answer = Problem(str(error))
        faults = self.server.faults
        time.sleep(faults.reply_delay_s)
        applied = method == "POST" and path == ["apply"] and status == HTTPStatus.OK
        if applied and next(self.server.applied) in faults.lost_replies:
            self.close_connection = True
            return
        content = msgspec.json.encode(answer)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _answer(self, method: str, path: list[str]) -> Document:
        provider = self.server.provider
        desk = provider.desk
        match method, path:
            case "GET", ["jobs", job, "notice", node, secret]:
                self._check(secret, provider.job_secrets(job).calls)
                notice = desk.notice(job, node)
                if notice is None:
                    raise NotFound("node with a notice", node)
                return notice
            case "POST", ["jobs", job, "progress", secret]:
                self._check(secret, provider.job_secrets(job).calls)
                return self._take_progress(job)
        self._check(self.headers.get("Authorization", ""), f"Bearer {provider.token}")
        match method, path:
            case "GET", ["status"]:
                return provider.status()
            case "GET", ["market"]:
                return desk.market()
            case "GET", ["market", "history", slots] if slots.lstrip("-").isdigit():
                trace = desk.history(int(slots))
                return HistoryDocument(None if trace is None else TraceDocument.of(trace))
            case "GET", ["jobs", job, "nodes"]:
                return desk.observe(job)
            case "POST", ["apply"]:
                desk.apply(decode_commands(self._body()))
                return {}
            case "POST", ["stop"]:
                provider.stop()
                return {}
        raise NotFound("path of the fleet's API", self.path)

    def _take_progress(self, job: str) -> Document:
        """Write a worker's posted report to the job's progress file."""
        body = self._body()
        folder = self.server.provider.desk.job_folder(job)
        if folder is None:
            raise NotFound("job with nodes", job)
        try:
            report = msgspec.json.decode(body, type=Progress)
        except msgspec.DecodeError as error:
            raise InvalidInput("progress", body.decode(errors="replace"), str(error)) from None
        try:
            write_whole(folder / PROGRESS, msgspec.json.encode(report), durable=True)
        except OSError as error:
            raise FleetError(f"cannot write the progress report: {error}", retry=True) from None
        return {}

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > LONGEST_BODY:
            raise InvalidInput("Content-Length", length, f"at most {LONGEST_BODY} bytes")
        return self.rfile.read(int(length))

    @staticmethod
    def _check(given: str, wanted: str) -> None:
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            raise PermissionError("this call needs the token in provider.json")

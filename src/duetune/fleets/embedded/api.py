"""The provider's HTTP interface, on loopback only.

    GET  /status                        the provider as a whole
    GET  /market                        the present slot
    GET  /market/history/<slots>        the slots before it
    POST /apply                         a list of commands
    GET  /jobs/<job>/nodes              all nodes the job ever had
    POST /stop                          take all nodes and end
    GET  /nodes/<node>/notice           404 until the node will be taken, then when
    POST /jobs/<job>/progress/<secret>  a worker's report, for those that cannot write the file

All but the last two want the token of ``provider.json``; those two are for workers.
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


class Server(ThreadingHTTPServer):
    """Listens once it is made; the port is whichever was free."""

    daemon_threads = True

    def __init__(self, provider: Provider, faults: FleetFaults) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.provider = provider
        self.faults = faults
        self.applied = itertools.count(1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def server_bind(self) -> None:
        # Not HTTPServer's own, which asks the network for this machine's name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = IDLE_S

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is called
        """Calls come all the time; only errors are worth a line, and those are answered."""

    def _serve(self, method: str) -> None:
        path = [unquote(part) for part in self.path.split("?")[0].strip("/").split("/")]
        try:
            status, answer = HTTPStatus.OK, self._answer(method, path)
        except NotFound as error:
            status, answer = HTTPStatus.NOT_FOUND, Problem(str(error))
        except FleetError as error:
            status, answer = HTTPStatus.SERVICE_UNAVAILABLE, Problem(str(error))
        except PermissionError as error:
            status, answer = HTTPStatus.UNAUTHORIZED, Problem(str(error))
        except DuetuneError as error:
            status, answer = HTTPStatus.UNPROCESSABLE_ENTITY, Problem(str(error))
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
            case "GET", ["nodes", node, "notice"]:
                notice = desk.notice(node)
                if notice is None:
                    raise NotFound("notice for a node", node)
                return notice
            case "POST", ["jobs", job, "progress", secret]:
                self._check(secret, provider.progress_secret(job))
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
            raise FleetError(f"progress cannot be written: {error}", retry=True) from None
        return {}

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > LONGEST_BODY:
            raise InvalidInput("Content-Length", length, f"at most {LONGEST_BODY} bytes")
        return self.rfile.read(int(length))

    @staticmethod
    def _check(given: str, wanted: str) -> None:
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            raise PermissionError("the token of provider.json is needed")

"""A server that pretends to be S3 and refuses, for ``pytest_plugins``."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@pytest.fixture
def refusing():
    """Starts a server that answers every request with a status and an S3 error code."""
    servers = []

    def start(status, code):
        class Refusing(BaseHTTPRequestHandler):
            def answer(self):
                body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_DELETE = do_POST = answer  # noqa: N815

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()

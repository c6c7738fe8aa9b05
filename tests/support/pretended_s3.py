"""A moto server of the test run's own, for ``pytest_plugins``; tests skip if moto is missing.

It shows that the code path works. It says nothing about how atomic a real store is.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
import uuid

import pytest

from support.patience import until

BUCKET = "bucket"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}
# A store decides about a conditional write and does it in one; moto lets others come in between.
SERVE = """
import threading
from moto import server

class OneByOne(server.DomainDispatcherApplication):
    turn = threading.Lock()

    def __call__(self, environ, start_response):
        with self.turn:
            return super().__call__(environ, start_response)

server.DomainDispatcherApplication = OneByOne
server.main(["-H", "127.0.0.1", "-p", "0"])
"""


@contextlib.contextmanager
def pretended_s3():
    """Start a server, create the bucket, and yield the server's address."""
    with tempfile.TemporaryFile("w+b") as log:
        server = subprocess.Popen([sys.executable, "-c", SERVE], stdout=log, stderr=log)
        try:

            def address():
                assert server.poll() is None, "moto ended"
                said = os.pread(log.fileno(), 1 << 16, 0).decode()
                return (found := re.search(r"Running on (http://[\d.:]+)", said)) and found[1]

            url = until(address)
            create_bucket(url, BUCKET)
            yield url
        finally:
            server.kill()
            server.wait()


def create_bucket(url, name):
    by = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"
    asked = urllib.request.Request(f"{url}/{name}", method="PUT", headers={"Authorization": by})  # noqa: S310
    urllib.request.urlopen(asked).close()  # noqa: S310


@pytest.fixture(scope="session")
def s3_server():
    pytest.importorskip("moto", reason="moto is not installed")
    pytest.importorskip("obstore", reason="obstore is not installed")
    with pretended_s3() as address, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield address


@pytest.fixture
def s3_url(s3_server):
    """An empty place in the bucket."""
    return f"s3://{BUCKET}/{uuid.uuid4().hex}?endpoint={s3_server}"

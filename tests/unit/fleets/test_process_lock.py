"""Who holds a lock is known for sure, and nobody else is ever signalled."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading

import pytest

from duetune.fleets.process_lock import ProcessIdentity, hold, holder, identity_of
from support.patience import PATIENCE_S

HOLDER = """
import sys
from pathlib import Path
from duetune.fleets.process_lock import hold
print(hold(Path(sys.argv[1])) is not None, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path):
    """A lock and the process that holds it."""
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "True\n"
        yield path, process
        process.kill()


def test_the_holder_is_found_and_a_second_one_is_refused(held):
    path, process = held
    assert holder(path) == identity_of(process.pid)
    assert hold(path) is None
    assert holder(path).send(signal.SIGTERM)
    process.wait(PATIENCE_S)
    assert holder(path) is None
    assert holder(path.with_name("none")) is None


def test_many_probes_at_once_never_see_a_dead_holder_and_are_in_nobodys_way(held):
    path, process = held
    process.kill()
    process.wait(PATIENCE_S)
    wrong = []

    def probe():
        wrong.extend(found for _ in range(300) if (found := holder(path)) is not None)

    threads = [threading.Thread(target=probe) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        with path.open("rb") as file:  # BlockingIOError if a probe had it
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not wrong


def test_a_process_that_got_the_id_of_a_dead_one_is_not_signalled(held):
    path, process = held
    real = holder(path)
    other = ProcessIdentity(real.pid, real.started - 1, real.boot)
    path.write_text(" ".join(map(str, other)))
    assert holder(path) is None
    assert not other.send(signal.SIGKILL)
    assert not ProcessIdentity(real.pid, real.started, "another boot").send(signal.SIGKILL)
    assert process.poll() is None

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from duetune.core.node_contract import DONE, HOPELESS
from duetune.core.progress import Phase, Progress
from duetune.errors import InvalidInput, OutOfMemory
from duetune.training import worker
from duetune.training.publication import PublishedResult, publish
from duetune.training.worker_contract import Contract, ProgressReporter, read_progress


def contract_in(folder, **others):
    given = {
        "DUETUNE_JOB_ID": "job",
        "DUETUNE_NODE_ID": "node",
        "DUETUNE_EPOCH": "1",
        "DUETUNE_JOB_DIR": str(folder),
    }
    return Contract.from_environment(given | others)


@pytest.fixture
def listener():
    """An HTTP server on loopback and what was posted to it."""
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/progress", posted
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_is_reported_can_be_read_and_has_a_time(tmp_path):
    reporter = ProgressReporter(contract_in(tmp_path))
    reporter.report(Progress(step=3, total_steps=10, loss=0.5, phase=Phase.TRAINING))
    read = read_progress(tmp_path / "progress.json")
    assert read is not None
    assert (read.step, read.total_steps, read.loss, read.phase) == (3, 10, 0.5, Phase.TRAINING)
    assert read.at > 1e9
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]


def test_reports_in_quick_succession_are_left_out_except_the_last_word(tmp_path):
    file = tmp_path / "progress.json"
    reporter = ProgressReporter(contract_in(tmp_path), least_s=1000)
    reporter.report(Progress(step=1, phase=Phase.TRAINING))
    reporter.report(Progress(step=2, phase=Phase.TRAINING))
    assert read_progress(file).step == 1
    reporter.report(Progress(step=3, phase=Phase.TRAINING, checkpoint_step=3))
    assert read_progress(file).step == 3
    reporter.report(Progress(step=4, phase=Phase.FINISHED))
    assert read_progress(file).step == 4
    reporter.report(Progress(step=4, phase=Phase.FINISHED, output="there"))
    assert read_progress(file).output == "there"


def test_a_new_phase_is_told_at_once(tmp_path):
    reporter = ProgressReporter(contract_in(tmp_path), least_s=1000)
    reporter.report(Progress(phase=Phase.STARTING))
    reporter.report(Progress(phase=Phase.TRAINING))
    assert read_progress(tmp_path / "progress.json").phase is Phase.TRAINING


def test_training_goes_on_when_nothing_can_be_written(tmp_path):
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    reporter = ProgressReporter(contract_in(nowhere))
    reporter.report(Progress(step=1))
    (tmp_path / "taken").mkdir()
    in_the_way = contract_in(tmp_path, DUETUNE_PROGRESS_FILE=str(tmp_path / "taken"))
    ProgressReporter(in_the_way).report(Progress(step=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]


def test_a_full_disk_is_no_end(tmp_path, monkeypatch):
    reporter = ProgressReporter(contract_in(tmp_path))
    with monkeypatch.context() as patched:
        # /dev/full takes no byte.
        write = Path.write_bytes
        patched.setattr(Path, "write_bytes", lambda _, content: write(Path("/dev/full"), content))
        reporter.report(Progress(step=1))
    assert list(tmp_path.iterdir()) == []
    reporter.report(Progress(step=2, phase=Phase.FINISHED))
    assert read_progress(tmp_path / "progress.json").step == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"step": 3',
        b"[1]",
        b'{"step": "x"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b"null",
        b'{"step": 1, "message": "\xf2"}',
        b"{}",
        b'{"foo": 1}',
    ],
)
def test_content_that_is_no_report_is_none(tmp_path, content):
    file = tmp_path / "progress.json"
    file.write_bytes(content)
    assert read_progress(file) is None


def test_no_file_is_no_report(tmp_path):
    assert read_progress(tmp_path / "progress.json") is None
    assert read_progress(tmp_path) is None


def test_a_report_of_a_later_version_is_read(tmp_path):
    file = tmp_path / "progress.json"
    file.write_text('{"step": 5, "mood": "good"}')
    assert read_progress(file).step == 5


def test_a_reader_never_sees_half_a_report(tmp_path):
    file = tmp_path / "progress.json"
    reporter = ProgressReporter(contract_in(tmp_path), least_s=0)
    reporter.report(Progress(step=0))

    def write():
        for step in range(300):
            reporter.report(Progress(step=step, message="x" * 5000))

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        assert read_progress(file) is not None
    thread.join()
    assert read_progress(file).step == 299


def test_without_a_file_it_is_posted(tmp_path, listener, monkeypatch):
    # A proxy of the environment must not get what is meant for loopback.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    url, posted = listener
    reporter = ProgressReporter(contract_in(tmp_path, DUETUNE_PROGRESS_URL=url))
    reporter.report(Progress(step=8, phase=Phase.FINISHED))
    assert msgspec.json.decode(posted[0], type=Progress).step == 8
    assert list(tmp_path.iterdir()) == []


def test_nobody_listening_does_not_hold_up_training(tmp_path, listener):
    url, posted = listener
    gone = contract_in(tmp_path, DUETUNE_PROGRESS_URL="http://127.0.0.1:9/")
    reporter = ProgressReporter(gone, least_s=0)
    for step in range(3):
        reporter.report(Progress(step=step))
    # It tries again only after a pause.
    reporter._url = url
    reporter.report(Progress(step=4))
    assert posted == []
    reporter.report(Progress(step=5, phase=Phase.FAILED))
    assert len(posted) == 1


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (OutOfMemory("model", "org/model", "a smaller model: out of memory"), True),
        (InvalidInput("dataset", "out of memory.jsonl", "a file"), False),
    ],
)
def test_a_failure_says_whether_memory_was_too_small(tmp_path, monkeypatch, error, ran_out):
    def fails(*_arguments):
        raise error

    contract = contract_in(tmp_path, DUETUNE_PROGRESS_FILE=str(tmp_path / "progress.json"))
    ProgressReporter(contract).report(Progress(step=7, phase=Phase.TRAINING))
    monkeypatch.setattr(Contract, "from_environment", lambda _: contract)
    monkeypatch.setattr(worker, "_run", fails)
    monkeypatch.setattr(worker, "_set_up_log", lambda: None)
    assert worker.main() == HOPELESS
    told = read_progress(tmp_path / "progress.json")
    assert (told.step, told.phase, told.out_of_memory) == (7, Phase.FAILED, ran_out)
    assert told.message == str(error)


def test_the_last_report_keeps_how_fast_the_group_was(tmp_path, monkeypatch):
    contract = contract_in(tmp_path, DUETUNE_PROGRESS_FILE=str(tmp_path / "progress.json"))
    training = Progress(step=7, phase=Phase.TRAINING, world=3, step_s=0.25)
    ProgressReporter(contract).report(training)
    publish(contract.output, lambda _: None, PublishedResult(steps=9, tokens=80))
    monkeypatch.setattr(Contract, "from_environment", lambda _: contract)
    monkeypatch.setattr(worker, "_set_up_log", lambda: None)
    assert worker.main() == DONE
    told = read_progress(tmp_path / "progress.json")
    assert (told.step, told.phase, told.world, told.step_s) == (9, Phase.FINISHED, 3, 0.25)

from __future__ import annotations

import json
import threading

import pytest

from duetune.errors import StorageError
from duetune.fleets.embedded.node_assignment import SECRETS_FILE
from duetune.storage import JobMirror, job_mirror
from duetune.storage.job_mirror import deposit, fetch_output, reported
from duetune.testing import MemoryStorage
from duetune.training.metrics import METRICS
from duetune.training.publication import RESULT_FILE, PublishedResult, publish, published
from duetune.training.task import TASK_FILE
from support.patience import until
from support.storage_faults import FaultyStorage, Killed


@pytest.fixture
def storage(tmp_path):
    """The storage of a job that was launched with one dataset and one secret."""
    home = tmp_path / "home"
    home.mkdir()
    task = {"model": "tiny", "dataset": "input:train.jsonl", "eval_dataset": None, "steps": 2**60}
    (home / "task.json").write_text(json.dumps(task))
    (home / "secrets.json").write_text('{"HF_TOKEN": "hidden"}')
    (tmp_path / "rows").write_text("a row\n")
    storage = MemoryStorage()
    deposit(storage, home, {"train.jsonl": tmp_path / "rows"})
    return storage


@pytest.fixture
def mirror(storage, tmp_path):
    mirror = JobMirror(storage, tmp_path / "node-1", "node-1")
    mirror.fetch()
    return mirror


def folder(mirror):
    return mirror._folder


def publish_on(mirror, loss=1.0):
    def write(draft):
        (draft / "model").mkdir()
        (draft / "model" / "weights").write_text(f"weights {loss}")

    publish(folder(mirror) / "output", write, PublishedResult(steps=3, tokens=9, loss=loss))


def test_the_names_are_those_of_the_training_process():
    assert job_mirror.TASK == TASK_FILE
    assert job_mirror.SECRETS == SECRETS_FILE
    assert job_mirror.METRICS == METRICS
    assert job_mirror.RESULT == RESULT_FILE


def test_a_node_gets_what_it_needs_and_paths_are_its_own(mirror):
    task = json.loads((folder(mirror) / "task.json").read_text())
    dataset = folder(mirror) / "inputs" / "train.jsonl"
    assert task == {
        "model": "tiny", "dataset": str(dataset), "eval_dataset": None, "steps": 2**60
    }  # fmt: skip
    assert dataset.read_text() == "a row\n"
    secrets = folder(mirror) / "secrets.json"
    assert json.loads(secrets.read_text()) == {"HF_TOKEN": "hidden"}
    assert secrets.stat().st_mode & 0o077 == 0
    assert folder(mirror).stat().st_mode & 0o077 == 0


def test_inputs_that_are_there_are_not_fetched_again(mirror, storage):
    before = (folder(mirror) / "inputs" / "train.jsonl").stat().st_mtime_ns
    JobMirror(storage, folder(mirror), "node-1").fetch()
    assert (folder(mirror) / "inputs" / "train.jsonl").stat().st_mtime_ns == before


def test_a_job_without_a_task_is_an_error(tmp_path):
    with pytest.raises(StorageError, match=r"there is no task\.json"):
        JobMirror(MemoryStorage(), tmp_path / "node", "node").fetch()


def test_reports_go_up_by_node_and_only_what_is_new(mirror, storage, monkeypatch):
    monkeypatch.setattr(job_mirror, "PART_BYTES", 10)
    sent = []
    monkeypatch.setattr(storage, "write", lambda *call: sent.append(call[0]) or put(*call))

    def put(name, content):
        storage.files[name] = content

    (folder(mirror) / "logs").mkdir()
    log = folder(mirror) / "logs" / "node-1.log"
    log.write_text("first line")
    (folder(mirror) / "progress.json").write_text('{"step":1}')
    (folder(mirror) / "metrics.jsonl").write_text('{"step":1}\n')
    mirror.sync()
    assert reported(storage, "progress.json") == {"node-1": b'{"step":1}'}
    assert reported(storage, "metrics.jsonl") == {"node-1": b'{"step":1}\n'}
    assert reported(storage, "logs/node-1.log") == {"node-1": b"first line"}
    sent.clear()
    mirror.sync()
    assert sent == []
    with log.open("a") as more:
        more.write(" and more, and more")
    mirror.sync()
    assert sent == ["nodes/node-1/logs/node-1.log/000001", "nodes/node-1/logs/node-1.log/000002"]
    assert reported(storage, "logs/node-1.log") == {"node-1": b"first line and more, and more"}


def test_a_file_that_was_written_anew_is_sent_anew(mirror, storage, monkeypatch):
    monkeypatch.setattr(job_mirror, "PART_BYTES", 4)
    metrics = folder(mirror) / "metrics.jsonl"
    for content in (b"aaaabbbbcc", b"aaaaXXXXcccc", b"aaaa"):
        metrics.write_bytes(content)
        mirror.sync()
        assert reported(storage, "metrics.jsonl") == {"node-1": content}


def test_reports_of_two_nodes_do_not_mix(mirror, storage, tmp_path):
    other = JobMirror(storage, tmp_path / "node-2", "node-2")
    other.fetch()
    for number, each in enumerate((mirror, other)):
        (folder(each) / "progress.json").write_text(str(number))
        each.sync()
    assert reported(storage, "progress.json") == {"node-1": b"0", "node-2": b"1"}


def test_the_background_survives_a_storage_that_is_away(storage, tmp_path):
    away = threading.Event()

    def fail():
        raise StorageError("s3://bucket", "no network", retry=True)

    class Unsteady(FaultyStorage):
        def _call(self, method, *arguments):
            if away.is_set():
                fail()
            return super()._call(method, *arguments)

    mirror = JobMirror(Unsteady(storage), tmp_path / "node", "node", every_s=0.001)
    mirror.fetch()
    away.set()
    mirror.start()
    (folder(mirror) / "progress.json").write_text("1")
    until(lambda: "no network" in mirror.warning)
    assert reported(storage, "progress.json") == {}
    away.clear()
    until(lambda: reported(storage, "progress.json") == {"node": b"1"})
    until(lambda: not mirror.warning)
    (folder(mirror) / "progress.json").write_text("23")
    mirror.close()
    assert reported(storage, "progress.json") == {"node": b"23"}


def test_the_result_is_uploaded_at_the_end_and_downloaded_whole(mirror, storage, tmp_path):
    target = tmp_path / "result"
    assert not fetch_output(storage, target)
    publish_on(mirror)
    mirror.sync()
    assert not fetch_output(storage, target)
    mirror.close()
    assert fetch_output(storage, target)
    assert (target / "model" / "weights").read_text() == "weights 1.0"
    assert published(target).steps == 3
    (name,) = (name for name in storage.files if name.endswith("weights"))
    storage.files[name] = b"damaged"
    with pytest.raises(StorageError, match="missing or damaged"):
        fetch_output(storage, tmp_path / "again")


def test_of_two_results_the_first_counts_and_the_other_is_removed(mirror, storage, tmp_path):
    other = JobMirror(storage, tmp_path / "node-2", "node-2")
    other.fetch()
    publish_on(mirror, 1.0)
    publish_on(other, 2.0)
    other.close()
    mirror.close()
    assert fetch_output(storage, tmp_path / "result")
    assert published(tmp_path / "result").loss == 2.0
    assert len({name.split("/")[1] for name in storage.sizes("outputs")}) == 1


def test_a_result_of_another_node_becomes_known(mirror, storage, tmp_path):
    other = JobMirror(storage, tmp_path / "node-2", "node-2")
    other.fetch()
    publish_on(mirror)
    mirror.close()
    assert published(folder(other) / "output") is None
    other.sync()
    assert published(folder(other) / "output").loss == 1.0
    late = JobMirror(storage, tmp_path / "node-3", "node-3")
    late.fetch()
    assert published(folder(late) / "output").loss == 1.0
    late.close()
    assert len(storage.sizes("outputs")) == 2


def test_a_kill_at_any_call_of_the_upload_leaves_no_half_result(storage, tmp_path):
    at, finished = 1, False
    while not finished:

        def kill():
            raise Killed

        place = MemoryStorage()
        place.files = dict(storage.files)
        faulty = FaultyStorage(place)
        mirror = JobMirror(faulty, tmp_path / f"node-{at}", f"node-{at}")
        mirror.fetch()
        publish_on(mirror)
        faulty.calls, faulty.at, faulty.fault = 0, at, kill
        try:
            mirror.close()
            finished = True
        except Killed:
            pass
        there = fetch_output(place, tmp_path / f"result-{at}")
        assert there == finished
        again = JobMirror(place, tmp_path / f"node-{at}", f"node-{at}")
        again.fetch()
        again.close()
        assert fetch_output(place, tmp_path / f"result-{at}")
        at += 1
    assert at > 4

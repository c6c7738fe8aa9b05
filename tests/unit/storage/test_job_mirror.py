from __future__ import annotations

import json

import pytest

from duetune.errors import InvalidInput
from duetune.fleets.embedded.node_assignment import SECRETS_FILE
from duetune.storage import JobMirror, deposit, job_deposit, job_layout
from duetune.storage.job_deposit import forget_secrets
from duetune.storage.job_layout import fetch_output, reported
from duetune.testing import MemoryStorage
from duetune.training.metrics import METRICS
from duetune.training.publication import RESULT_FILE, PublishedResult, publish, published
from duetune.training.task import TASK_FILE
from support.storage_faults import FaultyStorage, Killed, StorageError, Unsteady


@pytest.fixture
def launched(tmp_path):
    """The folder of a job with a model, a dataset and a secret, all of this machine."""
    home = tmp_path / "home"
    model = tmp_path / "a model"
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "sub" / "weights").write_text("weights")
    (model / ".cache").write_text("not needed")
    (tmp_path / "train.jsonl").write_text("a row\n")
    home.mkdir()
    task = {
        "model": str(model),
        "dataset": str(tmp_path / "train.jsonl"),
        "eval_dataset": "/only/on/the/nodes.jsonl",
        "steps": 2**60,
    }
    (home / "task.json").write_text(json.dumps(task))
    (home / "secrets.json").write_text('{"HF_TOKEN": "hidden"}')
    return home


@pytest.fixture
def storage(launched):
    """The storage of that job after it was launched."""
    storage = MemoryStorage()
    deposit(storage, launched)
    return storage


@pytest.fixture
def mirror(storage, tmp_path):
    mirror = JobMirror(storage, tmp_path / "node-1", "node-1", part_bytes=10)
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
    assert job_layout.TASK == TASK_FILE
    assert job_layout.SECRETS == SECRETS_FILE
    assert job_layout.METRICS == METRICS
    assert job_layout.RESULT == RESULT_FILE


def test_a_node_gets_what_it_needs_and_paths_are_its_own(mirror):
    task = json.loads((folder(mirror) / "task.json").read_text())
    inputs = folder(mirror) / "inputs"
    assert task == {
        "model": str(inputs / "model"),
        "dataset": str(inputs / "dataset" / "train.jsonl"),
        "eval_dataset": "/only/on/the/nodes.jsonl",
        "steps": 2**60,
    }
    assert (inputs / "dataset" / "train.jsonl").read_text() == "a row\n"
    assert (inputs / "model" / "sub" / "weights").read_text() == "weights"
    assert not (inputs / "model" / ".cache").exists()
    secrets = folder(mirror) / "secrets.json"
    assert json.loads(secrets.read_text()) == {"HF_TOKEN": "hidden"}
    assert secrets.stat().st_mode & 0o077 == 0
    assert folder(mirror).stat().st_mode & 0o077 == 0


def test_names_on_the_hub_stay_as_they_are(tmp_path):
    home, storage = tmp_path / "home", MemoryStorage()
    home.mkdir()
    (home / "task.json").write_text('{"model":"org/model","dataset":"org/data"}')
    deposit(storage, home)
    assert storage.files["task.json"] == b'{"model":"org/model","dataset":"org/data"}'
    assert storage.sizes("inputs") == {}


def test_a_command_gets_its_folder_unless_that_is_too_large(tmp_path, monkeypatch):
    home, work, storage = tmp_path / "home", tmp_path / "work", MemoryStorage()
    home.mkdir()
    work.mkdir()
    (work / "train.py").write_text("print()")
    deposit(storage, home, work)
    mirror = JobMirror(storage, tmp_path / "node", "node")
    mirror.fetch()
    assert (folder(mirror) / "inputs" / "workdir" / "train.py").read_text() == "print()"
    assert not (folder(mirror) / "task.json").exists()
    monkeypatch.setattr(job_deposit, "MOST_WORKDIR", 6)
    with pytest.raises(InvalidInput, match="workdir"):
        deposit(storage, home, work)


def test_secrets_can_be_forgotten(storage):
    forget_secrets(storage)
    forget_secrets(storage)
    assert "secrets.json" not in storage.files


def test_inputs_that_are_there_are_not_fetched_again_and_damaged_ones_are_refused(mirror, storage):
    path = folder(mirror) / "inputs" / "dataset" / "train.jsonl"
    before = path.stat().st_mtime_ns
    mirror.fetch()
    assert path.stat().st_mtime_ns == before
    path.unlink()
    storage.files["inputs/dataset/train.jsonl"] = b"A row\n"
    with pytest.raises(StorageError, match="missing or damaged"):
        mirror.fetch()


def test_reports_go_up_by_node_and_only_what_is_new(mirror, storage, monkeypatch):
    sent = []
    monkeypatch.setattr(storage, "write", lambda *call: sent.append(call[0]) or put(*call))

    def put(name, content):
        storage.files[name] = content

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


def test_a_file_that_was_written_anew_is_sent_anew(mirror, storage):
    metrics = folder(mirror) / "metrics.jsonl"
    for content in (b"aaaaaaaaaabbbbbcc", b"aaaaaaaaaaXXXXXcccc", b"aaaa"):
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


def test_a_storage_that_was_away_gets_the_reports_later(storage, tmp_path):
    unsteady = Unsteady(storage)
    mirror = JobMirror(unsteady, tmp_path / "node", "node")
    mirror.fetch()
    unsteady.away.set()
    (folder(mirror) / "progress.json").write_text('{"step":1}')
    with pytest.raises(StorageError):
        mirror.sync()
    unsteady.away.clear()
    mirror.sync()
    assert reported(storage, "progress.json") == {"node": b'{"step":1}'}


def test_the_loss_rate_of_nodes_reaches_the_training_process(storage, tmp_path):
    storage.write("hazard.json", b"{}")
    mirror = JobMirror(storage, tmp_path / "node", "node")
    mirror.fetch()
    assert (folder(mirror) / "hazard.json").read_bytes() == b"{}"


def test_the_result_is_there_before_anyone_hears_that_training_has_finished(storage, tmp_path):
    """Whichever call is the last one that succeeds."""
    last = 0
    while "nodes/node/progress.json" not in storage.files:
        last += 1
        folder = tmp_path / f"node-{last}"
        mirror = JobMirror(storage, folder, "node", home="/home/me/jobs/job")
        mirror.fetch()
        (folder / "output").mkdir()
        (folder / "output" / "weights").write_text("weights")
        said = {"step": 3, "phase": "finished", "output": str(folder / "output"), "more": 1}
        (folder / "progress.json").write_text(json.dumps(said))

        def stop():
            raise StorageError("memory://", "away", retry=True)

        mirror._storage = FaultyStorage(storage, last, stop)
        try:
            mirror.sync()
        except StorageError:
            assert "nodes/node/progress.json" not in storage.files or fetch_output(
                storage, tmp_path / f"result-{last}"
            )
    assert last > 3
    assert fetch_output(storage, tmp_path / "result")
    (said,) = map(json.loads, reported(storage, "progress.json").values())
    assert said == {
        "step": 3,
        "phase": "finished",
        "output": "/home/me/jobs/job/output",
        "more": 1,
    }


def test_the_result_is_uploaded_at_the_end_and_downloaded_whole(mirror, storage, tmp_path):
    target = tmp_path / "result"
    assert not fetch_output(storage, target)
    publish_on(mirror)
    mirror.sync()
    assert not fetch_output(storage, target)
    mirror.close(done=True)
    assert fetch_output(storage, target)
    assert (target / "model" / "weights").read_text() == "weights 1.0"
    assert published(target).steps == 3
    (name,) = (name for name in storage.sizes("outputs") if name.endswith("weights"))
    storage.files[name] = b"damaged"
    with pytest.raises(StorageError, match="missing or damaged"):
        fetch_output(storage, tmp_path / "again")


def test_of_two_results_the_first_counts_and_the_other_is_removed(mirror, storage, tmp_path):
    other = JobMirror(storage, tmp_path / "node-2", "node-2")
    other.fetch()
    publish_on(mirror, 1.0)
    publish_on(other, 2.0)
    other.close(done=True)
    mirror.close(done=True)
    assert fetch_output(storage, tmp_path / "result")
    assert published(tmp_path / "result").loss == 2.0
    assert len({name.split("/")[1] for name in storage.sizes("outputs")}) == 1


def test_a_result_of_another_node_becomes_known(mirror, storage, tmp_path):
    other = JobMirror(storage, tmp_path / "node-2", "node-2")
    other.fetch()
    publish_on(mirror)
    mirror.close(done=True)
    assert published(folder(other) / "output") is None
    other.sync()
    assert published(folder(other) / "output").loss == 1.0
    late = JobMirror(storage, tmp_path / "node-3", "node-3")
    late.fetch()
    assert published(folder(late) / "output").loss == 1.0
    late.close(done=True)
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
            mirror.close(done=True)
            finished = True
        except Killed:
            pass
        assert fetch_output(place, tmp_path / f"result-{at}") or not finished
        again = JobMirror(place, tmp_path / f"node-{at}", f"node-{at}")
        again.fetch()
        again.close(done=True)
        assert fetch_output(place, tmp_path / f"result-{at}")
        at += 1
    assert at > 4

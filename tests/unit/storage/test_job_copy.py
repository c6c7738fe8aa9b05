"""The controller's copy of a job: what nodes have put into the storage, as in a shared folder."""

from __future__ import annotations

import json

import pytest

from duetune.errors import StorageError
from duetune.storage import JobCopy, JobMirror, deposit, job_copy
from duetune.storage.job_copy import merged_metrics
from duetune.testing import MemoryStorage
from duetune.training.metrics import MetricRow, MetricsLog, read_metrics
from duetune.training.worker_contract import read_progress
from support.storage_faults import Unsteady

PART = 16


class Lab:
    """A job with nodes in memory."""

    def __init__(self, folder):
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir()
        self.storage = MemoryStorage()
        deposit(self.storage, self.home)
        self.copy = JobCopy(self.storage, self.home, part_bytes=PART)

    def node(self, name):
        mirror = JobMirror(
            self.storage, self.folder / name, name, home=str(self.home), part_bytes=PART
        )
        mirror.fetch()
        return mirror

    def says(self, mirror, step, at, *, code=None, output="", **more):
        folder = self.folder / mirror._node
        if output:
            (folder / "output").mkdir(exist_ok=True)
            (folder / "output" / "weights").write_text(output)
            more["output"] = str(folder / "output")
        (folder / "progress.json").write_text(json.dumps({"step": step, "at": at, **more}))
        mirror.sync()
        report = json.dumps({"at": at, "started_at": 0.0, "code": code})
        self.storage.write(f"nodes/{mirror._node}/report.json", report.encode())

    @property
    def step(self):
        return read_progress(self.home / "progress.json").step


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def test_the_progress_that_changed_last_counts_whatever_the_clocks_say(lab):
    one, two = lab.node("one"), lab.node("two")
    lab.says(one, 5, at=1000.0)
    lab.copy.refresh()
    assert lab.step == 5
    lab.says(two, 6, at=10.0)
    lab.copy.refresh()
    assert lab.step == 6
    lab.copy.refresh()
    assert lab.step == 6


def test_a_damaged_report_of_one_node_does_not_hide_those_of_others(lab):
    lab.says(lab.node("one"), 5, at=1.0)
    lab.storage.write("nodes/two/progress.json", b'{"step": ')
    lab.storage.write("nodes/two/report.json", b"?")
    lab.copy.refresh()
    assert lab.step == 5


def test_the_result_is_here_before_the_job_is_said_to_be_done(lab, monkeypatch):
    node = lab.node("one")
    lab.says(node, 9, at=1.0, phase="finished", output="weights", code=0)
    (name,) = (each for each in lab.storage.files if each.endswith("weights"))
    content = lab.storage.files.pop(name)
    with pytest.raises(StorageError, match="missing or damaged"):
        lab.copy.refresh()
    assert lab.copy.reports == {}
    assert not (lab.home / "progress.json").exists()
    lab.storage.files[name] = content
    lab.copy.refresh()
    progress = read_progress(lab.home / "progress.json")
    assert progress.output == str(lab.home / "output")
    assert (lab.home / "output" / "weights").read_text() == "weights"
    assert json.loads(lab.copy.reports["one"])["code"] == 0
    monkeypatch.setattr(lab.storage, "download", None)
    JobCopy(lab.storage, lab.home).refresh()


def test_a_result_that_cannot_be_fetched_stays_in_the_storage(lab, monkeypatch):
    """Training again would cost more than to say where the result is."""
    monkeypatch.setattr(job_copy, "GIVE_UP_S", 0.0)
    lab.says(lab.node("one"), 9, at=1.0, phase="finished", output="weights", code=0)
    del lab.storage.files[next(each for each in lab.storage.files if each.endswith("weights"))]
    lab.copy.refresh()
    progress = read_progress(lab.home / "progress.json")
    assert progress.phase == "finished"
    assert progress.output.startswith("memory:///outputs/one-")
    assert progress.output in progress.message
    assert not (lab.home / "output").exists()


def test_logs_are_copied_part_by_part(lab):
    node = lab.node("one")
    log = lab.folder / "one" / "logs" / "n1.log"
    text = ""
    for number in range(12):
        text += f"line {number}\n"
        log.write_text(text)
        node.sync()
        lab.copy.refresh()
        assert (lab.home / "logs" / "n1.log").read_text() == text
    (lab.folder / "one" / "logs" / "coordinator.log").write_text("one leads")
    node.sync()
    lab.copy.refresh()
    assert (lab.home / "logs" / "coordinator-one.log").read_text() == "one leads"
    assert (lab.home / "logs" / "n1.log").stat().st_mode & 0o077 == 0
    again = JobCopy(lab.storage, lab.home, part_bytes=PART)
    again.refresh()
    assert (lab.home / "logs" / "n1.log").read_text() == text


def test_metrics_of_several_leaders_are_one_file(lab):
    """Each node writes what it led; training goes back to a checkpoint in between."""
    one, two = lab.node("one"), lab.node("two")
    logs = {name: MetricsLog(lab.folder / name) for name in ("one", "two")}
    logs["one"].lead(0, leads=True)
    for step in range(1, 8):
        logs["one"].add(MetricRow(step=step, at=float(step), loss=1.0))
    one.sync()
    lab.copy.refresh()
    assert [row.step for row in read_metrics(lab.home / "metrics.jsonl")] == list(range(1, 8))
    logs["two"].lead(4, leads=True)
    logs["two"].add(MetricRow(step=5, at=10.0, loss=2.0))
    two.sync()
    lab.copy.refresh()
    rows = read_metrics(lab.home / "metrics.jsonl")
    assert [(row.step, row.loss) for row in rows] == [*((n, 1.0) for n in range(1, 5)), (5, 2.0)]
    logs["two"].add(MetricRow(step=5, eval_loss=3.0))
    two.sync()
    lab.copy.refresh()
    assert read_metrics(lab.home / "metrics.jsonl")[-1].eval_loss == 3.0


def test_what_a_node_sends_while_the_copy_is_made_is_not_missed(lab, monkeypatch):
    """The last metrics come after the list of files, and before the report that all is done."""
    node, listed = lab.node("one"), lab.storage.sizes
    (lab.folder / "one" / "metrics.jsonl").write_text('{"step":1,"at":1.0}\n')
    lab.says(node, 1, at=1.0)
    lab.copy.refresh()

    def list_and_end(folder=""):
        found = listed(folder)
        monkeypatch.setattr(lab.storage, "sizes", listed)
        with (lab.folder / "one" / "metrics.jsonl").open("a") as file:
            file.write('{"step":2,"at":2.0}\n')
        lab.says(node, 2, at=2.0, phase="finished", output="weights")
        return found

    monkeypatch.setattr(lab.storage, "sizes", list_and_end)
    lab.copy.refresh()
    assert read_progress(lab.home / "progress.json").phase == "finished"
    assert [row.step for row in read_metrics(lab.home / "metrics.jsonl")] == [1, 2]


def test_of_a_repeated_line_the_one_that_knows_more_counts():
    short, long = b'{"step":1,"at":1.0}\n', b'{"step":1,"at":1.0,"eval_loss":2.0}\n'
    assert merged_metrics([long, short, b"{torn"]) == merged_metrics([short, long]) == [long]


def test_a_node_that_has_said_its_last_words_is_not_asked_again(lab):
    node = lab.node("one")
    lab.says(node, 3, at=1.0, code=75)
    lab.copy.refresh()
    read = []
    lab.storage.read = read.append
    lab.copy.refresh()
    assert read == []


def test_a_storage_that_is_away_changes_nothing(lab):
    node = lab.node("one")
    lab.says(node, 3, at=1.0)
    storage = Unsteady(lab.storage)
    copy = JobCopy(storage, lab.home)
    copy.refresh()
    storage.away.set()
    with pytest.raises(StorageError):
        copy.refresh()
    assert lab.step == 3
    assert set(copy.reports) == {"one"}


def test_the_loss_rate_is_passed_on_but_not_every_time(lab, monkeypatch):
    (lab.home / "hazard.json").write_text("1")
    lab.copy.refresh()
    assert lab.storage.files["hazard.json"] == b"1"
    (lab.home / "hazard.json").write_text("2")
    lab.copy.refresh()
    assert lab.storage.files["hazard.json"] == b"1"
    monkeypatch.setattr(job_copy, "HAZARD_S", 0.0)
    lab.copy.refresh()
    assert lab.storage.files["hazard.json"] == b"2"

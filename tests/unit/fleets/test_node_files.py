"""The files between a fleet and its nodes, over a shared folder and over storage."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest

from duetune.core.fleet import Launch, NodeKind, Task
from duetune.core.node_contract import DONE, LEFT
from duetune.errors import FleetError, InvalidInput, StorageError
from duetune.fleets import job_copies, node_files
from duetune.fleets.job_copies import CopyThread
from duetune.fleets.node_exchange import NodeExchange
from duetune.fleets.node_files import (
    NodeReport,
    NodeWork,
    StorageFiles,
    order_place,
    parted_order,
    place_of,
)
from duetune.storage import JobCopy, JobMirror, deposit, open_storage
from duetune.storage.folder_storage import FolderStorage
from duetune.testing import MemoryStorage
from support.patience import until
from support.storage_faults import FaultyStorage, Unsteady

NAME = "dt-n1-12345678"


@pytest.fixture(params=["shared folder", "storage"])
def launch(request, tmp_path):
    storage = "" if request.param == "shared folder" else str(tmp_path / "storage" / "job")
    (tmp_path / "job").mkdir()
    task = Task(folder=str(tmp_path / "job"), command=("true",), storage=storage)
    return Launch("n1", "job", NodeKind.SPOT, 1, task)


@pytest.fixture
def files():
    return StorageFiles(("duetune", "node"), b"token", every_s=0.01)


@pytest.fixture
def exchange(launch):
    """What a node's process uses, as it finds it by its order."""
    found = node(launch)
    yield found
    found.close(expired=lambda: True)


def node(launch, storage=None, report=None, mirror=None):
    said = report or NodeReport(at=0.0, started_at=1.0)
    storage = storage or open_storage(place_of(launch))
    return NodeExchange(storage, NAME, lambda: said, every_s=0.01, mirror=mirror)


def test_a_node_finds_its_work_by_its_order(files, launch):
    order = files.order(launch, NAME, withdraw_at=9.0)
    place, name = parted_order(order.command[-1])
    assert (place, name, order.withdraw_at) == (place_of(launch), NAME, 9.0)
    content = open_storage(place).read(f"nodes/{name}/order.json")
    work = msgspec.json.decode(content, type=NodeWork)
    assert (work.launch, work.name, work.every_s) == (launch, NAME, 0.01)
    assert len(work.secret) == 64
    other = msgspec.structs.replace(launch, job="other")
    files.order(other, NAME, withdraw_at=9.0)
    content = open_storage(place).read(f"nodes/{name}/order.json")
    assert msgspec.json.decode(content, type=NodeWork).secret != work.secret


def test_the_order_keeps_the_options_of_a_url():
    place = "s3://bucket/a?region=x"
    assert parted_order(order_place(place, "n")) == (place, "n")
    with pytest.raises(InvalidInput, match="ORDER"):
        parted_order("s3://bucket/a/order.json")


def test_a_report_arrives(files, launch, exchange):
    assert files.report(launch, NAME) is None
    exchange.start()
    found = until(lambda: files.report(launch, NAME))
    assert (found.started_at, found.code) == (1.0, None)


def test_a_node_hears_that_its_order_is_withdrawn(files, launch, exchange):
    files.order(launch, NAME, withdraw_at=9.0)
    exchange.start()
    until(exchange.ready.is_set)
    assert not exchange.withdrawn
    files.withdraw(launch, NAME)
    files.withdraw(launch, NAME)
    until(lambda: exchange.withdrawn)


def test_a_node_hears_of_the_lease_and_only_news_are_written(files, launch, exchange):
    files.order(launch, NAME, withdraw_at=9.0)
    exchange.start()
    assert exchange.lease == float("inf")
    now = time.time()
    files.lease(launch, now + 1800)
    until(lambda: exchange.lease == now + 1800)
    files.lease(launch, now + 1810)
    files.lease(launch, now + 1870)
    until(lambda: exchange.lease == now + 1870)
    files.lease(launch, now + 5)
    until(lambda: exchange.lease == now + 5)


def test_an_ended_node_is_settled_once_its_last_words_are_here(files, launch, tmp_path):
    if launch.task.storage:
        deposit(open_storage(launch.task.storage), tmp_path / "job")
    mirror = None
    if launch.task.storage:
        mirror = JobMirror(open_storage(launch.task.storage), tmp_path / "node", NAME)
    report = NodeReport(at=0.0, started_at=1.0, code=DONE, ended_at=2.0)
    ending = node(launch, report=report, mirror=mirror)
    ending.start()
    until(ending.ready.is_set)
    ending.close(expired=lambda: False)
    until(lambda: files.settled(launch, NAME))
    assert files.report(launch, NAME).code == DONE


def test_an_order_that_cannot_be_written_is_written_later(files, tmp_path):
    (tmp_path / "file").write_text("")
    task = Task(folder="/nowhere", storage=str(tmp_path / "file" / "job"))
    launch = Launch("n1", "job", NodeKind.SPOT, 1, task)
    with pytest.raises(FleetError, match="cannot write the order") as raised:
        files.order(launch, NAME, withdraw_at=9.0)
    assert raised.value.retry
    files.withdraw(launch, NAME)
    files.lease(launch, 9.0)


def test_a_bucket_that_is_away_is_not_waited_for_again_at_once(files, monkeypatch):
    asked = []

    class Away(MemoryStorage):
        def write(self, name, _content):
            asked.append(name)
            raise StorageError("s3://bucket", "away", retry=True)

    monkeypatch.setattr(node_files, "open_storage", lambda *_, **__: Away())
    launch = Launch("n1", "job", NodeKind.SPOT, 1, Task("/nowhere", storage="s3://bucket/job"))
    for _ in range(3):
        with pytest.raises(FleetError):
            files.order(launch, NAME, withdraw_at=9.0)
    files.lease(launch, 9.0)
    assert len(asked) == 1


def test_a_node_survives_a_storage_that_is_away(launch, tmp_path):
    """It goes on, is not told to end, and reports later."""
    inner = MemoryStorage()
    storage = Unsteady(inner)
    inner.write(f"nodes/{NAME}/order.json", b"")
    inner.write("lease.json", b'{"until": 7.0}')
    mirror = JobMirror(storage, tmp_path / "node", NAME)
    found = node(launch, storage, mirror=mirror)
    found.start()
    until(lambda: found.lease == 7.0)
    storage.away.set()
    (tmp_path / "node" / "progress.json").write_text('{"step": 1}')
    until(lambda: found._said)
    assert (found.withdrawn, found.lease, found.refused) == (False, 7.0, "")
    storage.away.clear()
    until(lambda: inner.read(f"nodes/{NAME}/progress.json"))
    until(lambda: not found._said)
    found.close(expired=lambda: True)


def test_an_order_is_withdrawn_only_if_the_rest_of_the_job_is_there(launch, tmp_path):
    """A network folder that is not mounted looks like an empty one."""
    storage = MemoryStorage()
    found = node(launch, storage, mirror=JobMirror(storage, tmp_path / "node", NAME))
    found._round()
    assert not found.withdrawn
    storage.write("inputs.json", b'{"folder": "inputs", "files": []}')
    found._round()
    assert found.withdrawn


def test_the_last_words_are_repeated_until_they_arrive(launch, tmp_path):
    inner = MemoryStorage()
    storage = Unsteady(inner)
    mirror = JobMirror(storage, tmp_path / "node", NAME)
    report = NodeReport(at=0.0, started_at=1.0, code=DONE)
    found = node(launch, storage, report, mirror)
    found.start()
    until(found.ready.is_set)
    (tmp_path / "node" / "output").mkdir()
    (tmp_path / "node" / "output" / "weights").write_text("weights")
    storage.away.set()
    closing = threading.Thread(target=lambda: found.close(expired=lambda: False))
    closing.start()
    until(lambda: found._said)
    storage.away.clear()
    closing.join()
    assert "output.json" in inner.files
    assert msgspec.json.decode(inner.files[f"nodes/{NAME}/report.json"])["code"] == DONE


def test_a_node_that_must_go_or_is_refused_does_not_repeat(launch):
    storage = Unsteady(MemoryStorage())
    storage.away.set()
    report = NodeReport(at=0.0, started_at=1.0, code=LEFT)
    node(launch, storage, report).close(expired=lambda: True)
    storage.retry = False
    found = node(launch, storage, report)
    found.close(expired=lambda: False)
    assert "no network" in found.refused


def test_a_copy_waits_for_the_storage_before_a_node_counts_as_ended(tmp_path, monkeypatch):
    storage = Unsteady(MemoryStorage())
    storage.away.set()
    thread = CopyThread(lambda: JobCopy(storage, tmp_path), every_s=0.01)
    assert thread.alive
    assert not thread.settled(NAME)
    storage.inner.write(f"nodes/{NAME}/report.json", b'{"at": 1, "started_at": 1, "code": 0}')
    storage.away.clear()
    until(lambda: thread.settled(NAME))
    assert b'"code": 0' in thread.report(NAME)
    storage.away.set()
    monkeypatch.setattr(job_copies, "SETTLE_S", 0.0)
    assert thread.settled("another")
    monkeypatch.setattr(job_copies, "IDLE_S", 0.0)
    until(lambda: not thread._thread.is_alive())


def test_requests_of_a_node_and_of_the_controller_are_as_few_as_the_page_says(launch, tmp_path):
    """docs/how-to/storage.md counts these: a round of a leader, and one of the controller."""
    inner = FolderStorage(tmp_path / "storage")
    deposit(inner, tmp_path / "job")
    inner.write(f"nodes/{NAME}/order.json", b"")
    storage = FaultyStorage(inner)
    mirror = JobMirror(storage, tmp_path / "node", NAME)
    exchange = node(launch, storage, mirror=mirror)
    exchange._begin()
    copy_storage = FaultyStorage(inner)
    copy = JobCopy(copy_storage, tmp_path / "job")
    for step in range(3):
        (tmp_path / "node" / "progress.json").write_text(f'{{"step": {step}}}')
        for name in ("metrics.jsonl", "logs/n1.log"):
            with (tmp_path / "node" / name).open("a") as file:
                file.write(f'{{"step": {step}}}\n')
        storage.calls = copy_storage.calls = 0
        exchange._round()
        copy.refresh()
        # report, order, lease; metrics, log, progress; the result.
        assert storage.calls == 7
        # the list; report, progress, metrics, log.
        assert copy_storage.calls == 5

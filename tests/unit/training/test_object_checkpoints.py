"""Checkpoints in a bucket: what differs from a folder, and kills at every call of the storage."""

from __future__ import annotations

import copy
import json
import threading

import pytest

from duetune.core.node_contract import HOPELESS
from duetune.errors import StorageError
from duetune.storage import open_storage
from duetune.testing import MemoryStorage
from duetune.training import worker
from duetune.training.checkpoint import CheckpointStore, StaleEpoch, job_checkpoints
from duetune.training.worker_contract import Contract, read_progress
from support.checkpoint_places import ObjectPlace
from support.later import later
from support.storage_faults import FaultyStorage, Killed, every_call

entry = later("duetune.training.entry")
pytestmark = pytest.mark.torch  # `entry` imports it


@pytest.fixture
def place(tmp_path):
    return ObjectPlace(tmp_path)


@pytest.fixture
def source(tmp_path):
    """Makes a folder of two files: one with the given text, one that never changes."""

    def write(text):
        folder = tmp_path / "source"
        folder.mkdir(exist_ok=True)
        (folder / "weights").write_text(text)
        (folder / "tokenizer").write_text("always the same")
        return folder

    return write


def text(store):
    return (store.latest().files / "weights").read_text()


def blobs(storage):
    return {name for name in storage.sizes() if name.startswith("blobs/")}


# What is sent and what is deleted


def test_content_that_is_there_is_not_sent_again(place, source):
    sent = []

    class Recording(MemoryStorage):
        def upload(self, path, name):
            sent.append(path.name)
            return super().upload(path, name)

    place.storage = Recording()
    store = place.store(1)
    for step, content in enumerate(("one", "two", "two"), start=1):
        store.publish(step, source(content))
    assert sent == ["tokenizer", "weights", "weights"]
    assert len(blobs(place.storage)) == 3, "weights, tokenizer, document"
    assert place.left_over() == []


def test_a_later_claim_uses_the_blobs_of_kept_checkpoints(place, source):
    place.store(1).publish(1, source("one"))
    place.store(2).publish(2, source("one"))
    assert {name[-7:] for name in blobs(place.storage)} == {".000001"}
    assert text(place.store(0)) == "one"


def test_a_blob_that_was_found_damaged_is_sent_again(place, source):
    store = place.store(1)
    name = store.publish(1, source("one"))
    place.harm(name, "files/tokenizer", lambda content: b"!" * len(content))
    assert store.latest() is None
    store.publish(2, source("one"))
    assert place.store(0).latest().step == 2


def test_a_source_that_changes_meanwhile_is_not_published(place, source):
    folder = source("one")

    class Changing(MemoryStorage):
        def upload(self, path, name):
            path.write_text("changed")
            return super().upload(path, name)

    storage = Changing()
    with pytest.raises(OSError, match="has changed"):
        place.store(1, storage=storage).publish(1, folder)
    assert place.store(0, storage=storage).latest() is None


def test_a_lost_head_follows_from_the_manifests(place, source):
    old = place.store(7)
    old.publish(1, source("one"))
    for content in (b"half a docu", None):
        place.storage.delete(["head.json"])
        if content is not None:
            place.storage.write("head.json", content)
        assert text(place.store(0)) == "one"
        with pytest.raises(StaleEpoch):
            old.publish(2, source("two"))
    assert place.store(2).claim() == 8


def test_other_files_in_the_bucket_are_let_alone(place, source):
    for name in ("notes.txt", "blobs/readme", "manifests/step-1.json"):
        place.storage.write(name, b"mine")
    for step in range(1, 5):
        place.store(step).publish(step, source(str(step)))
    assert place.left_over() == ["blobs/readme", "manifests/step-1.json", "notes.txt"]


def test_a_store_without_conditional_writes_is_refused(place):
    class Careless(MemoryStorage):
        def replace(self, name, content, version):  # noqa: ARG002
            self.write(name, content)
            return "new"

        def create(self, name, content):
            self.write(name, content)
            return True

    with pytest.raises(StorageError, match="ignores conditions") as raised:
        place.store(1, storage=Careless()).claim()
    assert not raised.value.retry


def test_a_write_that_is_repeated_after_a_lost_answer_counts(place, source):
    """The library repeats a request whose answer is lost; the store then refuses its own write."""

    class Repeating(MemoryStorage):
        def replace(self, name, content, version):
            super().replace(name, content, version)
            return super().replace(name, content, version)

        def create(self, name, content):
            super().create(name, content)
            return super().create(name, content)

    place.storage = Repeating()
    store = place.store(1)
    for step in (1, 2, 3):
        assert store.claim() == step
        store.publish(step, source(str(step)))
        assert text(place.store(0)) == str(step)
    assert place.left_over() == []


def test_local_copies_of_removed_checkpoints_are_removed(place, source, tmp_path):
    reader = CheckpointStore(place.storage, 0, scratch=tmp_path / "copies")
    for step in range(1, 6):
        place.store(step).publish(step, source(str(step)))
        assert text(reader) == str(step)
    assert len(list((tmp_path / "copies").iterdir())) == 2


def test_a_checkpoint_is_downloaded_once(place, source, tmp_path):
    place.store(1).publish(1, source("one"))
    reading = FaultyStorage(place.storage)
    reader = CheckpointStore(reading, 0, scratch=tmp_path / "copies")
    found = reader.latest()
    before = reading.calls
    assert reader.named(found.path.name) == found
    assert reading.calls - before == 3, "head, manifest, head"


def test_the_url_of_the_contract_decides(tmp_path, s3_url, source):
    environment = {
        "DUETUNE_JOB_ID": "job",
        "DUETUNE_NODE_ID": "node",
        "DUETUNE_EPOCH": "3",
        "DUETUNE_JOB_DIR": str(tmp_path / "job"),
        "DUETUNE_CHECKPOINT_URL": s3_url,
    }
    contract = Contract.from_environment(environment)
    name = entry.checkpoint_store(contract, environment).publish(4, source("four"))
    found = job_checkpoints(contract, environment, keep=2).latest()
    assert found.path == tmp_path / "job" / "fetched" / name
    assert text(CheckpointStore(s3_url, 0)) == "four"
    assert not contract.checkpoints.exists()


def test_a_pretended_s3_keeps_the_promises(tmp_path, s3_url, source):
    place = ObjectPlace(tmp_path, open_storage(s3_url))
    old, new = place.store(1), place.store(2)
    for step in (1, 2, 3):
        old.publish(step, source(str(step)))
    assert new.claim() == 2
    with pytest.raises(StaleEpoch):
        old.publish(4, source("stale"))
    assert text(new) == "3"
    new.publish(3, source("three"))
    assert text(place.store(0)) == "three"
    assert place.left_over() == []
    place.harm("step-00000003.epoch-000002", "files/weights", lambda _: b"other")
    assert text(place.store(0)) == "3"


@pytest.mark.parametrize(("retry", "code"), [(True, StorageError.exit_code), (False, HOPELESS)])
def test_a_job_outlives_a_bucket_that_is_away(tmp_path, monkeypatch, retry, code):
    """The node starts the worker again. If that cannot help, the job fails and says why."""

    def run(*_):
        raise StorageError("s3://bucket", "no network", retry=retry)

    monkeypatch.setattr(worker, "_run", run)
    monkeypatch.setattr(worker, "_set_up_log", lambda: None)
    for name, value in {"JOB_ID": "job", "NODE_ID": "n", "EPOCH": "1", "JOB_DIR": tmp_path}.items():
        monkeypatch.setenv(f"DUETUNE_{name}", str(value))
    assert worker.main() == code
    assert (read_progress(tmp_path / "progress.json") is None) == retry


# Kills, failures and pauses at every call


def two_saved(place, source):
    """A storage in which epoch 1 has saved the steps 1 and 2."""
    store = place.store(1)
    store.publish(1, source("1"))
    store.publish(2, source("2"))
    return place.storage


def test_a_kill_at_any_call_loses_at_most_the_save_in_progress(tmp_path, source):
    begin = two_saved(ObjectPlace(tmp_path), source)

    def claim_and_save(storage):
        store = ObjectPlace(tmp_path / "w", storage).store(2)
        store.claim(alone=True)
        store.publish(3, source("3"))

    calls = list(every_call(lambda: copied(begin), claim_and_save))
    assert len(calls) > 20
    saved = set()
    for number, (at, after) in enumerate(calls):
        storage = copied(begin)

        def kill():
            raise Killed

        with pytest.raises(Killed):
            claim_and_save(FaultyStorage(storage, at, kill, after=after))
        place = ObjectPlace(tmp_path / str(number), storage)
        found = text(place.store(0))
        saved.add(found)
        assert found in {"2", "3"}
        later = place.store(3)
        later.claim(alone=True)
        assert text(later) == found
        later.publish(4, source("4"))
        assert text(place.store(0)) == "4"
        assert len(place.names()) == 2
        assert place.left_over() == []
    assert saved == {"2", "3"}


def test_a_failure_at_any_call_is_survived_by_the_same_writer(tmp_path, source):
    begin = two_saved(ObjectPlace(tmp_path), source)

    def claim_and_save(storage):
        store = ObjectPlace(tmp_path / "w", storage).store(2)
        for _ in range(3):
            try:
                store.claim()
                break
            except StorageError:
                continue
        for _ in range(3):
            try:
                return store, store.publish(3, source("3"))
            except StorageError:
                continue
        return None

    for number, (at, after) in enumerate(every_call(lambda: copied(begin), claim_and_save)):
        storage = copied(begin)

        def fail():
            raise StorageError("s3://bucket", "no network", retry=True)

        store, _ = claim_and_save(FaultyStorage(storage, at, fail, after=after))
        place = ObjectPlace(tmp_path / str(number), storage)
        assert text(place.store(0)) == "3"
        store.publish(4, source("4"))
        assert text(place.store(0)) == "4"
        assert place.left_over() == []


def test_a_paused_writer_and_its_successor_never_harm_each_other(tmp_path, source):
    """The old writer stops at each of its calls. A new one runs up to each of *its* calls, then
    the old one runs to its end, then the new one. The new one saves what the old one deletes.
    """
    begin = two_saved(ObjectPlace(tmp_path), source)
    one, two, three = (copy_of(source(str(step)), tmp_path, step) for step in (1, 2, 3))

    def old(storage):
        writer = ObjectPlace(tmp_path / "old", storage).store(1, keep=1)
        writer.claim()
        writer.publish(3, three)

    def new(storage):
        writer = ObjectPlace(tmp_path / "new", storage).store(2, keep=3)
        writer.claim()
        writer.publish(4, two)
        writer.publish(5, one)

    olds = {at for at, _ in every_call(lambda: copied(begin), old)}
    news = {at for at, _ in every_call(lambda: copied(begin), new)}
    stale = 0
    for paused_at in sorted(olds):
        for resumed_at in sorted(news):
            storage = copied(begin)
            paused, resumed, outcome = threading.Event(), threading.Event(), []

            def pause(paused=paused, resumed=resumed):
                paused.set()
                resumed.wait()

            def run(storage=storage, pause=pause, paused_at=paused_at, outcome=outcome):
                try:
                    outcome.append(old(FaultyStorage(storage, paused_at, pause)))
                except StaleEpoch as error:
                    outcome.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            paused.wait()

            def resume(resumed=resumed, thread=thread):
                resumed.set()
                thread.join()

            try:
                new(FaultyStorage(storage, resumed_at, resume))
            except StaleEpoch:
                # The old writer claimed after this one: then that one has saved.
                assert outcome == [None]
            resumed.set()
            thread.join()
            place = ObjectPlace(tmp_path / f"{paused_at}-{resumed_at}", storage)
            (last,) = outcome
            stale += last is not None
            names = place.names()
            for name in names:
                for file in place.manifest(name)["files"]:
                    assert file["blob"] in storage.files, (paused_at, resumed_at, name)
            expected = "1" if "step-00000005" in str(names) else "3"
            assert text(place.store(0)) == expected
    assert stale > 10


def copied(storage):
    new = MemoryStorage()
    new.files = copy.copy(storage.files)
    return new


def copy_of(folder, tmp_path, number):
    target = tmp_path / f"source-{number}"
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_a_stale_manifest_is_never_listed(place, source):
    """A writer that was paused before its last swap has sent everything, but not published it."""
    old, new = place.store(1), place.store(2)
    old.publish(1, source("1"))
    old._backend._storage = FaultyStorage(place.storage)
    swaps = place.storage.replace

    def late(name, content, version):
        if name == "head.json" and b"step-00000002" in content:
            place.storage.replace = swaps
            new.claim()
        return swaps(name, content, version)

    place.storage.replace = late
    with pytest.raises(StaleEpoch):
        old.publish(2, source("2"))
    assert place.storage.read("manifests/step-00000002.epoch-000001.json") is not None
    assert text(place.store(0)) == "1"
    assert json.loads(place.storage.read("head.json"))["epoch"] == 2
    new.publish(2, source("two"))
    assert place.left_over() == []

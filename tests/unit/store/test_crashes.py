"""Processes killed in the middle of a write, and disks that are full."""

from __future__ import annotations

import resource
import time
from multiprocessing import get_context

import numpy as np
import pytest

from duetune.core.events import Reported
from duetune.core.fleet import Node, NodeKind, NodeState
from duetune.errors import StoreError
from duetune.store.store import open_store
from duetune.testing.sample_events import decision, submission
from support.more import MORE

KILLS = 100 if MORE else 10
BATCH = 3

# Children of a clean process that has imported what they need: quick, and nothing is inherited.
processes = get_context("forkserver")
processes.set_forkserver_preload(["duetune.store", "duetune.testing.sample_events"])


def batch(number):
    """Three events that change every read model."""
    node = Node(
        id=f"n{number}",
        job="job",
        kind=NodeKind.SPOT,
        state=NodeState.RUNNING,
        requested_at=1.0,
        started_at=2.0,
        billed=float(number),
    )
    return [decision(number, reason="x" * 3000), Reported(3.0, (node,)), decision(number)]


def append_for_ever(path, pipe):
    with open_store(path) as store:
        length = store.journal.length("job")
        if length == 0:
            length = store.journal.append("job", [submission()], expected=0)
        while True:
            length = store.journal.append("job", batch(length), expected=length)
            pipe.send(length)


def test_killed_at_any_moment_the_journal_is_a_clean_prefix(tmp_path):
    path = tmp_path / "journal.db"
    dice = np.random.default_rng(5)
    acknowledged = 0
    for _ in range(KILLS):
        receiver, sender = processes.Pipe(duplex=False)
        writer = processes.Process(target=append_for_ever, args=(path, sender))
        writer.start()
        sender.close()
        for _ in range(dice.integers(1, 6)):
            acknowledged = receiver.recv()
        time.sleep(dice.uniform(0, 0.004))
        writer.kill()
        writer.join()
        # What was said before the end was written before it was said.
        while True:
            try:
                acknowledged = receiver.recv()
            except EOFError:
                break
        with open_store(path) as store:
            found = store.journal.read("job")
            assert len(found) in {acknowledged, acknowledged + BATCH}
            expected = [submission()]
            while len(expected) < len(found):
                expected += batch(len(expected))
            assert [each.event for each in found] == expected
            row, charges = store.job("job"), store.charges()
            assert row.events == len(found)
            store.rebuild()
            assert (store.job("job"), store.charges()) == (row, charges)


def fill_the_disk(path, pipe):
    with open_store(path) as store:
        length = store.journal.append("job", [submission()], expected=0)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limits[1]))
        message = ""
        while not message and length < 3000:
            try:
                length = store.journal.append("job", batch(length), expected=length)
            except StoreError as failure:
                message = str(failure)
        pipe.send((message, length, len(store.journal.read("job")), store.job("job").events))
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        pipe.send(store.journal.append("job", batch(length), expected=length))


def test_a_full_disk_is_one_clear_error_and_nothing_half_written(tmp_path):
    path = tmp_path / "journal.db"
    receiver, sender = processes.Pipe(duplex=False)
    writer = processes.Process(target=fill_the_disk, args=(path, sender))
    writer.start()
    sender.close()
    message, length, found, events = receiver.recv()
    assert message.startswith(f"the store {path} cannot be used: ")
    assert "\n" not in message
    assert length == found == events
    assert receiver.recv() == length + BATCH
    writer.join()
    assert writer.exitcode == 0
    with open_store(path) as store:
        assert store.journal.length("job") == length + BATCH


def test_a_database_that_turns_read_only_is_one_clear_error(tmp_path):
    path = tmp_path / "journal.db"
    with open_store(path) as store:
        store.journal.append("job", [submission()], expected=0)
        with store._database.reading() as connection:
            connection.exec_driver_sql("PRAGMA query_only = ON")
        with pytest.raises(StoreError, match="attempt to write a readonly database"):
            store.journal.append("job", batch(1), expected=1)
        assert len(store.journal.read("job")) == 1
    with open_store(path) as store:
        assert store.journal.append("job", batch(1), expected=1) == 4

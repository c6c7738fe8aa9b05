"""Writers in real processes, at the same time."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from duetune.training.checkpoint import CheckpointStore, StaleEpoch
from support.patience import PATIENCE_S

# Publishes step after step until another takes over; then says how far it came.
WRITER = """
import sys
from pathlib import Path
from duetune.training.checkpoint import CheckpointStore, StaleEpoch
folder, source, launch = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
store = CheckpointStore(folder, launch, keep=3)
store.claim()
step = 0
try:
    while True:
        store.publish(step := step + 1, source)
except StaleEpoch as error:
    print(error.epoch, step - 1)
"""

# Claims again and again, and publishes under each claim what only that claim can have written.
RIVAL = """
import sys
from pathlib import Path
from duetune.training.checkpoint import CheckpointStore, StaleEpoch
folder, source, launch = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
store = CheckpointStore(folder, launch, keep=2)
for step in range(60):
    epoch = store.claim()
    source.write_text(str(epoch))
    try:
        store.publish(step, source)
    except StaleEpoch:
        print(epoch, "stale")
    else:
        print(epoch, "published")
"""


def started(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def until(condition, process):
    while not condition():
        assert process.poll() is None, "ended too early"
        time.sleep(0.001)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * 20_000)
    return folder


@pytest.mark.parametrize("attempt", range(3))
def test_nothing_of_the_old_writer_appears_after_a_claim(tmp_path, source, attempt):
    folder = tmp_path / "kept"
    writer = started(WRITER, folder, source, 5)
    until(lambda: len(list(folder.glob("step-*"))) > attempt, writer)
    store = CheckpointStore(folder, 6, keep=3)
    epoch = store.claim()
    there = {path.name for path in folder.glob("step-*")}
    said, _ = writer.communicate(timeout=PATIENCE_S)
    assert {path.name for path in folder.glob("step-*")} == there
    old, step = map(int, said.split())
    assert (old, epoch) == (5, 6)
    latest = store.latest()
    assert (latest.epoch, latest.step) == (5, step)
    store.publish(1, source)
    assert store.latest().epoch == 6
    assert len(list((folder / "writers").iterdir())) == 1


def test_rivals_never_share_an_epoch_and_never_mix(tmp_path):
    folder = tmp_path / "kept"
    rivals = [
        started(RIVAL, folder, tmp_path / f"source-{number}", number + 1) for number in range(2)
    ]
    said = [rival.communicate(timeout=PATIENCE_S)[0] for rival in rivals]
    assert [rival.returncode for rival in rivals] == [0, 0]
    lines = [line.split() for text in said for line in text.splitlines()]
    epochs = [int(epoch) for epoch, _ in lines]
    assert len(epochs) == len(set(epochs)) == 120
    published = {int(epoch) for epoch, word in lines if word == "published"}
    checkpoint = CheckpointStore(folder, 9).latest()
    assert checkpoint.epoch == max(published)
    (file,) = checkpoint.files.iterdir()
    assert int(file.read_text()) == checkpoint.epoch


def test_a_reader_beside_a_busy_writer_always_finds_one(tmp_path, source):
    folder = tmp_path / "kept"
    writer = started(WRITER, folder, source, 1)
    store = CheckpointStore(folder, 2)
    until(lambda: store.latest() is not None, writer)
    step = 0
    for _ in range(100):
        latest = store.latest()
        assert latest is not None
        assert latest.step >= step
        step = latest.step
    store.claim()
    writer.communicate(timeout=PATIENCE_S)
    with pytest.raises(StaleEpoch):
        CheckpointStore(folder, 1).claim(alone=True)

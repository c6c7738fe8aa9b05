"""Writers in real processes against a pretended S3, killed at any moment."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from duetune.storage import open_storage
from duetune.training.checkpoint import CheckpointStore
from support.checkpoint_places import ObjectPlace
from support.patience import PATIENCE_S, until

pytestmark = [pytest.mark.more, pytest.mark.live]

# Publishes step after step, each with its own number as content.
WRITER = """
import sys
from pathlib import Path
from duetune.training.checkpoint import CheckpointStore
url, source, launch = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
source.mkdir()
(source / "same").write_bytes(b"same" * 50_000)
store = CheckpointStore(url, launch)
store.claim(alone=True)
found = store.latest()
step = 0 if found is None else found.step
while True:
    (source / "step").write_text(str(step := step + 1))
    store.publish(step, source)
"""

# Claims again and again, and publishes under each claim what only that claim can have written.
RIVAL = """
import sys
from pathlib import Path
from duetune.training.checkpoint import CheckpointStore, StaleEpoch
url, source, launch = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
store = CheckpointStore(url, launch)
for step in range(25):
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


def test_writers_that_are_killed_lose_nothing_that_was_published(tmp_path, s3_url):
    reader, step = CheckpointStore(s3_url, 0), 0
    for launch in range(1, 9):
        writer = started(WRITER, s3_url, tmp_path / str(launch), launch)
        until(lambda writer=writer, step=step: later_than(reader, step, writer), "a checkpoint")
        time.sleep(0.013 * launch)  # Another moment of a save each time.
        writer.kill()
        writer.wait()
        writer.stdout.close()
        found = reader.latest()
        assert found.step > step
        assert (found.files / "step").read_text() == str(found.step)
        step = found.step
    place = ObjectPlace(tmp_path, open_storage(s3_url))
    CheckpointStore(s3_url, 9).publish(step + 1, tmp_path / "1")
    assert place.left_over() == []


def later_than(reader, step, writer):
    assert writer.poll() is None, "ended too early"
    found = reader.latest()
    return found is not None and found.step > step


def test_rivals_never_share_an_epoch_and_never_mix(tmp_path, s3_url):
    rivals = [started(RIVAL, s3_url, tmp_path / f"source-{number}", number) for number in (1, 2)]
    said = [rival.communicate(timeout=PATIENCE_S)[0] for rival in rivals]
    assert [rival.returncode for rival in rivals] == [0, 0]
    lines = [line.split() for text in said for line in text.splitlines()]
    epochs = [int(epoch) for epoch, _ in lines]
    assert len(epochs) == len(set(epochs)) == 50
    published = {int(epoch) for epoch, word in lines if word == "published"}
    checkpoint = CheckpointStore(s3_url, 9).latest()
    assert checkpoint.epoch == max(published)
    (file,) = checkpoint.files.iterdir()
    assert int(file.read_text()) == checkpoint.epoch

"""Whatever happens to a writer, what is read is a whole state, and the newest there is."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from duetune.training.checkpoint import CheckpointStore, StaleEpoch

_EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "os.truncate"})


class Killed(BaseException):
    """As by kill -9: no handler and no clean-up can do anything after it."""


class Death:
    """Kills at an operation on files below a folder, seen by Python's audit events.

    All later operations fail too, so what is on the disk is what was there at that moment.
    """

    def __init__(self):
        self.folder = None
        self.left = 0
        self.seen = 0
        self.last_opened = None
        sys.addaudithook(self._hook)

    def _hook(self, event, arguments):
        if self.folder is None or event not in _EVENTS:
            return
        if not isinstance(arguments[0], (str, bytes, Path)):
            return
        path = Path(os.fsdecode(arguments[0]))
        # Removal of trees works by names relative to an open folder.
        if path.is_absolute() and not path.is_relative_to(self.folder):
            return
        self.seen += 1
        if self.seen > self.left:
            raise Killed
        if event == "open" and arguments[2] & os.O_CREAT:
            self.last_opened = path

    @contextmanager
    def after(self, operations, folder):
        """Whether the block was killed, in ``self.killed``."""
        self.folder, self.left, self.seen = folder, operations, 0
        self.last_opened, self.killed = None, False
        try:
            yield self
        except Killed:
            self.killed = True
        finally:
            self.folder = None

    def cut(self, share):
        """Leave only a part of the file that was being written."""
        if self.last_opened is not None and self.last_opened.is_file():
            os.truncate(self.last_opened, int(self.last_opened.stat().st_size * share))


DEATH = Death()


def written(folder, text):
    folder.mkdir(exist_ok=True)
    (folder / "weights").write_text(text * 50)
    (folder / "optimiser").write_text(text)
    return folder


def text_of(checkpoint):
    weights = (checkpoint.files / "weights").read_text()
    text = (checkpoint.files / "optimiser").read_text()
    assert weights == text * 50
    return text


def test_a_save_killed_at_any_operation_leaves_the_old_or_the_new(tmp_path):
    source = written(tmp_path / "source", "new ")
    outcomes = []
    for operations in range(1000):
        folder = tmp_path / str(operations)
        store = CheckpointStore(folder, 1, keep=1)
        store.publish(1, written(tmp_path / "old", "old "))
        successor = CheckpointStore(folder, 2, keep=1)
        with DEATH.after(operations, folder) as death:
            successor.claim()
            successor.publish(2, source)
        death.cut(0.5 if "writers" in str(death.last_opened) else 1)
        third = CheckpointStore(folder, 3, keep=1)
        outcomes.append(text_of(third.latest()))
        third.claim()
        third.publish(3, written(tmp_path / "third", "third "))
        assert text_of(third.latest()) == "third "
        assert len(list(folder.glob("step-*"))) == 1
        assert len(list(folder.glob("writers/[0-9]*/*"))) == 1, "remains"
        if not death.killed:
            break
    assert set(outcomes) == {"old ", "new "}
    assert outcomes == sorted(outcomes, reverse=True), "old until published, then new"
    assert len(outcomes) > 30


class Store(RuleBasedStateMachine):
    """Writers that start, claim, save, are killed and fall behind, on a disk that rots."""

    writers = Bundle("writers")

    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "kept"
        self.launches = 0
        self.step = 0
        self.texts = {}
        self.damaged = set()
        self.newest_claim = None
        self.best = (0, 0)

    def teardown(self):
        shutil.rmtree(self.root)

    @rule(target=writers)
    def launch(self):
        self.launches += 1
        return CheckpointStore(self.folder, self.launches)

    @rule(writer=writers)
    def claim(self, writer):
        writer.claim()
        self.newest_claim = writer

    @rule(writer=writers, ahead=st.integers(0, 2))
    def save(self, writer, ahead):
        self.step += ahead
        text = f"{self.launches}:{self.step}:{len(self.texts)} "
        if (
            self.newest_claim is not None
            and writer is not self.newest_claim
            and writer._backend._claim
        ):
            before = sorted(self.folder.rglob("*"))
            try:
                writer.publish(self.step, written(self.root / "source", text))
            except StaleEpoch:
                assert sorted(self.folder.rglob("*")) == before
                return
            raise AssertionError("a superseded writer has published")
        try:
            path = writer.publish(self.step, written(self.root / "source", text))
        except StaleEpoch:
            assert writer._backend._claim is None, "only a writer that works alone and is late"
            return
        self.newest_claim = writer
        self._published(path, text)

    @rule(
        target=writers,
        writer=writers,
        operations=st.integers(0, 60),
        share=st.floats(0, 1),
        claims=st.booleans(),
    )
    def die(self, writer, operations, share, claims):
        self.step += 1
        text = f"{self.launches}:{self.step}:{len(self.texts)} "
        source = written(self.root / "source", text)
        before = set(self.folder.glob("step-*"))
        with DEATH.after(operations, self.folder) as death:
            try:
                if claims:
                    writer.claim()
                writer.publish(self.step, source)
            except StaleEpoch:
                pass
        for path in set(self.folder.glob("step-*")) - before:
            self._published(path.name, text)
        if death.killed and death.last_opened and "writers" in death.last_opened.parts:
            death.cut(share)
        # What the dead one had claimed is unknown; whoever claims next is the newest.
        self.launches += 1
        successor = CheckpointStore(self.folder, self.launches)
        successor.claim()
        self.newest_claim = successor
        return multiple(successor)

    @rule(choice=st.integers(0, 10**6))
    def rot(self, choice):
        files = sorted(path for path in self.folder.glob("step-*/**/*") if path.is_file())
        if files:
            victim = files[choice % len(files)]
            content = bytearray(victim.read_bytes())
            content[choice % len(content)] ^= 1 << (choice % 8)
            victim.write_bytes(content)
            self.damaged.add(victim.relative_to(self.folder).parts[0])
            self.best = (0, 0)

    @invariant()
    def the_newest_whole_one_is_read(self):
        latest = CheckpointStore(self.folder, 0).latest()
        there = {path.name for path in self.folder.glob("step-*")}
        whole = there - self.damaged
        if latest is None:
            assert not whole
            return
        assert text_of(latest) == self.texts[latest.path.name]
        order = (latest.epoch, latest.step)
        # A flipped bit in a manifest's time of writing, say, is no damage to the state.
        assert all(order >= _order(name) for name in whole)
        assert order >= self.best
        self.best = order

    @invariant()
    def what_was_published_is_kept(self):
        if not self.damaged:
            there = list(self.folder.glob("step-*"))
            assert len(there) >= min(2, len(self.texts))

    def _published(self, name, text):
        # A step is published once per epoch: a second time leaves the first, if it is whole.
        found = (self.folder / name / "files" / "optimiser").read_text()
        assert found in {text, self.texts.get(name)}
        self.texts[name] = found
        self.damaged.discard(name)


def _order(name):
    step, epoch = name.split(".")
    return int(epoch.removeprefix("epoch-")), int(step.removeprefix("step-"))


TestStore = Store.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=25)

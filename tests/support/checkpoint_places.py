"""The places where checkpoints may be, behind one interface, so that tests run over all of them."""

from __future__ import annotations

import itertools
import json
import shutil

from duetune.testing import MemoryStorage
from duetune.training.checkpoint import CheckpointStore


class FolderPlace:
    """``harm(name, file, how)`` replaces a file by ``how(content)``, or removes it for None."""

    def __init__(self, tmp_path):
        self.folder = tmp_path / "kept"

    def store(self, epoch, keep=2):
        return CheckpointStore(self.folder, epoch, keep)

    def names(self):
        return sorted(path.name for path in self.folder.glob("step-*"))

    def harm(self, name, file, how):
        path = self.folder / name / file
        content = how(path.read_bytes())
        path.unlink() if content is None else path.write_bytes(content)

    def rename(self, old, new):
        (self.folder / old).rename(self.folder / new)

    def left_over(self):
        """What no checkpoint needs."""
        return list(self.folder.glob("writers/*/*/*"))


class ObjectPlace:
    """The objects are in ``storage``; each store downloads to a folder of its own."""

    def __init__(self, tmp_path, storage=None):
        self.storage = storage or MemoryStorage()
        self.scratch = tmp_path / "scratch"
        self._number = itertools.count()

    def store(self, epoch, keep=2, storage=None):
        scratch = self.scratch / str(next(self._number))
        return CheckpointStore(storage or self.storage, epoch, keep, scratch)

    def names(self):
        return sorted(json.loads(self.storage.read("head.json") or b"{}").get("checkpoints", []))

    def manifest(self, name):
        return json.loads(self.storage.read(f"manifests/{name}.json"))

    def harm(self, name, file, how):
        """Local copies are removed: one of them might be whole."""
        stored = f"manifests/{name}.json"
        if file != "manifest.json":
            files = self.manifest(name)["files"]
            (stored,) = (each["blob"] for each in files if each["path"] == file)
        content = how(self.storage.read(stored))
        self.storage.delete([stored]) if content is None else self.storage.write(stored, content)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def rename(self, old, new):
        self.storage.write(f"manifests/{new}.json", self.storage.read(f"manifests/{old}.json"))
        head = self.storage.read("head.json").replace(old.encode(), new.encode())
        self.storage.write("head.json", head)

    def left_over(self):
        needed = {"head.json"}
        for name in self.names():
            needed.add(f"manifests/{name}.json")
            needed |= {file["blob"] for file in self.manifest(name)["files"]}
        return sorted(self.storage.sizes().keys() - needed)

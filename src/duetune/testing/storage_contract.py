"""The conformance suite of storages, built in or your own."""

from __future__ import annotations

import hashlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from duetune.errors import InvalidInput
from duetune.storage.storage_port import CHUNK, Storage

NAMES = ("a", "deep/er/file.json", "with space", "größe/日本", "percent%20", "x" * 200)
WRONG = ("", ".", "..", "../a", "/a", "a//b", "a/", "./a", ".hidden", "a/.b", "a\\b", "a\nb")
RACERS = 8


class StorageContract:
    """Subclass it and implement ``make``."""

    def make(self) -> Storage:
        """Return an empty storage. A second call in the same test returns the same storage."""
        raise NotImplementedError

    def test_it_is_a_storage(self) -> None:
        """The object implements the ``Storage`` port and names its place."""
        storage = self.make()
        assert isinstance(storage, Storage)
        assert storage.url

    def test_an_empty_storage_has_nothing(self) -> None:
        """Reading what is not there gives None or nothing, never an error."""
        storage = self.make()
        assert storage.read("a") is None
        assert storage.read_version("a/b") is None
        assert storage.sizes() == {}
        assert storage.sizes("a") == {}
        with tempfile.TemporaryDirectory() as folder:
            assert storage.download("a", Path(folder) / "a") is None
            assert not list(Path(folder).iterdir())
        storage.delete(["a", "b/c"])

    def test_what_is_written_is_read(self) -> None:
        """Content comes back as it was, under any legal name; a second writer wins."""
        storage = self.make()
        for name in NAMES:
            for content in (b"first", b"", bytes(range(256)) * 300):
                storage.write(name, content)
                assert self.make().read(name) == content
        assert storage.sizes() == dict.fromkeys(NAMES, 256 * 300)

    def test_only_relative_names_are_taken(self) -> None:
        """A name that could leave the storage, or that hides, is refused."""
        storage = self.make()
        for name in WRONG:
            for call in (storage.read, lambda name: storage.write(name, b"")):
                try:
                    call(name)
                except InvalidInput:
                    continue
                raise AssertionError(f"{name!r} was accepted")

    def test_sizes_lists_whole_folders(self) -> None:
        """``sizes`` of a folder does not list another one whose name begins alike."""
        storage = self.make()
        for name in ("step/1", "step/2/x", "steps/1", "step-1"):
            storage.write(name, name.encode())
        assert storage.sizes("step") == {"step/1": 6, "step/2/x": 8}
        assert len(storage.sizes()) == 4

    def test_deleted_files_are_gone(self) -> None:
        """``delete`` removes what it is given and nothing else."""
        storage = self.make()
        for name in ("a/1", "a/2", "a/3"):
            storage.write(name, b"x")
        storage.delete(name for name in ("a/1", "a/3", "a/9"))
        assert list(storage.sizes()) == ["a/2"]
        storage.delete([])

    def test_a_file_is_created_once(self) -> None:
        """``create`` leaves a file alone that is there, until it is deleted."""
        storage = self.make()
        assert storage.create("once", b"first")
        assert not storage.create("once", b"second")
        assert storage.read("once") == b"first"
        storage.delete(["once"])
        assert storage.create("once", b"third")

    def test_one_of_many_creators_wins(self) -> None:
        """Exactly one of several callers at the same time creates the file."""
        storages = [self.make() for _ in range(RACERS)]
        with ThreadPoolExecutor(RACERS) as pool:
            won = list(
                pool.map(lambda n: storages[n].create("race", str(n).encode()), range(RACERS))
            )
        assert sum(won) == 1
        assert storages[0].read("race") == str(won.index(True)).encode()

    def test_a_file_is_replaced_by_its_version(self) -> None:
        """``replace`` needs the present version; it never creates a file."""
        storage = self.make()
        storage.write("head", b"1")
        found = storage.read_version("head")
        assert found is not None
        assert found.content == b"1"
        second = storage.replace("head", b"2", found.version)
        assert second is not None
        assert second != found.version
        assert storage.replace("head", b"stale", found.version) is None
        assert storage.read("head") == b"2"
        again = storage.read_version("head")
        assert again is not None
        assert again.version == second
        assert storage.replace("head", b"3", second) is not None
        storage.delete(["head"])
        assert storage.replace("head", b"4", second) is None
        assert storage.read("head") is None

    def test_no_replacement_is_lost(self) -> None:
        """Callers that count up by ``replace`` at the same time count every success once."""
        storage = self.make()
        storage.write("count", b"0")

        def count(_: int) -> int:
            own, done = self.make(), 0
            while done < 3:
                found = own.read_version("count")
                assert found is not None
                more = str(int(found.content) + 1).encode()
                done += own.replace("count", more, found.version) is not None
            return done

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(count, range(4))) == 12
        assert storage.read("count") == b"12"

    def test_files_go_up_and_come_down(self) -> None:
        """``upload`` and ``download`` carry files of any size and return their hash."""
        storage = self.make()
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "source", Path(folder) / "target"
            for size in (0, 10, CHUNK, CHUNK + 1):
                content = hashlib.shake_128(b"seed").digest(size)
                source.write_bytes(content)
                digest = hashlib.sha256(content).hexdigest()
                assert storage.upload(source, f"large/{size}") == digest
                assert storage.download(f"large/{size}", target) == digest
                assert target.read_bytes() == content
            assert [path.name for path in sorted(Path(folder).iterdir())] == ["source", "target"]

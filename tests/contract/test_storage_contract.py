from __future__ import annotations

import pytest

from duetune.storage import open_storage
from duetune.testing import MemoryStorage, StorageContract


class TestMemoryStorage(StorageContract):
    @pytest.fixture(autouse=True)
    def _storage(self):
        self.storage = MemoryStorage()

    def make(self):
        return self.storage


class TestFolderStorage(StorageContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path):
        self.place = f"file://{tmp_path / 'storage'}"

    def make(self):
        return open_storage(self.place)


class TestObjectStorage(StorageContract):
    @pytest.fixture(autouse=True)
    def _place(self, s3_url):
        self.place = s3_url

    def make(self):
        return open_storage(self.place)

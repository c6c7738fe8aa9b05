"""``fleet check`` of a storage: what works, and one line for each thing that does not."""

from __future__ import annotations

import pytest

from duetune.fleets import storage_check
from duetune.fleets.storage_check import check_storage
from duetune.testing import MemoryStorage
from support.pretended_s3 import BUCKET

pytest_plugins = ["support.pretended_s3", "support.refusing_s3"]


class Careless(MemoryStorage):
    """Ignores one condition or forgets one thing."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def create(self, name, content):
        return True if self.what == "create" else super().create(name, content)

    def replace(self, name, content, version):
        if self.what == "swap":
            return "any version"
        return None if self.what == "stuck" else super().replace(name, content, version)

    def sizes(self, folder=""):
        return {} if self.what == "list" else super().sizes(folder)

    def read_version(self, name):
        return None if self.what == "read" else super().read_version(name)

    def delete(self, names):
        if self.what != "delete":
            super().delete(names)


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("create", "If-None-Match"),
        ("swap", "If-Match"),
        ("stuck", "could not be replaced"),
        ("list", "not listed"),
        ("read", "what was written is not there"),
        ("delete", "still there"),
    ],
)
def test_a_careless_storage_is_found_out(monkeypatch, what, wrong):
    monkeypatch.setattr(storage_check, "open_storage", lambda *_, **__: Careless(what))
    assert wrong in check_storage("s3://bucket").wrong


def test_a_bucket_is_checked_and_a_missing_one_is_one_line(s3_url):
    assert not check_storage(s3_url).wrong
    wrong = check_storage(s3_url.replace(f"//{BUCKET}/", "//none/")).wrong
    assert wrong.endswith("the bucket does not exist")
    assert "\n" not in wrong


def test_missing_credentials_are_one_line(monkeypatch, refusing):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    wrong = check_storage(f"s3://bucket/x?endpoint={refusing(403, 'AccessDenied')}").wrong
    assert "the credentials are missing, expired or not sufficient" in wrong
    assert "\n" not in wrong


def test_a_folder_is_as_empty_after_the_check_as_before(tmp_path):
    assert not check_storage(str(tmp_path)).wrong
    assert not list(tmp_path.iterdir())

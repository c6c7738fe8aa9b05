"""Files appear whole or not at all, and what goes wrong is told."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from duetune import files
from duetune.errors import InvalidInput
from duetune.files import OWNER, make_folder, sync_folder, whole_file, write_new, write_whole


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("durable", [False, True])
def test_text_and_bytes_replace_what_was_there(tmp_path, durable):
    path = tmp_path / "a.txt"
    write_whole(path, "größer", durable=durable)
    assert path.read_bytes() == "größer".encode()
    write_whole(path, b"less", durable=durable)
    assert path.read_bytes() == b"less"
    assert names(tmp_path) == ["a.txt"]


def test_only_the_owner_reads_a_secret_at_any_moment(tmp_path):
    with whole_file(tmp_path / "secret", mode=OWNER) as draft:
        assert stat.S_IMODE(draft.stat().st_mode) == 0o600
        draft.write_text("x")
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_draft_keeps_the_suffix_and_is_hidden_beside_its_place(tmp_path):
    with whole_file(tmp_path / "plot.png") as draft:
        assert (draft.parent, draft.suffix, draft.name[0]) == (tmp_path, ".png", ".")
        draft.write_bytes(b"png")
    assert names(tmp_path) == ["plot.png"]


@pytest.mark.parametrize("error", [KeyError("x"), OSError(errno.ENOSPC, "No space left on device")])
def test_a_block_that_fails_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "a"
    path.write_text("old")

    def half():
        with whole_file(path) as draft:
            draft.write_text("half")
            raise error

    with pytest.raises(type(error)):
        half()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_with_a_field_a_full_disk_is_told_as_what_the_user_gave(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InvalidInput, match=r"--out: .*a.csv.*No space left on device"):
        write_whole(tmp_path / "a.csv", "x", "--out")
    assert names(tmp_path) == []


def test_with_a_field_a_missing_folder_is_told_too(tmp_path):
    with pytest.raises(InvalidInput, match="No such file or directory"):
        write_whole(tmp_path / "none" / "a", "x", "--out")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "a", "x")


def test_what_is_durable_is_synced_before_it_gets_its_name_and_the_folder_after(
    tmp_path, monkeypatch
):
    path, seen = tmp_path / "a", []
    monkeypatch.setattr(files, "sync_file", lambda which: seen.append((which, path.exists())))
    write_whole(path, "x", durable=True)
    (draft, before), (folder, after) = seen
    assert (draft.name.startswith(".a."), before) == (True, False)
    assert (folder, after) == (tmp_path, True)


def test_a_new_file_is_never_written_over_another(tmp_path):
    write_new(tmp_path / "a", [b"1", b"2"])
    assert (tmp_path / "a").read_bytes() == b"12"
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "a", [b"3"])


def test_a_file_system_that_cannot_sync_folders_will_do(tmp_path, monkeypatch):
    def fsync(_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fsync)
    sync_folder(tmp_path)
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "bad")))
    with pytest.raises(OSError, match="bad"):
        sync_folder(tmp_path)

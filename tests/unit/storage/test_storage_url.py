from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from duetune.errors import DuetuneError, InvalidInput, StorageError
from duetune.storage import is_url, open_storage, place_below
from duetune.storage.folder_storage import FolderStorage

pytest_plugins = ["support.refusing_s3"]


@pytest.mark.parametrize(
    "place", ["/data/job", "file:///data/job", "file://localhost/data/job/", "file:///data/%6aob"]
)
def test_paths_and_file_urls_are_folders(place):
    storage = open_storage(place)
    assert isinstance(storage, FolderStorage)
    assert storage.url == "/data/job"


@pytest.mark.parametrize(
    ("place", "allowed"),
    [
        ("", "a path, or a URL"),
        ("ftp://host/path", "a path, or a URL of file://, s3://, gs:// or az://"),
        ("file://elsewhere/path", "on this machine"),
        ("file:///", "on this machine"),
        ("s3://", "s3://BUCKET/PREFIX"),
        ("s3://key:secret@bucket/job", "s3://BUCKET/PREFIX"),
        ("s3://bucket/job?secret_access_key=hidden", "in the environment"),
        ("s3://bucket/job?aws_session_token=hidden", "in the environment"),
        ("az://container/job?sas_key=hidden", "in the environment"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_in_one_line(place, allowed):
    with pytest.raises(InvalidInput) as raised:
        open_storage(place)
    assert allowed in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_what_is_a_url():
    assert is_url("s3://bucket")
    assert not is_url("C:/windows")
    assert not is_url("/a/path://odd")


@pytest.mark.parametrize(
    ("place", "below"),
    [
        ("/data", "/data/job"),
        ("/odd?name", "/odd?name/job"),
        ("s3://bucket", "s3://bucket/job"),
        ("s3://bucket/a/?region=x", "s3://bucket/a/job?region=x"),
    ],
)
def test_a_folder_below_keeps_the_options(place, below):
    assert place_below(place, "job") == below


def test_an_unknown_option_is_refused():
    pytest.importorskip("obstore", reason="obstore is not installed")
    with pytest.raises(InvalidInput, match="options that obstore knows for s3"):
        open_storage("s3://bucket/job?colour=red")


def test_google_and_azure_are_opened_by_their_scheme(monkeypatch):
    pytest.importorskip("obstore", reason="obstore is not installed")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    for url in ("gs://bucket/job", "az://container/job"):
        assert open_storage(url).url == url
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    with pytest.raises(InvalidInput, match="Account must be specified"):
        open_storage("az://container/job")


def test_without_the_extra_the_message_says_what_to_install():
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from duetune.storage import open_storage\n"
        "open_storage('/a/path')\n"
        "try: open_storage('s3://bucket/job')\n"
        "except Exception as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'duetune[storage]'" in done.stdout


def test_a_library_for_buckets_is_not_imported_for_folders():
    code = (
        "import sys; from duetune.storage import open_storage; open_storage('/a'); "
        "print('obstore' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def every_call(storage, tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    yield lambda: storage.read("a")
    yield lambda: storage.write("a", b"")
    yield lambda: storage.create("a", b"")
    yield lambda: storage.replace("a", b"", '{"e_tag": "x"}')
    yield storage.sizes
    yield lambda: storage.delete(["a"])
    yield lambda: storage.upload(tmp_path / "file", "a")
    yield lambda: storage.download("a", tmp_path / "copy")


def failed(call):
    with pytest.raises(StorageError) as raised:
        call()
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value, DuetuneError)
    assert isinstance(raised.value, OSError), "whoever survives a full disk survives this"
    return raised.value


def test_a_missing_bucket_is_named_and_no_retry_helps(s3_server, tmp_path):
    storage = open_storage(f"s3://absent/job?endpoint={s3_server}")
    for call in every_call(storage, tmp_path):
        error = failed(call)
        assert str(error) == (
            "the storage s3://absent/job cannot be used: the bucket does not exist"
        )
        assert not error.retry


def test_without_a_network_a_retry_may_help(monkeypatch, tmp_path):
    module = pytest.importorskip("duetune.storage.object_storage", exc_type=DuetuneError)
    monkeypatch.setattr(module, "_RETRIES", 0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        storage = open_storage(
            f"s3://bucket/job?endpoint=http://127.0.0.1:{taken.getsockname()[1]}"
        )
        for call in every_call(storage, tmp_path):
            assert failed(call).retry


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("code", ["ExpiredToken", "AccessDenied"])
def test_credentials_that_do_not_suffice_are_named(monkeypatch, refusing, status, code):
    pytest.importorskip("obstore", reason="obstore is not installed")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    storage = open_storage(f"s3://bucket/job?endpoint={refusing(status, code)}")
    error = failed(lambda: storage.read("a"))
    assert "the credentials are missing, expired or not sufficient" in str(error)
    assert not error.retry


def test_an_error_of_a_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    storage = open_storage(tmp_path / "file")
    assert "File exists" in str(failed(lambda: storage.write("a", b"")))
